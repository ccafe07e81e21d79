"""The columns of slabs, whatever the cache of this processor is."""

import dataclasses
from math import inf

import pytest

from tfunet.graph.unrolled import Unrolled

MIB = 2**20
# The gradient of a filter of 3 x 3 x 3 x 16 x 16 on a volume of 64^3.
VOLUME = Unrolled(
    working_set_items=8 * MIB,
    voxels=64**3,
    column_items=27 * 16,
    filters=16,
    tensor_items=2 * 64**3 * 16,
    item_bytes=4,
    one_from_items=inf,
    is_limited=True,
)


@pytest.mark.parametrize(
    ("cache_mib", "share", "mib"),
    [
        (32, 1, 432),
        (32, 1 / 2, 216),
        (32, 1 / 16, 54),  # two images
        # As many images of a half as fill the cache take what one whole takes.
        (320, 1, 432),
        (320, 1 / 2, 432),
        (320, 1 / 4, 0),  # Three quarters of them would be 38 times the tensors.
    ],
)
def test_of_smaller_images_more_are_unrolled(cache_mib, share, mib):
    columns = dataclasses.replace(VOLUME, working_set_items=cache_mib * MIB // 4)
    assert columns.num_bytes(share) == mib * MIB


def test_an_image_with_enough_to_do_is_unrolled_alone():
    alone = dataclasses.replace(VOLUME, working_set_items=80 * MIB, one_from_items=0)
    assert alone.num_bytes(1 / 2) == 216 * MIB
