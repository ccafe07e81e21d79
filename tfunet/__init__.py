"""tfunet trains Keras segmentation models on many devices in interchangeable ways."""

__version__ = "0.1.0"
