"""What is free of a capped CPU's memory, in pieces, and plans that are made for them."""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf
from traces import PROBLEM, STEP, planned

from tfunet.machine import device
from tfunet.swap.arena.arena import Memory, Request, in_pieces, plays
from tfunet.swap.arena.device_memory import free_pieces
from tfunet.swap.search.fitting import finds_room, fitted
from tfunet.swap.search.planner import Planner

MIB = 2**20
LIMIT_SECONDS = 120

# Leaves holes in a capped arena, and prints the pieces found, what is free, and the peak.
HOLES = """
import json, sys
import tensorflow as tf
from tfunet.machine import device
from tfunet.swap.arena.device_memory import free_pieces, join_regions
join_regions()
assert device.used_bytes()[1] < 4 * 2**20, "joining counts as a peak of the run"
held = [tf.raw_ops.Empty(shape=[int(size * 2**20)], dtype=tf.uint8) for size in (3, 1.5, 5, 2, 9)]
del held[1], held[2]
device.forget_peak()
before, peak = device.used_bytes()
pieces = [free_pieces(), free_pieces()]
assert device.used_bytes() == (before, peak), (before, peak, device.used_bytes())
free = device.free_bytes()
largest = tf.raw_ops.Empty(shape=[pieces[0][-1]], dtype=tf.uint8)
print(json.dumps([*pieces, free]))
"""


def test_pieces_are_those_that_are_free():
    done = subprocess.run(
        [sys.executable, "-c", HOLES],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env={
            **os.environ,
            "TF_CPU_ALLOCATOR_USE_BFC": "true",
            "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64",
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    pieces, again, free = json.loads(done.stdout.splitlines()[-1])
    assert pieces == again
    # The piece of the first region, beside the scalars, and the two holes.
    assert [round(num_bytes / MIB, 1) for num_bytes in pieces[:-1]] == [1.0, 1.5, 2.0]
    assert 0 < free - sum(pieces) < MIB


def test_a_cpu_without_a_cap_has_no_pieces(monkeypatch):
    monkeypatch.delenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", raising=False)
    assert free_pieces() == ()


def test_memory_that_something_else_takes_meanwhile_has_no_pieces(monkeypatch):
    def full(**_):
        raise tf.errors.ResourceExhaustedError(None, None, "full")

    monkeypatch.setattr(device, "device_bytes", lambda: 64 * MIB)
    monkeypatch.setattr(device, "used_bytes", lambda: (MIB, MIB))
    monkeypatch.setattr(tf.raw_ops, "Empty", full)
    assert free_pieces() == ()


def test_a_tensor_has_room_in_one_piece_only():
    step = [Request(kept=[3 * MIB, 2 * MIB], passing=[], ended=[0, 1])]
    assert plays(in_pieces([2 * MIB, 3 * MIB]), step)
    assert not plays(in_pieces([2 * MIB, 2 * MIB, 2 * MIB]), step)
    # No more memory is taken.
    assert not plays(in_pieces([MIB, 3 * MIB]), step)


@pytest.mark.parametrize(
    ("pieces", "expected"), [((), 1.0), ((64 * MIB,), 1.0), ((3 * MIB,) * 20, 0.5)]
)
def test_half_of_the_room_is_what_there_is_now(pieces, expected):
    memory = Memory(limit_bytes=64 * MIB, pieces=pieces)
    assert finds_room(STEP, memory, planned(64 * MIB), {}) == expected


def test_a_plan_is_made_for_the_pieces_that_are_there():
    # Everything kept wants its peak in one piece, or in two that hold what lies in them.
    kept = planned(64 * MIB)
    memory = Memory(limit_bytes=64 * MIB, pieces=(16 * MIB,))
    assert kept.peak_bytes > 16 * MIB
    plan = fitted(PROBLEM, memory, Planner())
    assert plan.gives_up
    assert plan.finds_room == 1
