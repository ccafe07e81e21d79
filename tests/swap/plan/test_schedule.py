"""The order of a step under a plan, and the memory in use in it."""

import pytest
from traces import CHAIN, make_trace

from tfunet.graph.step import Op, Tensor, Trace, without_small
from tfunet.swap.plan.schedule import Action, memory, schedule


def words(trace, names, actions):
    """Return the actions as text: "op c", "out a", "in a", "again b"."""
    shown = []
    for action in actions:
        tensor = action.index
        if action.kind in ("op", "again"):
            tensor = trace.ops[action.index].outputs[0]
        shown.append(f"{action.kind} {names[tensor]}")
    return shown


def test_without_decisions_the_ops_run_as_traced():
    trace, names = make_trace(*CHAIN)
    assert words(trace, names, schedule(trace, {})) == [f"op {name}" for name in "abcLBAX"]


def test_swapped_tensor_leaves_after_its_op_and_returns_before_it_is_read():
    trace, names = make_trace(*CHAIN)
    actions = schedule(trace, {names.index("a"): "swap"})
    assert words(trace, names, actions) == [
        *("op a", "out a", "op b", "op c", "op L", "op B"),
        *("in a", "op A", "op X"),
    ]
    assert actions[7].inputs == ((names.index("B"), False), (names.index("a"), True))


def test_repeated_op_reads_what_is_repeated_before_it():
    trace, names = make_trace(*CHAIN)
    actions = schedule(trace, {names.index("a"): "swap", names.index("b"): "recompute"})
    assert words(trace, names, actions) == [
        *("op a", "out a", "op b", "op c", "op L"),
        # b from a, and a is not fetched a second time for A.
        *("in a", "again b", "op B", "op A", "op X"),
    ]


def test_view_of_a_swapped_tensor_is_made_again_from_it():
    trace, names = make_trace(
        ("Conv3D", "x", "a", 100),
        ("Reshape", "a", "r", 100),
        ("Loss", "r", "L", 10),
        ("Grad", "Lr", "R", 10),
    )
    actions = schedule(trace, {names.index("a"): "swap"})
    shown = words(trace, names, actions)
    assert shown == ["op a", "out a", "op r", "in a", "again r", "op L", "op R"]


@pytest.mark.parametrize(
    ("rows", "decisions", "expected"),
    [
        # a, b, c, L; then B replaces nothing: a, b, L, B; a, B, A; A, X.
        (CHAIN, {}, [100, 200, 300, 400, 400, 300, 110]),
        # An activation takes over the memory of its input, which nobody else reads.
        ((("Conv3D", "x", "a", 100), ("Relu", "a", "b", 100)), {}, [100, 100]),
        # Not if another op reads the input later.
        (
            (("Conv3D", "x", "a", 100), ("Relu", "a", "b", 100), ("Add", "ab", "c", 100)),
            {},
            [100, 200, 200],
        ),
        # Nor if it is of another size.
        ((("Conv3D", "x", "a", 50), ("Relu", "a", "b", 100)), {}, [50, 150]),
        # A view takes none, and holds its tensor as long as it is read.
        (
            (
                ("Conv3D", "x", "a", 100),
                ("Reshape", "a", "r", 100),
                ("Conv3D", "x", "b", 10),
                ("Conv3D", "r", "c", 1),
            ),
            {},
            [100, 100, 110, 101],
        ),
    ],
)
def test_memory_in_use(rows, decisions, expected):
    trace, _ = make_trace(*rows)
    in_use = memory(trace, schedule(trace, decisions))
    assert in_use.tolist() == expected


def test_swapping_and_repeating_lower_the_peak():
    trace, names = make_trace(*CHAIN)
    swapped = schedule(trace, {names.index("a"): "swap"})
    # op a, out a, b, c, L, B, in a, A, X
    assert memory(trace, swapped).tolist() == [100, 100, 200, 200, 300, 300, 200, 300, 110]
    repeated = schedule(trace, {names.index("b"): "recompute"})
    # a, b, c, L, again b, B, A, X
    assert memory(trace, repeated).tolist() == [100, 200, 300, 300, 300, 400, 300, 110]


def test_scratch_counts_while_its_op_runs():
    trace, _ = make_trace(*CHAIN)
    plain = memory(trace, schedule(trace, {}))
    more = memory(trace, schedule(trace, {}), {4: 70})
    assert (more - plain).tolist() == [0, 0, 0, 0, 70, 0, 0]


def test_several_views_made_by_one_op_take_no_memory():
    # As the optimizer's gradients are handed on: the second output is the second input.
    sizes = {"a": (100, 0), "b": (30, 1), "v": (100, 2), "w": (30, 2), "c": (1, 3)}
    names = list(sizes)
    rows = [("Conv3D", "", "a"), ("Conv3D", "", "b"), ("IdentityN", "ab", "vw"), ("Sum", "w", "c")]
    ops = [
        Op(
            name=f"op{place}",
            kind=kind,
            inputs=tuple(map(names.index, inputs)),
            outputs=tuple(map(names.index, outputs)),
            is_backward=False,
            is_repeatable=True,
            flops=0.0,
        )
        for place, (kind, inputs, outputs) in enumerate(rows)
    ]
    tensors = [
        Tensor(name=name, num_bytes=size, producer=producer)
        for name, (size, producer) in sizes.items()
    ]
    trace = Trace(ops=tuple(ops), tensors=tuple(tensors))
    assert memory(trace, schedule(trace, {})).tolist() == [100, 130, 130, 31]


def test_an_op_on_small_tensors_stays_for_its_scratch():
    trace, _ = make_trace(*CHAIN)
    assert without_small(trace, 1000)[1] == []
    assert without_small(trace, 1000, {4: 1000, 5: 999})[1] == [4]


def test_an_action_says_which_copy_it_reads():
    trace, names = make_trace(*CHAIN)
    (again,) = [
        action
        for action in schedule(trace, {names.index("c"): "recompute"})
        if action.kind == "again"
    ]
    assert again == Action(
        kind="again",
        index=2,
        inputs=((names.index("b"), False),),
        outputs=((names.index("c"), True),),
    )
