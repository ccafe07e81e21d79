"""tfunet trains Keras segmentation models on many devices in interchangeable ways."""

import importlib
import sys
from typing import Any

# Before anything that an older Python cannot read. setup.cfg says the same to pip.
if sys.version_info < (3, 11):
    print(
        f"error: tfunet needs Python 3.11 or 3.12, and this is Python {sys.version_info[0]}."
        f"{sys.version_info[1]}. Make an environment with one of them, for example: "
        "python3.11 -m venv ENV",
        file=sys.stderr,
    )
    raise SystemExit(2)

__version__ = "0.1.0"
__all__ = ["RunConfig", "compare", "distribute", "evaluate", "predict", "train"]

# Where they are: they are loaded on demand, so that `import tfunet` costs nothing.
_PLACES = {
    "RunConfig": "tfunet.config.run",
    "compare": "tfunet.bench.compare_backends",
    "distribute": "tfunet.fit.distribute",
    "evaluate": "tfunet.bench.one_run",
    "predict": "tfunet.bench.one_run",
    "train": "tfunet.bench.one_run",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tfunet' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
