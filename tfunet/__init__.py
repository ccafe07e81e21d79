"""tfunet trains Keras segmentation models on many devices in interchangeable ways."""

from typing import Any

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
