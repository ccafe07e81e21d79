"""Trains networks with swapped, recomputed and split tensors; prints how far each way is from
plain training. Run by itself: ops of a GPU have the same bits each time only if that is asked for
before it begins. The argument is a kind of network.
"""

import json
import sys
import tempfile

import numpy as np
import tensorflow as tf
from strategies import AllThatMayGo
from supported_runs import forced, trained

from tfunet.swap import LargeModelSupport


def apart(one, other):
    """Return the largest difference between losses and weights, as a share of the largest."""
    pairs = zip((one[0], *one[1]), (other[0], *other[1]), strict=True)
    return max(float(np.abs(np.subtract(a, b)).max() / max(np.abs(b).max(), 1)) for a, b in pairs)


def main(kind):
    tf.config.experimental.enable_op_determinism()
    plain = trained(kind, [])
    with tempfile.TemporaryDirectory() as folder:
        supports = {
            "again": None,
            "swap": forced(AllThatMayGo("swap")),
            "recompute": forced(AllThatMayGo("recompute")),
            "both": forced(AllThatMayGo("swap", "recompute")),
            "disk": forced(AllThatMayGo("swap"), host=0, disk=folder),
            "split": LargeModelSupport(
                "600KiB", threshold_bytes=256, margin=0.0, verbose=0, allowed=("swap", "split")
            ),
        }
        for way, support in supports.items():
            difference = apart(trained(kind, [support] if support else []), plain)
            plan = support.plans[-1] if support else None
            gives_up = plan.count("swap") + plan.count("recompute") if plan else 0
            slabs = len(plan.split) if plan else 0
            found = {"kind": kind, "way": way, "apart": difference}
            print(json.dumps({**found, "given_up": gives_up, "split": slabs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
