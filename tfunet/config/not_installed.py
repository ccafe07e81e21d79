"""The error of settings that need what is not installed here. Imports no TensorFlow."""


class NotInstalledError(ValueError):
    """Settings need a library that is missing here. The message says how to install it."""
