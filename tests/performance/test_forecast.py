"""What a step would need and take on a device that is only described; the commands for it."""

import dataclasses
import json

import pytest

from tfunet import cli, exit_codes
from tfunet.config.run import RunConfig
from tfunet.performance.devices import DEVICES
from tfunet.performance.forecast import forecast, forecast_text
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.text import read_plans

MIB = 2**20
CONFIG = """
data = "tumours"
data_options = { size = 48 }
model_options = { filters = 8, levels = 3 }
replica_batch = 2
"""


@pytest.fixture(scope="module")
def config():
    return RunConfig(
        data="tumours",
        data_options={"size": 48},
        model_options={"filters": 8, "levels": 3},
        replica_batch=2,
    )


def test_a_large_device_needs_no_plan(config):
    large = forecast(config, DEVICES["h100-pcie5"])
    assert large.fits_without
    assert not large.plan.decisions
    assert large.untimed == ()
    assert "leave out" not in forecast_text(large)
    # The outputs of the first two convolutions alone, and of what follows them.
    assert large.plan.unlimited_peak_bytes > 4 * 2 * 48**3 * 8 * 4


def test_a_faster_link_makes_a_shorter_step(config):
    memory = 100 * MIB
    slow, fast = (
        forecast(config, DEVICES[name], memory_bytes=memory, allowed=["swap"])
        for name in ("v100-pcie3", "v100-nvlink2")
    )
    assert (slow.fits, fast.fits, slow.fits_without) == (True, True, False)
    assert fast.plan.step_seconds < slow.plan.step_seconds
    assert fast.plan.exposed_seconds < slow.plan.exposed_seconds


LOOPS = """
import keras
from keras import layers as L


def convolutional(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    slices = L.ConvLSTM2D(4, 3, padding="same", return_sequences=True)(image)
    return keras.Model(image, L.Conv3D(num_classes, 1)(slices))


def bidirectional(*, image_shape, num_classes):
    image = keras.Input(image_shape)
    rows = L.Reshape((image_shape[0], -1))(image)
    rows = L.Bidirectional(L.LSTM(image_shape[1], return_sequences=True))(rows)
    return keras.Model(image, L.Conv2D(num_classes, 1)(L.Reshape((*image_shape[:2], 2))(rows)))
"""


@pytest.mark.parametrize(
    ("name", "data", "size"), [("convolutional", "tumours", 24), ("bidirectional", "cells", 32)]
)
def test_loops_are_named_since_they_are_not_timed(name, data, size, tmp_path):
    (tmp_path / "net.py").write_text(LOOPS)
    loops = RunConfig(
        data=data,
        data_options={"size": size, "num_cases": 5},
        model=f"{tmp_path}/net.py:{name}",
        replica_batch=1,
    )
    predicted = forecast(loops, DEVICES["v100-pcie3"])
    # The loop and its gradient.
    assert len(predicted.untimed) >= 2
    assert "leave out" in forecast_text(predicted)


def test_what_fits_nowhere_is_said(config):
    assert not forecast(config, DEVICES["v100-pcie3"], memory_bytes=20 * MIB).fits


def test_limits_of_host_and_disk_are_those_of_the_run(config):
    device = DEVICES["v100-pcie3"]

    def plan_within(**limits):
        limited = dataclasses.replace(config, swap="auto", **limits)
        return forecast(limited, device, memory_bytes=100 * MIB, allowed=["swap"]).plan

    free = plan_within()
    some = f"{free.host_bytes // MIB // 2}MiB"
    limited = plan_within(swap_host=some)
    on_disk = plan_within(swap_host=some, swap_disk="/nowhere/that/is/here")
    assert (free.on_disk, limited.on_disk, free.peak_bytes <= free.budget_bytes) == ((), (), True)
    assert limited.host_bytes <= free.host_bytes / 2
    assert limited.peak_bytes > limited.budget_bytes
    assert on_disk.peak_bytes <= on_disk.budget_bytes
    assert on_disk.disk_bytes > 0
    assert on_disk.step_seconds > free.step_seconds
    # The plan says how much would do. The replicas of a process share a limit.
    assert limited.wanted_host_bytes > limited.host_budget_bytes
    four = {"num_replicas": 4, "global_batch": None}
    shared = plan_within(swap_host="64MiB", backend="mirrored", **four)
    assert shared.host_budget_bytes == 16 * MIB
    unshared = plan_within(swap_host="64MiB", backend="horovod", **four)
    assert unshared.host_budget_bytes == 64 * MIB


def test_plan_and_picture_from_the_command_line(tmp_path, capsys):
    study = tmp_path / "run.toml"
    study.write_text(CONFIG)
    saved, picture = tmp_path / "plan.json", tmp_path / "memory.svg"
    plan = ["swap", "plan", str(study), "--device", "v100-pcie3", "--memory", "100MiB"]
    assert cli.main([*plan, "--save", str(saved)]) == exit_codes.OK
    shown = capsys.readouterr().out
    assert "It fits with swapping: a step takes" in shown
    (read,) = read_plans(saved)
    assert read == Plan.from_json(saved.read_text())
    assert cli.main(["swap", "show", str(saved), "--out", str(picture)]) == exit_codes.OK
    assert "recomputed" in capsys.readouterr().out
    drawing = picture.read_text()
    assert "everything kept" in drawing
    assert "this plan" in drawing
    assert cli.main([*plan, "--json", "--replica_batch", "1"]) == exit_codes.OK
    table = json.loads(capsys.readouterr().out)
    assert (table["samples"], table["fits"]) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "v100-nvlink"], "Did you mean 'v100-nvlink2'?"),
        (["--device", "gh200", "--memory", "0.5"], "an amount such as 40GiB"),
        (["--device", "gh200", "--memory", "much"], "is not an amount of memory"),
        (["--device", "gh200", "--modell", "unet"], "'model'"),
        (
            ["--device", "gh200", "--backend", "horovod", "--stages", "2"],
            "stages = 2: a step of a network in stages is not predicted here.",
        ),
    ],
)
def test_wrong_options_of_plan_are_refused(arguments, message, tmp_path, capsys):
    study = tmp_path / "run.toml"
    study.write_text(CONFIG)
    assert cli.main(["swap", "plan", str(study), *arguments]) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "A run with --swap writes it"),
        ("{", "holds no plan of this version"),
        ('{"plans": []}', "ended before its first step"),
        ('{"decisions": {}, "colour": 1}', "holds no plan of this version"),
    ],
)
def test_files_without_a_plan_are_refused(content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / "swap.json").write_text(content)
    assert cli.main(["swap", "show", str(tmp_path)]) == exit_codes.BAD_INPUT
    assert message in capsys.readouterr().err
