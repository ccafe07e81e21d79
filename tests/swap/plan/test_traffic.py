"""What a step copies between device and host: counted by hand."""

import dataclasses
from math import inf

import pytest
from traces import CHAIN, make_trace

from tfunet.geometry.reach import Reach
from tfunet.graph.slabs import SlabRows, Slabs
from tfunet.graph.step import Op, Tensor, Trace
from tfunet.graph.unrolled import Unrolled
from tfunet.swap.plan import split
from tfunet.swap.plan.costs import Costs

ROW_BYTES = 10
ROWS = 8
COSTS = Costs(
    op_seconds=[1.0] * 7,
    out_bytes_per_second=10.0,
    in_bytes_per_second=20.0,
    copy_seconds=0.5,
)


def rows(**options):
    return SlabRows(reach=Reach(**options), extent=ROWS, row_bytes=ROW_BYTES)


def window_after_rows():
    """Return a step: a of x, row by row; b of a, through windows of three rows; c of all of b."""
    names = ("x", "a", "b", "c")
    reaches = ((rows(), rows()), (rows(before=1, size=3), rows()), None)
    return Trace(
        ops=tuple(
            Op(
                name=f"op{at}",
                kind="Conv3D",
                inputs=(at,),
                outputs=(at + 1,),
                is_backward=False,
                is_repeatable=True,
                flops=0.0,
                slabs=reach and Slabs(rows=ROWS, inputs=(reach[0],), outputs=(reach[1],)),
            )
            for at, reach in enumerate(reaches)
        ),
        tensors=tuple(
            Tensor(name=name, num_bytes=ROWS * ROW_BYTES, producer=at - 1)
            for at, name in enumerate(names)
        ),
    )


def test_swapped_tensors_go_and_come_once_and_others_not_at_all():
    trace, names = make_trace(*CHAIN)
    decisions = {names.index("a"): "swap", names.index("b"): "recompute", names.index("c"): "swap"}
    copied = split.cut(trace, ()).traffic(decisions, COSTS)
    assert (copied.out_bytes, copied.in_bytes, copied.slab_seconds) == (200, 200, 0)


@pytest.mark.parametrize(
    ("decisions", "in_bytes"),
    [
        ({}, 180),
        ({2: "swap"}, 260),  # b, which the slabs have put together on the host, comes once more.
    ],
)
def test_rows_that_two_slabs_reach_are_copied_twice(decisions, in_bytes):
    trace = window_after_rows()
    cut = split.cut(trace, {1}, heights={0: 4, 1: 4})
    assert [chain.slabs for chain in cut.chains.values()] == [[(0, 4), (4, 8)]] * 2
    copied = cut.traffic(decisions, COSTS)
    # a and b, a slab after the other; of a the rows 0 to 5 and 3 to 8; b as a whole.
    assert (copied.out_bytes, copied.in_bytes) == (2 * 80, in_bytes)
    out = 2 * (80 / 10 + 2 * 0.5)
    back = 2 * (50 / 20 + 0.5) + 80 / 20 + 0.5
    assert copied.slab_seconds == pytest.approx(out + back)


def test_columns_of_slabs_do_not_shrink_as_slabs_do():
    trace = window_after_rows()
    columns = Unrolled(
        working_set_items=100,
        voxels=8,
        column_items=9,
        filters=1,
        tensor_items=20,
        item_bytes=4,
        one_from_items=inf,
        is_limited=False,
    )
    ops = (trace.ops[0], dataclasses.replace(trace.ops[1], unrolled=columns))
    cut = split.cut(dataclasses.replace(trace, ops=ops), {1}, heights={0: 4, 1: 4})
    assert columns.num_bytes() == 2 * 8 * 9 * 4
    # Three images of half the rows fill the working set.
    scratch = cut.scratch_with({0: 100, 1: columns.num_bytes()})
    assert scratch == {0: cut.scratch[0] + 50, 1: cut.scratch[1] + 3 * 4 * 9 * 4}
