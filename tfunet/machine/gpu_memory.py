"""A cap on the GPU memory of TensorFlow. Imports TensorFlow only where it sets the cap."""

import os

from tfunet.backend import Launch
from tfunet.config.amount import MIB, whole_mib
from tfunet.machine.environment import gpus

# With growth the allocator takes its memory in pieces, and no tensor spans two of them.
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def cap_gpus(amount: str | None) -> None:
    """Give TensorFlow so much of the memory of each GPU, in one piece. Call it before TensorFlow
    uses a device.

    Raises ValueError without a GPU, and where no GPU has so much.
    """
    if amount is None:
        return
    import tensorflow as tf

    found = tf.config.list_physical_devices("GPU")
    if not found:
        raise ValueError(
            f"gpu_memory={amount!r} caps GPU memory, and TensorFlow sees no GPU: `tfunet doctor` "
            "says why. Leave it out, or use cpu_memory to cap the memory of a run on CPUs."
        )
    check_size(amount, [memory for gpu in gpus() if (memory := _mib(gpu["memory_total"]))])
    os.environ[GROWTH] = "false"
    limit = whole_mib(amount, key="gpu_memory")
    for gpu in found:
        one = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
        tf.config.set_logical_device_configuration(gpu, [one])


def check_shared(amount: str | None, swap: str | None, launch: Launch, num_gpus: int) -> None:
    """Raise ValueError if processes that share GPUs would each take a whole one for its swapping.

    With swap a process takes its memory in one piece when it begins.

    Args:
        amount: `gpu_memory`.
        num_gpus: GPUs that each process of this host sees, all the same.
    """
    _, count = launch.place_on_host
    needed = count * len(launch.local_replicas)
    is_shared = count > 1 and 0 < num_gpus < needed
    if swap not in (None, "none") and amount is None and is_shared:
        raise ValueError(
            f"swap={swap!r} with {needed} replicas on {num_gpus} GPU: each takes its memory in one "
            "piece when it begins. Give each its part, such as gpu_memory = '16GiB', or train one "
            "replica on each GPU."
        )


def check_size(amount: str, sizes_mib: list[int]) -> None:
    """Raise ValueError if no GPU of these sizes has so much memory; pass where none is known."""
    if sizes_mib and whole_mib(amount, key="gpu_memory") > max(sizes_mib):
        raise ValueError(
            f"gpu_memory={amount!r} is more than a GPU here has: {max(sizes_mib) * MIB / 2**30:.1f}"
            " GiB. Give less, or leave it out to use all of it."
        )


def _mib(text: str) -> int | None:
    """Return the MiB that nvidia-smi states, such as "81559 MiB"; None for "[N/A]"."""
    number, _, unit = text.partition(" ")
    return int(number) if unit == "MiB" and number.isdigit() else None
