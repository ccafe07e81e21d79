"""How a budget of device memory is written. Imports no TensorFlow."""

import contextlib
import re

MIB = 2**20
GIB = 2**30
GB = 10**9
NAMES = ("B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB")
BINARY = {f"{letter}IB": 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)}
DECIMAL = {f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGT", 1)}
UNITS = {"": 1, "B": 1, **BINARY, **DECIMAL}


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
            "'12GiB' or '420MiB', or a share of the device's memory such as '0.5'. Units: "
            f"{', '.join(NAMES)}."
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


def in_bytes(name: str, amount: str | int) -> int:
    """Return the bytes of an amount such as "64GiB", which is no share of anything.

    Raises ValueError that names what was given so.
    """
    found = None
    with contextlib.suppress(ValueError):
        found = parse(amount)
    if isinstance(found, int):
        return found
    raise ValueError(
        f"{name} must be an amount such as '64GiB' or '500MiB', got {amount!r}. Units: "
        f"{', '.join(NAMES)}."
    )


def whole_mib(amount: str) -> int:
    """Return the MiB of an amount such as "400MiB", in which TensorFlow counts.

    Raises ValueError for an amount that it cannot be told: parts of a MiB, or none.
    """
    num_bytes = in_bytes("cpu_memory", amount)
    if num_bytes < MIB or num_bytes % MIB:
        raise ValueError(
            f"cpu_memory must be a whole number of MiB, at least 1, got {amount!r}. Write it as "
            "'400MiB'."
        )
    return num_bytes // MIB
