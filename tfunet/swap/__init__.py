"""Large-model support: trains models and images that do not fit in device memory."""

from tfunet.swap.callback import LargeModelSupport

__all__ = ["LargeModelSupport"]
