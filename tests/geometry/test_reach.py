"""Reach, against the rows counted one by one."""

from hypothesis import given
from hypothesis import strategies as st

from tfunet.geometry.reach import Reach


@st.composite
def reaches(draw):
    stride, before = draw(st.integers(1, 4)), draw(st.integers(-3, 4))
    transposed = draw(st.booleans())
    # With less, some output rows of a transposed convolution would need nothing.
    size = draw(st.integers(stride if transposed else 1, 7))
    return Reach(stride=stride, before=before, size=size, transposed=transposed)


def counted(reach, rows):
    """Return the first input row that output rows need, and one past the last."""
    window = range(-reach.before, reach.size - reach.before)
    if reach.transposed:
        needed = {i for i in range(-60, 60) for k in window if reach.stride * i + k in rows}
    else:
        needed = {reach.stride * row + k for row in rows for k in window}
    return min(needed), max(needed) + 1


@given(reaches(), st.integers(0, 9), st.integers(1, 5))
def test_needed_rows_are_those_counted(reach, begin, height):
    rows = range(begin, begin + height)
    first, last = counted(reach, rows)
    assert reach.needed(begin, begin + height) == (first, last)
    assert reach.inside(begin, begin + height, extent=6) == (max(first, 0), min(last, 6))
    assert reach.padding(begin, begin + height, extent=6) == (max(-first, 0), max(last - 6, 0))


@given(reaches(), reaches(), st.integers(0, 9), st.integers(1, 5))
def test_reaches_in_a_row_need_what_the_first_needs_for_the_second(first, second, begin, height):
    middle = range(*counted(second, range(begin, begin + height)))
    assert first.needed(*second.needed(begin, begin + height)) == counted(first, middle)
