"""Swap traffic as TensorBoard shows it: written while training, and read back."""

import keras
import pytest
import tensorflow as tf
from kinds import KINDS, batches

from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.measured import Measured
from tfunet.swap.report.scalars import scalars

PLAN = Plan(out_bytes=10, in_bytes=12, copy_seconds=0.5, exposed_seconds=0.25, peak_bytes=7)


def test_what_a_step_copies_is_that_of_its_passes():
    assert scalars(PLAN, num_passes=2) == {
        "swap/copied_out_bytes": 20,
        "swap/copied_in_bytes": 24,
        "swap/planned_hidden_seconds": 0.5,
        "swap/planned_exposed_seconds": 0.5,
        "swap/planned_peak_bytes": 7,  # One pass is in memory at a time.
    }


@pytest.mark.parametrize(("peak_bytes", "told"), [(9, {"swap/measured_peak_bytes": 9}), (None, {})])
def test_memory_that_was_not_measured_is_not_told(peak_bytes, told):
    values = scalars(PLAN, Measured(peak_bytes=peak_bytes))
    assert {name: value for name, value in values.items() if "measured" in name} == told


def read_scalars(folder):
    """Return (step, value) of each scalar of large-model support in the event files of a folder."""
    points = {}
    for path in sorted(folder.glob("**/events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.startswith("swap/"):
                    # As TensorBoard's page of scalars wants it.
                    assert value.metadata.plugin_data.plugin_name == "scalars"
                    number = float(tf.make_ndarray(value.tensor))
                    points.setdefault(value.tag, []).append((event.step, number))
    return points


def fit():
    model = KINDS["shared layers"]()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    image, mask = batches(model, "shared layers")
    plan = Plan(decisions={}, out_bytes=3, in_bytes=5, copy_seconds=0.5, peak_bytes=2**20)
    support = LargeModelSupport("8GiB", plan=plan, verbose=0)
    model.fit(image, mask, epochs=2, verbose=0, callbacks=[support])
    return scalars(plan)


def test_fit_with_a_summary_writer_tells_each_epoch(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        told = fit()
    assert read_scalars(tmp_path) == {
        name: [(0, value), (1, value)] for name, value in told.items()
    }


def test_fit_without_a_writer_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit()
    assert list(tmp_path.iterdir()) == []
