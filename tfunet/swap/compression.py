"""What swapped tensors may be compressed to. Pure."""

from tfunet.refs import near_match
from tfunet.swap.plan import Plan

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


def check_plan(plan: Plan, compression: str | None) -> None:
    """Raise ValueError for a plan that rounds what nobody allowed it to."""
    if plan.compressed_bytes and plan.compression != compression:
        raise ValueError(
            f"The plan has {len(plan.compressed_bytes)} tensors compressed to {plan.compression}: "
            f"give compression={plan.compression!r} too, or leave plan out to have one made "
            "without."
        )
