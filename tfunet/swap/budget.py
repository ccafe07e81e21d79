"""How much device memory training may use."""

import os
import re
from typing import Any

import tensorflow as tf

UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6}
UNITS["GB"] = 10**9


def parse(budget: str | float) -> int | float | None:
    """Return bytes (int), a share of the device's memory (float), or None for "auto".

    Takes "auto", a number of bytes, a share such as 0.5, or text such as "12GiB" or "0.5".
    """
    if budget == "auto":
        return None
    text = str(budget).strip()
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)", text)
    if found is None or found[2].upper() not in UNITS or float(found[1]) < 0:
        raise ValueError(
            f"swap budget {budget!r} is not an amount of memory. Write 'auto', bytes such as "
            "'12GiB' or '420MiB', or a share of the device's memory such as '0.5'."
        )
    number = float(found[1])
    if found[2]:
        return int(number * UNITS[found[2].upper()])
    if isinstance(budget, int) or "." not in text:
        return int(number)
    if not 0 < number <= 1:
        raise ValueError(
            f"swap budget {budget!r} is neither a share (more than 0, at most 1) nor, without a "
            "unit, a whole number of bytes."
        )
    return number


def in_bytes(budget: str | float) -> int:
    """Return the bytes that a budget allows on each device of this process.

    Raises ValueError where it depends on a limit that the device does not have.
    """
    wanted = parse(budget)
    if isinstance(wanted, int):
        return wanted
    limit = device_bytes()
    if limit is None:
        raise ValueError(
            f"swap budget {budget!r} depends on the device's memory, and a CPU has no limit of its "
            "own. Give an amount such as '4GiB', or cap TensorFlow's allocator with "
            "TF_CPU_ALLOCATOR_USE_BFC=true and TF_CPU_BFC_MEM_LIMIT_IN_MB."
        )
    return limit if wanted is None else int(limit * wanted)


def device_bytes() -> int | None:
    """Return the memory that TensorFlow may use on a device; None on a CPU without a cap."""
    limits = [one.memory_limit for one in _local_devices() if one.device_type == "GPU"]
    if limits:
        return int(min(limits))
    capped = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "")
    return int(limit) * 2**20 if capped and limit.isdigit() else None


def used_bytes() -> tuple[int, int] | None:
    """Return current and peak bytes of the first device's allocator; None where it keeps none."""
    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    try:
        found = tf.config.experimental.get_memory_info(device)
    except (ValueError, tf.errors.InvalidArgumentError):
        return None
    # An allocator that keeps no account reports zeros.
    return (int(found["current"]), int(found["peak"])) if found["peak"] else None


def _local_devices() -> list[Any]:
    if not tf.config.list_physical_devices("GPU"):
        return []
    from tensorflow.python.client import device_lib

    return list(device_lib.list_local_devices())
