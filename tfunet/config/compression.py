"""The compressions of swapped tensors. Pure."""

from tfunet.config.refs import check_known

# Bytes of a compressed number.
COMPRESSIONS = {"bfloat16": 2}


def check(name: str, compression: str | None) -> None:
    """Raise ValueError, which names the key, for an unknown compression; None is without one."""
    if compression is not None:
        check_known(name, compression, COMPRESSIONS)
