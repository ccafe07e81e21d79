"""The chain of convolutions of spatial_peers.py, whose peer imports no TensorFlow."""

CHANNELS, LAYERS, KERNEL, CLASSES = 16, 4, 3, 2
WARM_UP = 2
