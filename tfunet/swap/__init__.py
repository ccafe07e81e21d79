"""Large-model support: trains models and images that do not fit in device memory."""

from typing import Any

__all__ = ["LargeModelSupport"]


def __getattr__(name: str) -> Any:
    # The planner and the pictures need no TensorFlow.
    if name == "LargeModelSupport":
        from tfunet.swap.callback import LargeModelSupport

        return LargeModelSupport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
