"""Amounts of memory, as users write them. Imports no TensorFlow."""

import contextlib
import re

MIB = 2**20
GIB = 2**30
GB = 10**9
UNIT_NAMES = "Units: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB."
BINARY = {f"{letter}IB": 2 ** (10 * power) for power, letter in enumerate("KMGT", 1)}
DECIMAL = {f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGT", 1)}
UNITS = {"": 1, "B": 1, **BINARY, **DECIMAL}


def parse(budget: str | float) -> int | float | None:
    """Return bytes (int), a share of the device's memory (float), or None for "auto".

    Accepts "auto", a number of bytes, a share such as 0.5, or text such as "12GiB" or "0.5".
    """
    if budget == "auto":
        return None
    text = str(budget).strip()
    parts = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)", text)
    if parts is None or parts[2].upper() not in UNITS:
        raise ValueError(
            f"swap budget {budget!r} is not an amount of memory. Write 'auto', an amount such as "
            f"'12GiB' or '420MiB', or a share of the device's memory such as '0.5'. {UNIT_NAMES}"
        )
    number = float(parts[1])
    if parts[2]:
        return int(number * UNITS[parts[2].upper()])
    if isinstance(budget, str) and "." not in text and 0 < number < MIB:
        raise ValueError(
            f"swap budget {budget!r} has no unit, and would be {text} bytes. Write '{text}MiB', "
            f"'{text}GiB', or '{text}B' for bytes. {UNIT_NAMES}"
        )
    if isinstance(budget, int) or "." not in text:
        return int(number)
    if not 0 < number <= 1:
        raise ValueError(
            f"swap budget {budget!r} has no unit. Write a share (more than 0, at most 1), a whole "
            f"number of bytes, or give a unit. {UNIT_NAMES}"
        )
    return number


def in_bytes(name: str, amount: str | int) -> int:
    """Return the bytes of an amount such as "64GiB".

    Raises ValueError, which names the key, for a share and for what is not an amount.
    """
    num_bytes = None
    with contextlib.suppress(ValueError):
        num_bytes = parse(amount)
    if isinstance(num_bytes, int):
        return num_bytes
    raise ValueError(
        f"{name} must be an amount such as '64GiB' or '500MiB', got {amount!r}. {UNIT_NAMES}"
    )


def whole_mib(amount: str, *, key: str = "cpu_memory") -> int:
    """Return the MiB of an amount such as "400MiB".

    Raises ValueError for 0 and for parts of a MiB, which TensorFlow's limit cannot express.
    """
    num_bytes = in_bytes(key, amount)
    if num_bytes < MIB or num_bytes % MIB:
        raise ValueError(
            f"{key} must be a whole number of MiB, at least 1, got {amount!r}. Give an amount "
            "such as '400MiB'."
        )
    return num_bytes // MIB
