"""Regions as what a network predicts, and the labels that they write. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from itertools import combinations

Regions = Mapping[str, Sequence[int]]


def region_labels(regions: Regions) -> dict[str, int]:
    """Return the label that each region writes into a mask, outer regions before inner ones.

    A region writes its first label that is in no region inside it, so that a written label lies in
    exactly the regions around it.

    Args:
        regions: Region name to its labels.

    Raises ValueError for regions that overlap without lying in each other, and for one of which
    the regions inside it leave no label.
    """
    for one, other in combinations(regions, 2):
        _check_pair(regions, one, other)
    return {name: _own_label(regions, name) for name in _outer_first(regions)}


def _outer_first(regions: Regions) -> list[str]:
    """Return the regions in their order, but each after those around it."""
    rest = list(regions)
    ordered = []
    while rest:
        outer = next(
            name
            for name in rest
            if not any(set(regions[name]) < set(regions[other]) for other in rest)
        )
        rest.remove(outer)
        ordered.append(outer)
    return ordered


def _check_pair(regions: Regions, one: str, other: str) -> None:
    ours, theirs = set(regions[one]), set(regions[other])
    if ours == theirs:
        raise ValueError(
            f"outputs = 'regions': {one!r} and {other!r} are the same classes. Leave one of them "
            "out of regions."
        )
    if ours & theirs and not (ours < theirs or theirs < ours):
        raise ValueError(
            f"outputs = 'regions': {one!r} and {other!r} overlap, and neither lies in the other, "
            "so no order of writing them into a mask is right. Choose regions that lie in each "
            "other or apart, or set outputs = 'classes', which scores these regions, too."
        )


def _own_label(regions: Regions, name: str) -> int:
    own = set(regions[name])
    inside = [other for other in regions if set(regions[other]) < own]
    taken = {label for other in inside for label in regions[other]}
    for label in regions[name]:
        if label not in taken:
            return label
    raise ValueError(
        f"outputs = 'regions': every class of {name!r} is in a region inside it, too "
        f"({', '.join(inside)}), so no label says that a pixel is in {name!r} alone. Leave one of "
        "them out of regions."
    )
