"""What swapped tensors may be compressed to. Pure."""

from tfunet.config.refs import near_match

# The bytes of a number then.
COMPRESSIONS = {"bfloat16": 2}


def check(name: str, compression: str | None) -> None:
    """Raise ValueError, which names the setting, for a compression that there is not."""
    if compression is not None and compression not in COMPRESSIONS:
        known = ", ".join(map(repr, COMPRESSIONS))
        raise ValueError(
            f"Unknown {name} {compression!r}.{near_match(compression, COMPRESSIONS)} Known: "
            f"{known}. Leave it out to swap tensors as they are."
        )
