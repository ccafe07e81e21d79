"""What slabs take is measured with all that they do."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfunet.graph import clock, reader
from tfunet.swap.measure import profile, slab_times
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.slab_chains import seconds_of
from tfunet.swap.plan.split import cut, splittable
from tfunet.swap.storage.host import NumpyMemory

ROWS = 64
PAUSE_SECONDS = 0.004


def step_of(function, *shapes):
    """Return the trace of a function of float32 tensors, cut where it can be, and its ops."""
    specs = [tf.TensorSpec(shape) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*specs).graph
    ops = reader.in_order(graph.get_operations(), graph.outputs)
    read, _ = reader.read(ops, graph.outputs)
    return read, cut(read, splittable(read)), ops


def convolved(image, weights):
    return tf.nn.conv2d(image * 2.0, weights, 1, "SAME")


def test_slabs_take_what_their_copies_among_the_ops_take(monkeypatch):
    array, now = NumpyMemory.array, [0.0]
    # Nothing takes time but what is slow.
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow(*arguments):
        now[0] += PAUSE_SECONDS
        return array(*arguments)

    trace, cut_step, ops = step_of(convolved, (1, ROWS, 16, 4), (3, 3, 4, 4))
    costs = Costs(op_seconds=[1e-6] * len(ops), out_bytes_per_second=1e9, in_bytes_per_second=1e9)
    (first, last), tier = cut_step.chains, NumpyMemory()
    fast = profile.with_slabs(cut_step, ops, tier, costs)
    monkeypatch.setattr(NumpyMemory, "array", slow)
    known = {}
    slowed = profile.with_slabs(cut_step, ops, tier, costs, known)
    for op in (first, last):
        chain = cut_step.chains[op]
        slabs = len(chain.slabs)
        assert slabs > slab_times.IN_A_ROW
        taken = [
            seconds_of(trace, chain, cut_step.kept[op], cut_step.split, costs)
            for costs in (fast, slowed)
        ]
        # Each slab puts its rows on the host once.
        assert taken[1] == pytest.approx(slabs * PAUSE_SECONDS, rel=1e-3)
        assert taken[0] < taken[1] / 10
    # What is known is not timed again.
    monkeypatch.setattr(slab_times, "_seconds", None)
    assert profile.with_slabs(cut_step, ops, tier, costs, known) == slowed


def test_chains_that_find_no_room_do_not_spoil_the_others(monkeypatch):
    _, cut_step, ops = step_of(convolved, (1, ROWS, 16, 4), (3, 3, 4, 4))
    first, *others = cut_step.chains
    timed = slab_times._seconds

    def refusing(*arguments):
        if first in arguments[-1]:
            raise tf.errors.ResourceExhaustedError(None, None, "no room")
        return timed(*arguments)

    monkeypatch.setattr(slab_times, "_seconds", refusing)
    times = slab_times.seconds_of_slabs(cut_step, ops, NumpyMemory, list(cut_step.chains))
    assert others
    assert list(times) == others
