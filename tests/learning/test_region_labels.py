"""Regions become labels: outer ones first, each with a label of its own."""

import pytest

from tfunet.learning.region_labels import region_labels


@pytest.mark.parametrize(
    ("regions", "labels"),
    [
        # BraTS 2015: necrosis 1, edema 2, non-enhancing 3, enhancing 4.
        (
            {"whole": (1, 2, 3, 4), "core": (1, 3, 4), "enhancing": (4,)},
            [("whole", 2), ("core", 1), ("enhancing", 4)],
        ),
        # In whatever order they are named.
        (
            {"enhancing": (4,), "core": (1, 3, 4), "whole": (1, 2, 3, 4)},
            [("whole", 2), ("core", 1), ("enhancing", 4)],
        ),
        # The first label as it is written in the region.
        ({"core": (3, 1)}, [("core", 3)]),
        # The later one of regions apart is written over the earlier one, though it is larger.
        ({"cell": (2,), "vessel": (1, 3)}, [("cell", 2), ("vessel", 1)]),
        # A right order is kept: the part of the first before the second.
        (
            {"kidney": (1, 2), "tumour": (2,), "liver": (3,)},
            [("kidney", 1), ("tumour", 2), ("liver", 3)],
        ),
        ({"part": (1,), "other": (3,), "all": (1, 2)}, [("other", 3), ("all", 2), ("part", 1)]),
    ],
)
def test_each_region_writes_its_first_label_that_no_inner_region_has(regions, labels):
    assert list(region_labels(regions).items()) == labels


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({"a": (1, 2), "b": (2, 3)}, "'a' and 'b' overlap, and neither lies in the other"),
        ({"a": (1, 2), "b": (2, 1)}, "'a' and 'b' are the same classes"),
        (
            {"whole": (1, 2), "core": (1,), "edema": (2,)},
            r"every class of 'whole' is in a region inside it, too \(core, edema\)",
        ),
    ],
)
def test_regions_that_no_labels_tell_apart_are_refused(regions, message):
    with pytest.raises(ValueError, match=message):
        region_labels(regions)
