"""Large-model support with few slabs, which are unrolled, so that a step is traced in seconds."""

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan import slab_chains


class InFewSlabs(LargeModelSupport):
    def __init__(self, **options):
        slab_chains.MOST_SLABS = 3
        super().__init__(**options)
