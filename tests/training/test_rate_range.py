"""The learning-rate range test: what is advised, and that the steps have the rates."""

import numpy as np
import pytest

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.training.rate_range import RateRange, measure_rates

# Losses of `tfunet rate --rates 40` on micrographs of membranes, with a small U-Net.
MEMBRANES = (
    1.71,
    1.75,
    1.68,
    1.68,
    1.73,
    1.71,
    1.68,
    1.72,
    1.66,
    1.73,
    1.72,
    1.72,
    1.69,
    1.69,
    1.71,
    1.7,
    1.69,
    1.64,
    1.7,
    1.62,
    1.6,
    1.58,
    1.49,
    1.44,
    1.41,
    1.35,
    1.26,
    1.18,
    1.05,
    0.91,
    0.84,
    0.74,
    0.71,
    0.65,
    0.79,
    0.94,
    1.16,
    1.13,
    1.28,
    1.3,
)


def test_a_tenth_of_the_rate_of_the_lowest_loss_is_advised():
    rates = np.geomspace(1e-6, 1, 200)
    # Flat, then falling most at 1e-3, lowest at 1e-1, then up.
    fall = 1 / (1 + np.exp(-4 * np.log10(rates / 1e-3)))
    losses = 2 - fall + np.maximum(0, np.log10(rates / 1e-1)) * 2
    noise = np.random.default_rng(0).normal(0, 0.01, 200)
    found = RateRange(rates=tuple(rates), losses=tuple(losses + noise))
    assert 0.05 < found.best < 0.15
    assert found.advised == pytest.approx(found.best / 10, rel=0.05)
    assert 7e-4 < found.steepest < 1.5e-3
    assert not found.has_diverged
    assert f"Try learning_rate = {found.advised:g}" in str(found)
    blown = RateRange(rates=tuple(rates[:4]), losses=(1.0, 0.9, 1.1, 4.0))
    assert blown.has_diverged
    assert "The loss diverged at" in str(blown)


@pytest.mark.parametrize("steps", [10, 12, 40, 100])
def test_the_smoothed_loss_does_not_lag(steps):
    rates = np.geomspace(1e-6, 1, steps)
    # A valley whose walls are alike: its lowest point is the middle, from either side.
    losses = np.abs(np.log10(rates / 1e-3))
    found = RateRange(rates=tuple(rates), losses=tuple(losses))
    assert found.smoothed == pytest.approx(found.smoothed[::-1])
    assert 0.4e-3 < found.best < 2.5e-3
    # A line stays where it is.
    line = RateRange(rates=tuple(rates), losses=tuple(np.log10(rates)))
    assert line.smoothed == pytest.approx(np.log10(rates))


def test_the_advice_for_a_real_run_is_a_rate_that_trained_well():
    """Membranes: after four epochs, val_dice was 0.711 at 0.049, 0.738 at 0.012, 0.750 at 0.004."""
    rates = np.geomspace(1e-6, 1, 40)
    found = RateRange(rates=tuple(rates), losses=MEMBRANES)
    assert 0.004 <= found.advised <= 0.012
    assert found.smoothed[30:36] == pytest.approx(MEMBRANES[30:36], abs=0.15)


def test_the_command_trains_at_rising_rates_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(
        'data = "cells"\ndata_options = { num_cases = 6, size = 32 }\nreplica_batch = 2\n'
        'model_options = { filters = 4, levels = 1 }\nlearning_rate_schedule = "cosine"\n'
        'tiling = [2, 1]\nloss = "crossentropy"\n'
    )
    assert main(["rate", "small.toml", "--rates", "12", "--optimizer", "sgd"]) == exit_codes.OK
    said = capsys.readouterr().out
    assert "Try learning_rate = " in said
    assert "learning rate" in (tmp_path / "rates.svg").read_text()
    assert main(["rate", "small.toml", "--lowest", "1", "--highest", "0.1"]) == exit_codes.BAD_INPUT
    assert "in order" in capsys.readouterr().err


def test_a_huge_rate_ends_the_test(tmp_path, monkeypatch):
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    config = RunConfig(
        data="cells",
        data_options={"num_cases": 6, "size": 32},
        model_options={"filters": 4, "levels": 2, "normalization": "none"},
        optimizer="sgd",
        replica_batch=2,
        # It is trained on one device all the same.
        backend="multiworker",
        stages=2,
        micro_batches=2,
        recompute=True,
    )
    found = measure_rates(config, tmp_path / "run", lowest=1e-3, highest=1e9, steps=25)
    assert len(found.rates) < 25
    assert found.rates[0] == pytest.approx(1e-3)
    ratios = np.divide(found.rates[1:], found.rates[:-1])
    assert ratios == pytest.approx(10 ** (12 / 24))
