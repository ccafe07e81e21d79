"""Sweeps whose trials are a stand-in."""

from paths import SUPPORT

FAKE = SUPPORT / "fake_trial.py"


def quiet():
    return {"median_seconds": 0.01, "spread": 0.02}
