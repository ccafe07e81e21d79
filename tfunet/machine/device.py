"""The memory of this process's devices, as TensorFlow counts it."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from tfunet.inside.of_tensorflow import gpu_limits, uses_onednn

# The peak before a block that `uncounted` left out.
_kept = {"peak": 0}


def own_gpus() -> list[str]:
    """Return the names, such as "GPU:0", of the GPUs that this process uses.

    `tf.config.list_logical_devices` also names those of the other workers of a cluster, which
    cannot be asked for their memory.
    """
    if not tf.config.list_physical_devices("GPU"):
        return []
    return [f"GPU:{index}" for index in range(len(tf.config.get_visible_devices("GPU")))]


def device_bytes() -> int | None:
    """Return the memory that TensorFlow may use on a device; None for a CPU without a cap."""
    # Where there is no GPU, this does not start TensorFlow's devices.
    if tf.config.list_physical_devices("GPU") and tf.config.list_logical_devices("GPU"):
        return _gpu_bytes()
    capped = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    return int(limit) * 2**20 if capped and limit.isdigit() else None


def cpu_cap() -> int | None:
    """Return the cap of the CPU's allocator; None on a GPU, without a cap, or if the machine has
    less memory than the cap."""
    limit = device_bytes()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_none = limit is None or limit > memory or tf.config.list_logical_devices("GPU")
    return None if is_none else limit


def has_regions() -> bool:
    """Return whether a GPU's memory is taken in regions, as needed; otherwise it is one region."""
    if not tf.config.list_physical_devices("GPU") or not tf.config.list_logical_devices("GPU"):
        return False
    # The variable comes first for TensorFlow, too.
    said = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower()
    if said in ("true", "false"):
        return said == "true"
    return any(
        tf.config.get_logical_device_configuration(gpu) is None
        and bool(tf.config.experimental.get_memory_growth(gpu))
        for gpu in tf.config.get_visible_devices("GPU")
    )


def used_bytes() -> tuple[int, int] | None:
    """Return current and peak bytes of the first device's allocator; None if it counts none."""
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    try:
        info = tf.config.experimental.get_memory_info(device)
    except (ValueError, tf.errors.InvalidArgumentError):
        return None
    # An allocator that does not count reports zeros.
    peak = max(int(info["peak"]), _kept["peak"])
    return (int(info["current"]), peak) if info["peak"] else None


def peak_of(name: str) -> int:
    """Return the most bytes that the allocator of a device of this process has handed out at once
    since it began or forgot; 0 if it does not count."""
    try:
        return int(tf.config.experimental.get_memory_info(name)["peak"])
    except (ValueError, tf.errors.InvalidArgumentError):
        return 0


def free_bytes() -> int | None:
    """Return the bytes that the device's allocator can still hand out; None without a limit."""
    limit, used = device_bytes(), used_bytes()
    return None if limit is None else limit - (used[0] if used is not None else 0)


def forget_peak() -> None:
    """Start the peak of `used_bytes` anew, if the allocator can."""
    _kept["peak"] = 0
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
        tf.config.experimental.reset_memory_stats(device)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Leave what happens inside out of the peak of `used_bytes`, if the allocator can."""
    before = used_bytes()
    try:
        yield
    finally:
        forget_peak()
        _kept["peak"] = 0 if before is None else before[1]


@contextlib.contextmanager
def watched() -> Iterator[list[int]]:
    """Yield a list, which gets the most bytes that the block held beyond what was held before.

    It stays empty where the allocator keeps no account, or cannot begin one anew.
    """
    held: list[int] = []
    before = used_bytes()
    if before is None:
        yield held
        return
    forget_peak()
    began = used_bytes()
    yield held
    after = used_bytes() or (0, 0)
    _kept["peak"] = max(before[1], after[1])
    if began is not None and (began[1] < before[1] or before[0] == before[1]):
        held.append(max(0, after[1] - began[0]))


def _gpu_bytes() -> int:
    """Return the memory of the smallest GPU in use: its cap, or what was free at the start."""
    return min(gpu_limits())


def lacks_onednn() -> bool:
    """Return whether TensorFlow computes on a CPU without oneDNN though nobody asked for that."""
    is_chosen = "TF_ENABLE_ONEDNN_OPTS" in os.environ
    return not (is_chosen or uses_onednn() or tf.config.list_logical_devices("GPU"))
