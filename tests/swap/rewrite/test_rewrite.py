"""The graph of a step after it was made to follow a plan."""

import keras
import tensorflow as tf
from kinds import KINDS, batches
from traces import make_trace

from tfunet.graph.reader import READS
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.swap.rewrite import rewrite
from tfunet.swap.search import planner


def test_what_is_repeated_waits_for_the_backward_pass_also_where_it_reads_the_batch(monkeypatch):
    repeated = []
    repeat = rewrite.repeated

    def spied(op, inputs):
        repeated.append((op, inputs))
        return repeat(op, inputs)

    def of_convolutions(step, **_):
        ways = ("BiasAdd", "Relu")
        names = [step.tensors[op.outputs[0]].name for op in step.ops if op.kind in ways]
        return Plan(decisions=dict.fromkeys(names, "recompute"))

    monkeypatch.setattr(rewrite, "repeated", spied)
    monkeypatch.setattr(planner, "make_plan", of_convolutions)
    keras.utils.set_random_seed(1)
    model = KINDS["shared layers"]()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    support = LargeModelSupport(0, threshold_bytes=256, verbose=0)
    image, mask = batches(model, "shared layers", num=1)
    with support.on(model):
        model.train_on_batch(image, mask)
    of_the_batch = [
        inputs for op, inputs in repeated if all(tensor.op.type in READS for tensor in op.inputs)
    ]
    assert of_the_batch
    for inputs in of_the_batch:
        assert inputs[0].op.control_inputs


def test_what_is_repeated_has_the_name_of_its_op_in_front_in_any_scope():
    # TensorFlow rearranges sums by the names of what they add up; a replica has a scope.
    with tf.Graph().as_default(), tf.name_scope("replica_1"):
        op = (tf.ones([2]) * 2).op
        assert rewrite.repeated(op, op.inputs).name == f"{op.name}/again"


def test_gradients_of_two_convolutions_that_are_added_up_are_not_taken_together():
    gradients = (("Conv2DBackpropFilter", "xwG", "W", 1), ("BiasAddGrad", "G", "B", 1))
    of_both = (("Conv2DBackpropFilter", "ywG", "V", 1), ("BiasAddGrad", "G", "C", 1))
    assert rewrite._of_bias(make_trace(*gradients)[0]) == {0: 1}
    # The gradients would wait for the other, which waits for the gradients.
    assert rewrite._of_bias(make_trace(*gradients, *of_both)[0]) == {}
    assert rewrite._of_bias(make_trace(*gradients, *of_both[:1])[0]) == {}


def test_what_a_loss_makes_of_the_mask_waits_for_the_network(monkeypatch):
    seen = {}

    def placed(step, **_):
        again = [step.tensors[op.outputs[0]].name for op in step.ops if op.kind == "Relu"]
        return Plan(decisions=dict.fromkeys(again, "recompute"), is_placed=seen["placed"])

    monkeypatch.setattr(planner, "make_plan", placed)
    follow = rewrite.follow

    def spied(cut, trace, ops, *rest, **more):
        follow(cut, trace, ops, *rest, **more)
        casts = [op for op in ops if op.type == "Cast" and op.outputs[0].shape.rank == 3]
        seen["waits"] = [casts[0].inputs[0].op.control_inputs, casts[0].control_inputs]

    monkeypatch.setattr(rewrite, "follow", spied)
    for is_placed, expected in ((True, True), (False, False)):
        seen["placed"] = is_placed
        keras.utils.set_random_seed(1)
        model = KINDS["shared layers"]()
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        image, mask = batches(model, "shared layers", num=1)
        support = LargeModelSupport(0, threshold_bytes=256, margin=0.0, verbose=0)
        with support.on(model):
            model.train_on_batch(image, mask)
        assert any(seen["waits"]) is expected
