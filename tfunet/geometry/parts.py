"""Whether samples can be cut into parts. Imports no TensorFlow."""

from collections.abc import Sequence


def check_split(
    split: Sequence[int], patch: Sequence[int], key: str = "split", *, what: str = "a sample"
) -> None:
    """Raise ValueError for parts that do not fit samples of this shape; () fits all.

    `key` is that of the configuration which has their numbers, and `what` is cut.
    """
    if not split:
        return
    if len(split) != len(patch):
        raise ValueError(
            f"{key} = {list(split)} has {len(split)} numbers, and {what} of shape {tuple(patch)} "
            f"has {len(patch)} axes. Give one number for each axis; 1 leaves an axis whole."
        )
    for axis, (extent, parts) in enumerate(zip(patch, split, strict=True)):
        if parts > extent:
            raise ValueError(
                f"{key} = {list(split)} cuts axis {axis} into {parts} parts, and {what} of shape "
                f"{tuple(patch)} has {extent} rows there. Choose at most {extent}."
            )
