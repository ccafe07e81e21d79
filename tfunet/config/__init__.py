"""What one run does: a frozen dataclass, checked when made. Imports no TensorFlow."""

from tfunet.config.run import RunConfig

__all__ = ["RunConfig"]
