"""Gradients of activations that read the activation's output: which, and what that frees."""

import dataclasses

import pytest
import tensorflow as tf
from traces import costs, make_trace

from tfunet.graph import reader
from tfunet.graph.step import fused
from tfunet.swap.plan.activations import from_outputs, reading_outputs
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.swap.search.applied import as_planned
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Problem

# Twice a convolution (of the image x, a; of c, e), its bias (b, f), an activation (c, g); a third.
STEP = (
    ("Conv3D", "x", "a", 0),
    ("BiasAdd", "a", "b", 100),
    ("LeakyRelu", "b", "c", 100),
    ("Conv3D", "c", "e", 0),
    ("BiasAdd", "e", "f", 100),
    ("LeakyRelu", "f", "g", 100),
    ("Conv3D", "g", "d", 10),
    ("Loss", "d", "L", 10),
    ("Conv3DBackpropFilterV2", "gL", "W", 1),
    ("Conv3DBackpropInputV2", "L", "G", 100),
    ("LeakyReluGrad", "Gf", "F", 100),
    ("Conv3DBackpropFilterV2", "cF", "V", 1),
    ("Conv3DBackpropInputV2", "F", "C", 100),
    ("LeakyReluGrad", "Cb", "B", 100),
    ("Conv3DBackpropFilterV2", "xB", "U", 1),
)
GRADIENTS = ["op10", "op13"]


def step(*rows, **changed):
    """Return a step whose LeakyReluGrads may read g in the place of f, c of b; indices by name."""
    made, names = make_trace(*rows)
    instead = {names.index("f"): names.index("g"), names.index("b"): names.index("c")}
    ops = [
        dataclasses.replace(op, instead=instead[op.inputs[1]]) if op.kind == "LeakyReluGrad" else op
        for op in made.ops
    ]
    tensors = list(made.tensors)
    for name, changes in {"a": {"is_inner": True}, "e": {"is_inner": True}, **changed}.items():
        at = names.index(name)
        tensors[at] = dataclasses.replace(tensors[at], **changes)
    return dataclasses.replace(made, ops=tuple(ops), tensors=tuple(tensors)), names


def peak_bytes(made):
    return memory(made, schedule(made, {})).max()


def test_activation_takes_over_the_memory_of_an_input_that_need_not_stay():
    made, _ = step(*STEP)
    assert from_outputs(made, 100) == GRADIENTS
    # At the loss: b, c, f, g. Without b and f, at the first gradient of an input: c, g and that.
    assert peak_bytes(made) == 420
    assert peak_bytes(reading_outputs(made, GRADIENTS)) == 310


@pytest.mark.parametrize(
    ("more", "changed", "threshold_bytes", "expected"),
    [
        ((), {}, 101, []),
        # Something else of the backward pass reads it.
        ((("Other", "Bb", "Z", 1),), {}, 1, ["op10"]),
        # The step returns it, or who knows what reads it.
        ((), {"f": {"is_result": True}}, 1, ["op13"]),
        # Nothing else reads the output: one of the two has to stay.
        ((), {"without": "V"}, 1, ["op10"]),
        # It was there before the step.
        ((), {"b": {"producer": -1}}, 1, ["op10"]),
    ],
)
def test_input_that_stays_is_read(more, changed, threshold_bytes, expected):
    without = changed.pop("without", None)
    rows = [row for row in STEP if row[2] != without]
    made, _ = step(*rows, *more, **changed)
    assert from_outputs(made, threshold_bytes) == expected


def test_plan_reads_outputs_where_not_all_can_be_kept_and_says_of_which():
    made, _ = step(*STEP)
    plans = [
        Planner().plan(
            Problem(trace=made, budget_bytes=size, costs=costs(made), threshold_bytes=50)
        )
        for size in (420, 330)
    ]
    assert [list(plan.from_outputs) for plan in plans] == [[], GRADIENTS]
    # Nothing else has to be given up, and what was needed without is told.
    assert plans[1].decisions == {}
    assert (plans[1].peak_bytes, plans[1].unlimited_peak_bytes) == (310, 420)
    again = Plan.from_json(plans[1].to_json())
    assert as_planned(made, again) == reading_outputs(made, GRADIENTS)
    # A forward pass alone is followed as it was traced.
    alone = dataclasses.replace(made, is_forward=True)
    problem = Problem(trace=alone, budget_bytes=330, costs=costs(alone), threshold_bytes=50)
    plan = Planner().plan(problem)
    assert plan.from_outputs == ()


def test_input_that_was_freed_is_computed_again_for_an_output_that_is():
    made, names = step(*STEP)
    freed = reading_outputs(made, GRADIENTS)
    actions = schedule(freed, {names.index("g"): "recompute"})
    again = [freed.ops[action.index].name for action in actions if action.kind == "again"]
    # The convolution, its bias and the activation: f is kept for nobody.
    assert again == ["op3", "op4", "op5"]


def test_plan_of_another_step_is_refused():
    made, _ = step(*STEP)
    with pytest.raises(
        ValueError, match=r"op6 and 0 more .* does not have: it is of another model"
    ):
        as_planned(made, Plan(from_outputs=("op6",)))


def test_activation_that_is_parted_does_not_run_as_one_op_with_its_bias():
    made, _ = step(*STEP)
    # In a training step without support the gradient's reading keeps the two apart.
    assert fused(made) == fused(reading_outputs(made, GRADIENTS)) == {0: 1, 3: 4}


@pytest.mark.parametrize(
    ("slope", "will_do"), [(0.0, True), (0.2, True), (1.0, True), (1.5, False)]
)
def test_output_will_do_where_it_has_the_signs_of_the_input(slope, will_do):
    @tf.function
    def gradient(image):
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = tf.reduce_sum(tf.nn.leaky_relu(image * 2.0, slope) ** 2)
        return tape.gradient(loss, image)

    graph = gradient.get_concrete_function(tf.TensorSpec((1, 8, 8, 1))).graph
    made, handles = reader.read(reader.in_order(graph.get_operations(), graph.outputs))
    (op,) = (op for op in made.ops if op.kind == "LeakyReluGrad")
    assert (op.instead >= 0) == will_do
    if will_do:
        assert handles[op.instead].op.type == "LeakyRelu"
        assert handles[op.instead].op.inputs[0] is handles[op.inputs[1]]


def test_gradients_that_read_outputs_have_the_same_bits():
    tiny = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, float("inf"), -float("inf"), float("nan")]
    numbers = tf.constant([*tiny, 1.0, -1.0])
    upstream = tf.constant([3.0, -0.0, 1e-45, 2.0, float("inf"), 5.0, 7.0, 1.5, 2.5, 0.1, 0.3])
    for slope in (0.0, 0.01, 0.2, 1.0):
        read = [numbers, tf.nn.leaky_relu(numbers, slope)]
        from_input, from_output = (
            tf.raw_ops.LeakyReluGrad(gradients=upstream, features=features, alpha=slope)
            for features in read
        )
        assert from_input.numpy().tobytes() == from_output.numpy().tobytes()
