"""What a step would need and take on a device that is only described."""

import dataclasses

import pytest

from tfunet import cli, exit_codes
from tfunet.config.run import RunConfig
from tfunet.performance.devices import DEVICES
from tfunet.performance.forecast import forecast

MIB = 2**20


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


def test_devices_share_out_states(config):
    def resident_bytes(optimizer, **changes):
        changed = dataclasses.replace(config, optimizer=optimizer, optimizer_options={}, **changes)
        return forecast(changed, DEVICES["h100-pcie5"]).resident_bytes

    weights, with_states = resident_bytes("sgd"), resident_bytes("adam")
    shared = resident_bytes(
        "adam", backend="horovod", num_replicas=2, global_batch=4, zero=1, swap="auto"
    )
    assert shared - weights == pytest.approx((with_states - weights) / 2, rel=1e-3)


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
