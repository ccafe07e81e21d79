"""The line after training: what a step took, beside what was predicted."""

import re
from types import SimpleNamespace

import keras
import pytest
from kinds import KINDS, batches

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.text import end_line
from tfunet.timing.warm_up import Stopwatch

MIB = 2**20
PLAN = Plan(peak_bytes=60 * MIB, step_seconds=2.6)


@pytest.mark.parametrize(
    ("plan", "used", "seconds", "expected"),
    [
        (
            PLAN,
            64 * MIB,
            (2.91, 8),
            "64 MiB at the peak, 63 MiB predicted; 2.91 s a step (the median of 8), 2.6 s "
            "predicted.",
        ),
        (PLAN, None, (0.0291, 1), "29.1 ms a step (one), 2.6 s predicted."),
        (PLAN, 64 * MIB, None, "64 MiB at the peak, 63 MiB predicted."),
        # Where everything fits by far, no op was timed.
        (Plan(peak_bytes=60 * MIB), None, (0.5, 3), "500 ms a step (the median of 3)."),
    ],
)
def test_peak_and_time_of_a_step_stand_beside_what_was_predicted(plan, used, seconds, expected):
    line = end_line(plan, resident_bytes=3 * MIB, used_bytes=used, seconds=seconds)
    assert line == f"Large-model support: {expected}"


def test_where_nothing_is_known_nothing_is_said():
    assert end_line(PLAN, resident_bytes=0, used_bytes=None, seconds=None) == ""


def test_steps_in_which_a_plan_was_made_are_not_steady(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tfunet.timing.warm_up.time", SimpleNamespace(perf_counter=lambda: now[0]))
    watch = Stopwatch()
    assert watch.median_seconds() is None
    for num_plans, seconds in ((0, 8.0), (1, 1.0), (1, 2.0)):
        watch.begin(num_plans)
        now[0] += seconds
        watch.end(1, steps=1)
    assert watch.median_seconds() == (1.5, 2)


def test_fit_ends_with_the_time_of_its_steps(capsys):
    keras.utils.set_random_seed(1)
    model = KINDS["shared layers"]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, steps_per_execution=2)
    image, mask = batches(model, "shared layers")
    count = len(image) // 2
    callback = LargeModelSupport("8GiB")
    model.fit(image, mask, batch_size=2, epochs=2, verbose=0, callbacks=[callback])
    lines = [line for line in capsys.readouterr().out.splitlines() if "a step" in line]
    assert len(lines) == 1
    # Two steps a call, and the first call traces.
    calls = 2 * -(-count // 2) - 1
    assert re.search(rf"ms a step \((the median of {calls}|one)\)", lines[0]), lines
