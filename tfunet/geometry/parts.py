"""Whether samples can be cut into the parts of a split. Imports no TensorFlow."""

from collections.abc import Sequence


def check_split(split: Sequence[int], patch: Sequence[int]) -> None:
    """Raise ValueError for a split that does not fit samples of this shape; () fits all."""
    if not split:
        return
    if len(split) != len(patch):
        raise ValueError(
            f"split = {list(split)} has {len(split)} numbers, and a sample of shape {tuple(patch)} "
            f"has {len(patch)} axes. Give one number for each axis; 1 leaves an axis whole."
        )
    for axis, (extent, parts) in enumerate(zip(patch, split, strict=True)):
        if parts > extent:
            raise ValueError(
                f"split = {list(split)} cuts axis {axis} into {parts} parts, and a sample of shape "
                f"{tuple(patch)} has {extent} rows there. Choose at most {extent}."
            )
