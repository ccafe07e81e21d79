"""A forward pass alone, divided so that it can be planned as a training step is."""

from dataclasses import replace

import pytest
from traces import CHAIN, make_trace

from tfunet.graph.forward import divided, waiting
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.plan.split import splittable
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem

# Two skips, s and t, read again on the way up; b is the bottleneck.
U_NET = (
    ("Conv3D", "x", "s", 100),
    ("MaxPool3D", "s", "p", 10),
    ("Conv3D", "p", "t", 50),
    ("MaxPool3D", "t", "q", 5),
    ("Conv3D", "q", "b", 25),
    ("Resize", "b", "u", 50),
    ("ConcatV2", "ut", "v", 100),
    ("Conv3D", "v", "w", 50),
    ("Resize", "w", "y", 100),
    ("ConcatV2", "ys", "z", 200),
)
STRAIGHT = (
    ("Conv3D", "x", "a", 100),
    ("Conv3D", "a", "b", 100),
    ("Conv3D", "b", "c", 100),
)
# The shortcut a waits while b and c are made.
RESIDUAL = (
    ("Conv3D", "x", "a", 100),
    ("Conv3D", "a", "b", 100),
    ("Conv3D", "b", "c", 100),
    ("Conv3D", "c", "d", 100),
    ("AddV2", "ad", "e", 100),
)
# The same, with its b a convolution whose bias and activation run as one op with it.
FUSED = (
    ("Conv3D", "x", "a", 100),
    ("MaxPool3D", "a", "b", 10),
    ("Conv3D", "b", "i", 0),
    ("BiasAdd", "i", "j", 10),
    ("Elu", "j", "c", 10),
    ("AddV2", "ac", "e", 100),
)


def begin_of(trace):
    """Return the index of the first op of the second part; None where there is none."""
    return next((index for index, op in enumerate(trace.ops) if op.is_backward), None)


def fused_trace():
    return with_inner(*FUSED)


def with_inner(*rows):
    trace, names = make_trace(*rows)
    inner = names.index("i")
    tensors = list(trace.tensors)
    tensors[inner] = replace(tensors[inner], is_inner=True)
    return replace(trace, tensors=tuple(tensors)), names


@pytest.mark.parametrize(
    ("rows", "begin"),
    [
        # Both skips wait from here on.
        (U_NET, 4),
        (STRAIGHT, None),
        (RESIDUAL, 2),
        # A view is no end of waiting, and none of its own.
        ((*RESIDUAL[:4], ("Reshape", "a", "f", 100), ("AddV2", "fd", "e", 100)), 2),
        # A normalisation comes back to its input at once, a skip after all that is below it.
        (
            (
                *U_NET[:7],
                ("Mean", "v", "m", 90),
                ("Sub", "m", "n", 90),
                ("Sub", "vn", "w", 90),
                *U_NET[8:],
            ),
            4,
        ),
        ((), None),
    ],
)
def test_second_part_begins_where_most_waits(rows, begin):
    forward = divided(make_trace(*rows)[0])
    assert forward.is_forward
    assert begin_of(forward) == begin
    if begin is not None:
        assert all(op.is_backward for op in forward.ops[begin:])


def test_what_is_read_again_after_other_ops_waits():
    trace, _ = make_trace(*U_NET)
    assert waiting(trace).tolist() == [*(0, 0, 700, 700, 800, 800, 800, 700, 700, 700)]


def test_what_runs_as_one_op_is_in_one_part():
    trace, _ = fused_trace()
    assert waiting(trace).tolist() == [0, 0, 300, 300, 300, 300]
    assert begin_of(divided(trace)) == 2
    # Where the pooling is left out, the shortcut waits from the bias on, which cannot begin.
    rows = (FUSED[0], ("Conv3D", "a", "i", 0), *FUSED[3:])
    assert begin_of(divided(with_inner(*rows)[0])) == 4


def test_the_result_of_a_convolution_is_there_beside_its_input():
    trace, names = fused_trace()
    forward = divided(trace)
    assert [forward.tensors[names.index(letter)].num_bytes for letter in "ij"] == [10, 10]
    assert [forward.tensors[names.index(letter)].is_inner for letter in "ijc"] == [
        True,
        True,
        False,
    ]
    in_use = memory(forward, schedule(forward, {}))
    assert in_use.tolist() == [100, 110, 120, 120, 120, 110]
    assert not splittable(forward) & {names.index("i"), names.index("j")}


def test_step_with_gradients_stays_as_it_is():
    trace, _ = make_trace(*CHAIN)
    assert divided(trace).ops == trace.ops


def test_a_skip_is_swapped_while_the_ops_below_it_need_its_room():
    rows = (
        ("Conv3D", "x", "s", 100),
        ("MaxPool3D", "s", "p", 10),
        ("Conv3D", "p", "b", 150),
        ("Conv3D", "b", "c", 150),
        ("Conv3D", "c", "d", 10),
        ("ConcatV2", "ds", "e", 110),
    )
    trace = divided(make_trace(*rows)[0])
    costs = Costs(op_seconds=[1.0] * len(rows), out_bytes_per_second=1e3, in_bytes_per_second=1e3)
    problem = Problem(trace=trace, costs=costs, budget_bytes=350, threshold_bytes=1)
    planner = Planner(["swap", "recompute"])
    plan = planner.plan(problem)
    assert plan.unlimited_peak_bytes == 400
    assert plan.decisions == {"s": "swap"}
    assert plan.peak_bytes == 300
    assert not planner.plan(replace(problem, budget_bytes=400)).decisions
