"""Which device owns which elements: each once, evenly, cut where vector instructions are whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfunet.state.owners import UNIT, owned_parts

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=12)


def elements(parts):
    return [(part.at, element) for part in parts for element in range(part.begin, part.end)]


@given(SIZES, st.integers(1, 7), st.data())
def test_each_element_has_one_owner(sizes, count, data):
    is_whole = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    owned = owned_parts(sizes, [8.0] * len(sizes), count, is_whole=is_whole)
    assert len(owned) == count
    every = [one for parts in owned for one in elements(parts)]
    assert sorted(every) == [(at, one) for at, size in enumerate(sizes) for one in range(size)]
    for parts in owned:
        for at, begin, end in parts:
            assert not is_whole[at] or (begin, end) == (0, sizes[at])
            assert begin % UNIT == 0
            assert end % UNIT == 0 or end == sizes[at]


@given(SIZES, st.integers(1, 7))
def test_parts_differ_by_less_than_two_units(sizes, count):
    owned = owned_parts(sizes, [8.0] * len(sizes), count, is_whole=[False] * len(sizes))
    for parts in owned:
        assert abs(len(elements(parts)) - sum(sizes) / count) <= 2 * UNIT


@pytest.mark.parametrize(
    ("sizes", "costs", "expected"),
    [
        # Whole variables: the largest find owners first.
        ([100, 33, 7, 1000], [8, 8, 8, 8], [1000, 140]),
        # A state of 2 bytes an element beside others of 8.
        ([400, 100], [2, 8], [400, 100]),
        # More devices than variables.
        ([5], [8], [5, 0]),
    ],
)
def test_whole_variables_are_balanced_by_bytes(sizes, costs, expected):
    owned = owned_parts(sizes, costs, 2, is_whole=[True] * len(sizes))
    assert [len(elements(parts)) for parts in owned] == expected
