"""The graph of a step after it was made to follow a plan."""

import keras
import tensorflow as tf
from kinds import KINDS, batches
from strategies import Fixed
from traces import make_trace

from tfunet.graph.step import READS
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.swap.rewrite import rewrite, turns


def repeating(*kinds, **fields):
    """Return a strategy that recomputes what ops of these kinds make."""

    def make(trace):
        names = [trace.tensors[op.outputs[0]].name for op in trace.ops if op.kind in kinds]
        return Plan(decisions=dict.fromkeys(names, "recompute"), **fields)

    return Fixed(make)


def test_what_is_repeated_waits_for_the_backward_pass_also_where_it_reads_the_batch(monkeypatch):
    repeated = []
    repeat = rewrite.repeated

    def spied(op, inputs):
        repeated.append((op, inputs))
        return repeat(op, inputs)

    monkeypatch.setattr(rewrite, "repeated", spied)
    keras.utils.set_random_seed(1)
    model = KINDS["shared layers"]()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    strategy = repeating("BiasAdd", "Relu")
    support = LargeModelSupport(
        0, weights="none", threshold_bytes=256, verbose=0, strategy=strategy
    )
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
    assert turns._of_bias(make_trace(*gradients)[0]) == {0: 1}
    # One pair would wait for the other, which would wait for the first.
    assert turns._of_bias(make_trace(*gradients, *of_both)[0]) == {}
    assert turns._of_bias(make_trace(*gradients, *of_both[:1])[0]) == {}


def test_what_a_loss_makes_of_the_mask_waits_for_the_network(monkeypatch):
    seen = {}
    follow = rewrite.follow

    def spied(cut, ops, *rest, **more):
        follow(cut, ops, *rest, **more)
        casts = [op for op in ops if op.type == "Cast" and op.outputs[0].shape.rank == 3]
        seen["waits"] = [casts[0].inputs[0].op.control_inputs, casts[0].control_inputs]

    monkeypatch.setattr(rewrite, "follow", spied)
    for is_placed, expected in ((True, True), (False, False)):
        keras.utils.set_random_seed(1)
        model = KINDS["shared layers"]()
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        image, mask = batches(model, "shared layers", num=1)
        strategy = repeating("Relu", is_placed=is_placed)
        support = LargeModelSupport(
            0, weights="none", threshold_bytes=256, margin=0.0, verbose=0, strategy=strategy
        )
        with support.on(model):
            model.train_on_batch(image, mask)
        assert any(seen["waits"]) is expected
