"""What is gathered of a run: costs, borders, memory, and why some layouts cannot be."""

import pytest

from tfunet.config.run import RunConfig
from tfunet.data.task import open_task
from tfunet.performance.devices import DEVICES
from tfunet.performance.traced_step import traced_step
from tfunet.plan.facts import exchanges as predicted_exchanges
from tfunet.plan.gather import gather
from tfunet.plan.layout import Layout
from tfunet.plan.machine import described
from tfunet.plan.predict import Predictor

DEVICE = DEVICES["v100-nvlink2"]
SMALL = {"filters": 8, "levels": 3}
SUBCLASSED = """
import keras


class Own(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.first = keras.layers.Conv2D(8, 3, padding="same")
        self.last = keras.layers.Conv2D(num_classes, 1)

    def call(self, image):
        return self.last(self.first(image))


def build(*, image_shape, num_classes):
    return Own(num_classes)
"""


def config(**keys):
    settings = {"data": "cells", "patch": (64, 64), "model_options": SMALL, "replica_batch": 4}
    return RunConfig(**{**settings, **keys})


@pytest.fixture(scope="module")
def known():
    return gather(config(), DEVICE)


def test_facts_of_a_network(known):
    assert known.patch == (64, 64)
    assert known.global_samples == 4
    assert known.update.slots == 2
    assert known.num_layers == len(known.graph.nodes)
    assert known.why_no_stages == ""
    assert "is not the mean over its pixels" in known.why_no_tiles
    assert known.by_batch == ()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"data": "tumours", "data_options": {"size": 32}, "patch": (32, 32, 32)},
        {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}},
    ],
)
def test_memory_and_time_are_those_of_the_traced_step(keys):
    run = config(**keys)
    facts = gather(run, DEVICE)
    predicted = Predictor(facts, described("1 v100-nvlink2")).predict(Layout())
    step = traced_step(run, open_task(run))
    assert predicted.num_bytes == pytest.approx(step.total_bytes, rel=0.08)


@pytest.mark.parametrize(
    # As result.json of a run with split = [2, 1] on two devices counts them.
    ("normalization", "exchanges", "num_bytes"),
    [("instance", 44, 424960), ("none", 30, 402432)],
)
def test_exchanges_are_those_of_a_run(normalization, exchanges, num_bytes):
    run = config(model_options={**SMALL, "normalization": normalization})
    facts = gather(run, DEVICE)
    found = list(predicted_exchanges(facts, (2, 1)))
    assert sum(count for _, _, count in found) == exchanges
    assert 4 * sum(size * count for _, size, count in found) == pytest.approx(num_bytes, rel=0.25)


def test_statistics_of_a_batch_are_named():
    options = {**SMALL, "normalization": "batch"}
    facts = gather(config(model_options=options, loss="crossentropy"), DEVICE)
    assert facts.by_batch
    assert "uses statistics" in facts.why_no_tiles


def test_a_network_without_statistics_can_have_tiles():
    options = {**SMALL, "normalization": "none"}
    facts = gather(config(model_options=options, loss="crossentropy"), DEVICE)
    assert facts.why_no_tiles == ""
    assert facts.halo[0] > 8
    assert facts.alignment == (8, 8)


def test_a_class_of_ones_own_is_traced_as_a_whole(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(SUBCLASSED)
    run = config(model=f"{file}:build", model_options={})
    facts = gather(run, DEVICE)
    assert "The model has a call of its own" in facts.why_no_stages
    assert facts.num_layers == 1
    predicted = Predictor(facts, described("1 v100-nvlink2")).predict(Layout())
    step = traced_step(run, open_task(run))
    assert predicted.num_bytes == pytest.approx(step.total_bytes, rel=0.1)
    assert predicted.parts.computation > 0
