"""A run that takes the best layout by itself, and one that does not fit."""

import json

import pytest

from tfunet import cli, exit_codes
from tfunet.bench import machine_constants
from tfunet.bench.machine_constants import Constants
from tfunet.bench.planned import kind_of
from tfunet.bench.short_runs import short
from tfunet.config.run import RunConfig
from tfunet.plan.layout import Layout
from tfunet.plan.machine import of_cores
from tfunet.plan.prediction import Parts, Prediction
from tfunet.record import RunFolder

RUN = """
data = "cells"
patch = [32, 32]
model_options = { filters = 4, levels = 2 }
global_batch = 4
layout = "auto"
steps = 3
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"layout": "best"}, "Unknown layout 'best'"),
        ({"layout": "auto", "num_replicas": 2, "backend": "horovod"}, "chooses backend"),
        ({"layout": "auto", "accumulation": 2}, "chooses accumulation"),
    ],
)
def test_what_cannot_be_chosen_is_refused(keys, said):
    with pytest.raises(ValueError, match=said):
        RunConfig(**keys)


@pytest.mark.multiprocess
def test_a_run_takes_the_best_layout_and_records_what_was_predicted(cache, tmp_path, capfd):
    command = ["train", "run.toml", "--out", "auto"]
    assert cli.main(command) == exit_codes.OK
    assert "layout = 'auto': " in capfd.readouterr().out
    folder = RunFolder(tmp_path / "auto")
    predicted = folder.read_predicted()
    config = folder.read_config()
    assert config.layout is None
    assert config.backend == predicted["layout"]["backend"]
    assert config.global_samples == 4
    assert folder.read_result()["predicted"] == predicted
    # A later plan of the run on this machine knows what the step took.
    (step,) = machine_constants.read().steps
    measured = folder.read_result()["median_step_seconds"]
    assert step["measured"] == measured
    assert cli.main(["plan", "run.toml", "--layout", "null", "--json"]) == exit_codes.OK
    (factor,) = json.loads(capfd.readouterr().out)["corrections"].values()
    assert factor == pytest.approx(measured / predicted["step_seconds"])
    # The same command goes on in the same layout, whatever would be chosen now.
    table = json.loads((tmp_path / "auto" / "predicted.json").read_text())
    assert cli.main(command) == exit_codes.OK
    assert "Done already" in capfd.readouterr().out
    assert json.loads((tmp_path / "auto" / "predicted.json").read_text()) == table


@pytest.mark.multiprocess
def test_a_run_that_does_not_fit_names_a_layout_that_does(cache, tmp_path, capfd):
    words = ["train", "run.toml", "--patch", "128,128", "--model_options.filters", "16"]
    words += ["--cpu_memory", "64MiB", "--layout", "null", "--out", "large"]
    assert cli.main(words) != exit_codes.OK
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("The first layout that fits, as predicted: tfunet train run.toml ")


def prediction(layout, seconds):
    return Prediction(
        layout=layout,
        parts=Parts(computation=seconds),
        num_bytes=1,
        limit_bytes=2,
        sure=1.0,
        samples_per_second=1.0,
        device_hours=1.0,
    )


def test_a_short_run_has_nothing_but_steps():
    config = RunConfig(
        global_batch=4, epochs=100, metrics=("dice",), callbacks=({"name": "EarlyStopping"},)
    )
    run = short(config, prediction(Layout(backend="mirrored", num_replicas=2), 0.5))
    assert (run.num_replicas, run.global_samples, run.steps) == (2, 4, 12)
    assert (run.metrics, run.callbacks, run.prove) == ((), (), False)
    assert short(config, prediction(Layout(), 1e-4)).steps == 60
    assert short(config, prediction(Layout(), 100.0)).steps == 8


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (Layout(), "single"),
        (Layout(accumulation=4), "single"),
        (Layout(backend="horovod", num_replicas=2), "horovod replicas"),
        (Layout(backend="horovod", num_replicas=2, split=(2, 1)), "horovod replicas split"),
        (Layout(backend="mirrored", stages=2, tiling=(2, 2)), "mirrored stages tiles"),
    ],
)
def test_kinds_of_layouts(layout, kind):
    assert kind_of(layout) == kind


def test_constants_take_the_place_of_estimates(cache):
    machine = of_cores(2, 2**30, backends=["horovod", "multiworker"])
    assert len(machine.estimates) == 3
    rows = [[0.0, 1e-3], [1e6, 2e-3]]
    constants = Constants(
        software=machine_constants.software(),
        date="2026-11-28",
        core={"flops_per_second": 1e10, "bytes_per_second": 1e9},
        busy=1.3,
        averages={"horovod": rows, "multiworker": rows},
        exchanges={"horovod": rows},
    )
    known = constants.applied(machine)
    assert known.estimates == ()
    assert known.busy == 1.3
    assert known.average_seconds(1e6, 2, "horovod") == pytest.approx(2e-3)
    assert not constants.is_stale()
    # They are kept, and told to be stale where they do not hold.
    machine_constants.keep(constants)
    assert machine_constants.read() == constants
    other = Constants(**{**vars(constants), "software": {"tensorflow": "1.0"}, "load": 3.0})
    assert other.is_stale()
    assert len(other.applied(machine).estimates) == 2
    (cache / "machine.json").write_text("{")
    assert machine_constants.read().is_stale()
