"""The U-Net that is compared in stages, and its batch; see pipeline_peers.py."""

FILTERS, LEVELS, CLASSES = 16, 3, 2
SIZE, BATCH, MICRO_BATCHES = 128, 16, 8
WARM_UP = 2
