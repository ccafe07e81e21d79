"""The learning-rate range test: what is advised, and that the steps have the rates."""

import numpy as np
import pytest

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.training.rate_range import RateRange, measure_rates


def test_a_tenth_of_the_rate_of_the_lowest_loss_is_advised():
    rates = np.geomspace(1e-6, 1, 200)
    # Flat, then falling most at 1e-3, lowest at 1e-1, then up.
    fall = 1 / (1 + np.exp(-4 * np.log10(rates / 1e-3)))
    losses = 2 - fall + np.maximum(0, np.log10(rates / 1e-1)) * 2
    noise = np.random.default_rng(0).normal(0, 0.01, 200)
    found = RateRange(rates=tuple(rates), losses=tuple(losses + noise))
    assert 0.05 < found.best < 0.3
    assert found.advised == pytest.approx(found.best / 10, rel=0.05)
    # The mean over the last steps lags behind by about ten of them.
    assert 5e-4 < found.steepest < 5e-3
    assert not found.has_diverged
    assert f"Try learning_rate = {found.advised:g}" in str(found)
    blown = RateRange(rates=tuple(rates[:4]), losses=(1.0, 0.9, 1.1, 4.0))
    assert blown.has_diverged
    assert "The loss diverged at" in str(blown)


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
