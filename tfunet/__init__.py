"""tfunet trains Keras segmentation models on many devices in interchangeable ways."""

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
__all__ = ["RunConfig", "compare"]


def __getattr__(name: str) -> Any:
    # On demand, so that `import tfunet` costs nothing.
    if name == "compare":
        from tfunet.bench.compare_backends import compare

        return compare
    if name == "RunConfig":
        from tfunet.config.run import RunConfig

        return RunConfig
    raise AttributeError(f"module 'tfunet' has no attribute {name!r}")
