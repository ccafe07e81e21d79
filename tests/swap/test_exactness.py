"""Large-model support changes no bit of losses and weights."""

import dataclasses
import itertools
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from kinds import KINDS, batches

from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.detours import movable
from tfunet.swap.plan.activations import from_outputs, reading_outputs
from tfunet.swap.plan.plan import Plan
from tfunet.swap.plan.schedule import schedule
from tfunet.swap.plan.timeline import moved, overlap
from tfunet.swap.search import planner
from tfunet.swap.search.search import Search

# Slabs change the last bits: test_in_slabs.py.
WAYS = ("swap", "recompute")


def all_that_may_go(step, *, costs, threshold_bytes, allowed, **_):
    """Return a plan that gives up every tensor it may, whether or not that lowers the peak.

    Copies stand as far from where they are read as if they ran beside computation.
    """
    gradients = from_outputs(step, threshold_bytes)
    step = reading_outputs(step, gradients)
    search = Search(step, costs, allowed, threshold_bytes)
    ways = itertools.cycle(allowed)
    decisions = {}
    for tensor in search.idle(schedule(step, {}), {}):
        way = next(ways)
        if way == "swap" or search.cost(tensor, way, {}) is not None:
            decisions[tensor] = way
    on_disk = costs.placed(step, decisions).on_disk
    slow_copies = dataclasses.replace(costs, copies_overlap=True, copy_seconds=1e-3)
    moves = overlap(step, schedule(step, decisions), slow_copies, budget_bytes=2**40)
    actions = moved(schedule(step, decisions), moves)
    detours = [] if step.is_forward else some_detours(step, actions)
    return Plan(
        detours=[(step.tensors[one.tensor].name, *one[1:]) for one in detours],
        from_outputs=gradients,
        decisions={step.tensors[one].name: way for one, way in decisions.items()},
        on_disk=[step.tensors[one].name for one in on_disk],
        awaited={step.tensors[one].name: step.ops[op].name for one, op in moves.awaited.items()},
        fetched={step.tensors[one].name: step.ops[op].name for one, op in moves.fetched.items()},
    )


def some_detours(step, actions):
    """Return detours of the largest tensors that are there at some places of a step."""
    found = []
    for place in range(len(actions) // 20, len(actions), len(actions) // 10):
        unread, read = movable(step, actions, found, place, least_bytes=256)
        found += [*unread[:2], *read[:1]]
    return found


def trained(kind, callbacks, policy="float32"):
    """Return the losses of three steps, and the weights after them."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = KINDS[kind]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)
        model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
        if model.built:
            optimizer.build(model.trainable_variables)  # or the step would be traced twice
        image, mask = batches(model, kind)
        losses = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
        )
        model.fit(image, mask, batch_size=2, shuffle=False, verbose=0, callbacks=[keep, *callbacks])
    finally:
        keras.config.set_dtype_policy("float32")
    return losses, model.get_weights()


def assert_same(one, other):
    assert one[0] == other[0]
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_when_all_that_can_be_is_given_up(kind, monkeypatch):
    monkeypatch.setattr(planner, "make_plan", all_that_may_go)
    support = LargeModelSupport(0, threshold_bytes=256, allowed=WAYS, verbose=0)
    assert_same(trained(kind, [support]), trained(kind, []))
    assert support.plans[-1].decisions
    assert len(support.plans[-1].detours) > 3


def passed_with_onednn(*which):
    """Run tests in a process of its own, on all cores, and return how many there were.

    oneDNN sums in other orders, by what it makes one op of; it is chosen before TensorFlow begins.
    """
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *which],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return int(re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)[1])


def test_same_bits_with_onednn():
    kinds = "own or two or dropout or attention or subclassed or normalization"
    assert 5 <= passed_with_onednn("-k", f"given_up and ({kinds})", __file__) <= 9


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_same_bits_in_mixed_precision(policy, monkeypatch):
    monkeypatch.setattr(planner, "make_plan", all_that_may_go)
    support = LargeModelSupport(0, threshold_bytes=256, allowed=WAYS, verbose=0)
    kind = "nested"  # It normalises, in float32.
    assert_same(trained(kind, [support], policy), trained(kind, [], policy))
    assert support.plans[-1].decisions


# Layers of all ranks and types of tensor, a second derivative, random numbers.
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("unet 3D", "float32"),
        ("unet, batch", "float32"),
        ("own train_step", "float32"),
        ("dropout", "float32"),
        ("attention", "float32"),
        ("1D", "float32"),
        ("two outputs", "float32"),
        ("nested", "mixed_bfloat16"),
        ("nested", "mixed_float16"),
    ],
)
def test_same_bits_with_all_that_can_be_on_disk(kind, policy, monkeypatch, tmp_path):
    monkeypatch.setattr(planner, "make_plan", all_that_may_go)
    support = LargeModelSupport(
        0, host_budget=0, disk=tmp_path, allowed=["swap"], threshold_bytes=256, verbose=0
    )
    assert_same(trained(kind, [support], policy), trained(kind, [], policy))
    plan = support.plans[-1]
    assert sorted(plan.on_disk) == sorted(plan.decisions)
    assert plan.on_disk
    assert not list(tmp_path.iterdir())


def test_same_bits_with_some_on_disk_and_some_on_the_host(monkeypatch, tmp_path):
    monkeypatch.setattr(planner, "make_plan", all_that_may_go)
    support = LargeModelSupport(
        0, host_budget="20KiB", disk=tmp_path, allowed=WAYS, threshold_bytes=256, verbose=0
    )
    assert_same(trained("unet, batch", [support]), trained("unet, batch", []))
    plan = support.plans[-1]
    assert 0 < len(plan.on_disk) < plan.count("swap")
