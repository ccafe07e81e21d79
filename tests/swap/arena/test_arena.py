"""TensorFlow's allocator, played through, beside the real one; and plans that have room in it."""

import dataclasses
import json
import os
import random
import subprocess
import sys

import pytest
from strategies import ForBudget
from traces import MIB, PROBLEM, STEP, planned

from tfunet.swap.arena.arena import ALIGNMENT, Arena, Memory, Request, at_start, most_bytes, plays
from tfunet.swap.arena.device_memory import SCALARS
from tfunet.swap.report.text import begin_line
from tfunet.swap.search.fitting import finds_room, fitted
from tfunet.swap.search.planner import Planner

LIMIT_SECONDS = 120

# Allocates and frees as told, and prints what TensorFlow says is in use after each.
REAL = """
import json, sys
import tensorflow as tf
from tfunet.machine import device
from tfunet.swap.arena.device_memory import join_regions
joined, sizes = json.loads(sys.argv[1])
first = join_regions() if joined else 0
held, used = {}, [device.used_bytes()[0] if joined else 0]
for number, size in sizes:
    if size:
        held[number] = tf.raw_ops.Empty(shape=[size], dtype=tf.uint8)
    else:
        del held[number]
    used.append(device.used_bytes()[0])
print(json.dumps([first, used]))
"""


def drawn_requests(*, count: int, most_bytes: int, most_held: int) -> list[tuple[int, int]]:
    """Return (number, bytes) of what is allocated; bytes are 0 where it is freed."""
    draw = random.Random(0)
    sizes, held, total = [], {}, 0
    for number in range(count):
        size = int(most_bytes * draw.random() ** 3) + 1
        while held and total + 2 * size > most_held:
            gone = draw.choice(list(held))
            total -= 2 * held.pop(gone)
            sizes.append((gone, 0))
        held[number] = size
        total += 2 * size
        sizes.append((number, size))
    return sizes


@pytest.mark.parametrize("joined", [True, False])
def test_it_hands_out_what_tensorflow_hands_out(joined):
    sizes = drawn_requests(count=150, most_bytes=12 * MIB, most_held=48 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", REAL, json.dumps([joined, sizes])],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
        env={
            **os.environ,
            "TF_CPU_ALLOCATOR_USE_BFC": "true",
            "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64",
        },
    )
    first, (start, *used) = json.loads(done.stdout.splitlines()[-1])
    arena = Arena(64 * MIB)
    if joined:
        small = [arena.allocate(1) for _ in range(2 * SCALARS)]
        for address in small[1::2]:
            arena.free(address)
        assert first == 2 * MIB
        arena.extend(64 * MIB, at_once=True)
    assert arena.used_bytes == start
    addresses, played, asked, lost = {}, [], {}, []
    for number, size in sizes:
        if size:
            shape = arena.allocate(4)
            addresses[number] = arena.allocate(size)
            arena.free(shape)
        else:
            arena.free(addresses.pop(number))
        asked[number] = size
        played.append(arena.used_bytes)
        lost.append(arena.used_bytes - start - sum(asked.values()))
    # A scalar that TensorFlow keeps may come and go.
    apart = [abs(simulated - real) for simulated, real in zip(played, used, strict=True)]
    assert max(apart) <= 2 * ALIGNMENT
    # What it hands out is more than was asked for: that is what there is to play.
    assert max(lost) > MIB


def test_a_block_is_split_only_where_as_much_again_is_left():
    arena = Arena(2 * MIB)
    block = arena.allocate(MIB + 256)
    assert arena.used_bytes == 2 * MIB
    assert arena.allocate(256) is None
    arena.free(block)
    assert arena.used_bytes == 0
    first, second = arena.allocate(MIB), arena.allocate(MIB)
    assert (first, second, arena.allocate(1)) == (0, MIB, None)
    arena.free(first)
    arena.free(second)
    # What is free beside each other is one block again.
    assert arena.allocate(2 * MIB) == 0


def test_a_step_that_leaves_gaps_finds_no_room():
    # 7 of 8 MiB are free, and not side by side.
    gap = Request(kept=[3 * MIB, MIB, 3 * MIB], passing=[], ended=[0, 2])
    last = Request(kept=[5 * MIB], passing=[], ended=[1, 3])

    def arena(limit_bytes):
        return at_start(Memory(limit_bytes=limit_bytes))

    assert not plays(arena(8 * MIB), [gap, last])
    assert plays(arena(12 * MIB), [gap, last])
    # Scratch is there beside what is kept.
    assert not plays(arena(12 * MIB), [gap, last._replace(passing=[8 * MIB])])


def test_a_scalar_may_have_taken_a_little_of_what_is_free():
    sizes = [2 * MIB, 2 * MIB, 1000]
    for cut_bytes, expected in ((0, [True, True, False]), (1024, [True, False, True])):
        made = Arena(4 * MIB, cut_bytes=cut_bytes)
        made.extend(4 * MIB, at_once=True)
        assert [made.allocate(size) is not None for size in sizes] == expected


def test_what_else_lies_in_a_device_takes_room():
    kept = planned(64 * MIB)
    sizes = range(16, 64)
    least = next(mib for mib in sizes if room(kept, limit_bytes=mib * MIB) == 1)
    assert room(kept, limit_bytes=kept.peak_bytes) < 1
    assert kept.peak_bytes < least * MIB
    assert room(kept, {4: 8 * MIB}, limit_bytes=least * MIB) < 1  # scratch
    assert room(kept, limit_bytes=least * MIB, resident=[6 * MIB]) < 1
    assert room(kept, limit_bytes=least * MIB, more_bytes=6 * MIB) < 1


def test_more_in_memory_never_leaves_more_room():
    kept = planned(64 * MIB)
    rooms = [room(kept, limit_bytes=48 * MIB, more_bytes=mib * MIB) for mib in range(0, 64, 4)]
    assert rooms == sorted(rooms, reverse=True)
    assert (rooms[0], rooms[-1]) == (1, 0)
    # Nor do variables that are larger than all of it.
    assert room(kept, limit_bytes=48 * MIB, resident=[64 * MIB]) == 0


def test_a_plan_with_room_is_within_the_budget_of_the_step():
    limit = 26 * MIB

    def make(budget_bytes):
        # The second is made for less than it needs, and there is room for it all the same.
        plan = planned(64 * MIB) if budget_bytes == limit else planned(0)
        asked = budget_bytes if budget_bytes == limit else MIB
        return dataclasses.replace(plan, budget_bytes=asked, obstacles={"a": 1})

    assert room(make(limit), limit_bytes=limit) < 1
    plan = fitted(PROBLEM, Memory(limit_bytes=limit), ForBudget(make))
    assert plan.finds_room == 1
    assert plan.peak_bytes <= plan.budget_bytes == limit
    assert not plan.obstacles


def room(plan, scratch=None, **memory):
    return finds_room(STEP, Memory(**memory), plan, scratch or {})


def test_the_plan_with_the_largest_budget_that_has_room_is_taken():
    memory = Memory(limit_bytes=20 * MIB)
    tried = []

    def make(budget_bytes):
        tried.append(planned(budget_bytes))
        return tried[-1]

    plan = fitted(PROBLEM, memory, ForBudget(make))
    *others, last = tried
    assert others
    assert plan == dataclasses.replace(last, finds_room=1.0, is_placed=True)
    assert all(finds_room(STEP, memory, other, {}) < 1 for other in others)
    assert [plan.budget_bytes for plan in tried] == sorted(
        (plan.budget_bytes for plan in tried), reverse=True
    )
    # The search goes on from the budget that was found before slabs were timed.
    again = fitted(PROBLEM, memory, Planner(), most_bytes=last.budget_bytes)
    assert again == plan


def test_without_room_for_any_it_is_the_lowest_peak_and_the_user_is_told():
    tried = []

    def make(budget_bytes):
        tried.append(planned(budget_bytes))
        return tried[-1]

    plan = fitted(PROBLEM, Memory(limit_bytes=14 * MIB), ForBudget(make))
    assert plan.finds_room < 1
    assert plan.peak_bytes == min(trial.peak_bytes for trial in tried)
    # Where there is nothing less, the search ends.
    assert [trial.peak_bytes > trial.budget_bytes for trial in tried] == [False, True]
    # It is within the budget, and what is in the way is the allocator.
    assert plan.budget_bytes == 14 * MIB
    assert not plan.obstacles
    assert f"{plan.finds_room:.0%} of the cases" in begin_line(plan, "all")


# In a capped arena; prints the losses, and how much was given up.
CAPPED = """
import json, sys
import keras
import numpy as np
from tfunet.models.make import make_model
from tfunet.swap import LargeModelSupport
keras.utils.set_random_seed(0)
options = {"filters": 8, "levels": 2, "normalization": "none"}
model = make_model("unet", image_shape=(144, 144, 1), num_classes=2, options=options)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss, jit_compile=False)
image = np.random.default_rng(0).normal(size=(4, 144, 144, 1)).astype("float32")
mask = (image[..., 0] > 0).astype("int32")
support = LargeModelSupport("auto", threshold_bytes=2**16)
with support.on(model):
    losses = [float(model.train_on_batch(image, mask)) for _ in range(3)]
plan = support.plans[-1]
found = {"losses": losses, "room": plan.finds_room}
print(json.dumps({**found, "freed": len(plan.from_outputs), "given_up": len(plan.decisions)}))
"""


def trained(mib, onednn):
    done = subprocess.run(
        [sys.executable, "-c", CAPPED],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env={
            **os.environ,
            "TF_CPU_ALLOCATOR_USE_BFC": "true",
            "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(mib),
            "TF_ENABLE_ONEDNN_OPTS": onednn,
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_does_not_fit_trains_by_default():
    # 44 MiB and weights; a quarter less without the inputs of activations.
    kept, freed, supported = (trained(mib, onednn="1") for mib in (512, 42, 30))
    assert (kept["freed"], kept["given_up"]) == (0, 0)
    assert freed["freed"] > 0
    assert (supported["freed"], supported["given_up"] > 0) == (freed["freed"], True)
    assert freed["room"] == supported["room"] == 1
    assert kept["losses"] == freed["losses"] == supported["losses"]


def test_what_does_not_fit_trains_without_onednn_too():
    # TensorFlow's own gradient of a filter takes 30 MiB more, and waits before it is refused them.
    kept, supported = (trained(mib, onednn="0") for mib in (512, 66))
    assert (kept["freed"], kept["given_up"]) == (0, 0)
    assert supported["freed"] > 0
    assert supported["given_up"] > 0
    assert supported["room"] == 1
    assert kept["losses"] == supported["losses"]


def test_the_most_that_a_step_has_counts_what_its_blocks_have_too_much():
    kib = 4 * ALIGNMENT
    asked = [
        Request([3 * kib], [], []),
        Request([kib], [], [0]),
        # It gets the block of 3 KiB, which is less than twice as large, beside that of 1 KiB.
        Request([2 * kib], [], [1]),
        Request([], [kib // 2], [2]),
    ]
    arena = Arena(64 * MIB)
    arena.allocate(5 * kib)
    assert most_bytes(arena, asked) == 4 * kib
