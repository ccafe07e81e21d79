"""Who has which part: no TensorFlow."""

import itertools

import pytest

from tfunet.parallel.mesh import Mesh, even_bounds, part_bounds, part_rows


def test_devices_are_numbered_group_by_group():
    mesh = Mesh(groups=2, split=(2, 3))
    assert (mesh.parts, mesh.num_devices) == (6, 12)
    assert [mesh.place_of(device) for device in (0, 1, 5, 6, 11)] == [
        *((0, 0), (0, 1), (1, 2), (0, 0), (1, 2)),
    ]
    assert mesh.members(7) == [6, 7, 8, 9, 10, 11]
    assert mesh.line(7, 0) == [7, 10]
    assert mesh.line(7, 1) == [6, 7, 8]
    assert mesh.groups_of(range(4, 8)) == range(2)


def test_devices_of_a_group_have_a_stage_and_in_it_a_part():
    mesh = Mesh(groups=2, split=(2, 3), stages=3)
    assert (mesh.sample_parts, mesh.parts, mesh.num_devices) == (6, 18, 36)
    device = 18 + 6 + 4
    assert (mesh.group_of(device), mesh.stage_of(device), mesh.part_of(device)) == (1, 1, 4)
    assert mesh.place_of(device) == (1, 1)
    assert mesh.members(device) == list(range(24, 30))
    assert mesh.line(device, 0) == [25, 28]
    assert mesh.line(device, 1) == [27, 28, 29]
    assert mesh.column(device) == [22, 28, 34]
    assert mesh.holders(1) == [*range(6, 12), *range(24, 30)]
    assert [device for device in range(36) if mesh.is_first(device)] == [0, 18]


def test_pairs_are_the_devices_that_exchange():
    # Devices of a column exchange, and devices that have the same stage.
    assert Mesh(stages=3).pairs == [(0, 1), (0, 2), (1, 2)]
    assert Mesh(split=(2, 1), stages=2).pairs == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert Mesh(groups=2, stages=2).pairs == [(0, 1), (0, 2), (1, 3), (2, 3)]
    mesh = Mesh(groups=2, split=(2, 1), stages=2)
    assert [other for first, other in mesh.pairs if first == 0] == [1, 2, 4, 5]
    assert len(mesh.pairs) == 16


def test_without_a_split_every_device_is_a_group():
    mesh = Mesh(groups=3)
    assert mesh.num_devices == 3
    assert not mesh.is_split
    assert [mesh.members(device) for device in range(3)] == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("extent", "parts", "bounds"),
    [
        (64, 2, (0, 32, 64)),
        (96, 2, (0, 48, 96)),
        (64, 3, (0, 22, 44, 64)),
        (37, 3, (0, 13, 25, 37)),
        (5, 4, (0, 2, 3, 4, 5)),
        (3, 3, (0, 1, 2, 3)),
        (4, 3, (0, 2, 3, 4)),  # not 0, 2, 4, 4
        (16, 5, (0, 4, 8, 12, 14, 16)),
    ],
)
def test_parts_are_even_and_lie_where_poolings_cut(extent, parts, bounds):
    assert even_bounds(extent, parts) == bounds


def test_every_part_has_rows():
    for extent in range(1, 65):
        for parts in range(1, extent + 1):
            bounds = even_bounds(extent, parts)
            assert (bounds[0], bounds[-1], len(bounds)) == (0, extent, parts + 1)
            assert all(begin < end for begin, end in itertools.pairwise(bounds))


def test_rows_of_a_device():
    mesh = Mesh(split=(2, 1, 3))
    assert part_rows(mesh, 4, (8, 5, 9)) == ((4, 8), (0, 5), (3, 6))
    assert part_rows(Mesh(), 0, (8, 5)) == ((0, 8), (0, 5))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ((2, 1), "has 2 numbers, and a sample of shape .* has 3 axes"),
        ((1, 9, 1), "cuts axis 1 into 9 parts, and a sample .* has 8 rows there"),
    ],
)
def test_a_split_that_does_not_fit_a_sample_is_refused(split, message):
    with pytest.raises(ValueError, match=message):
        part_bounds((16, 8, 16), split)
