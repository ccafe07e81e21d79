"""Quiet TensorFlow, no GPU unless a test asks for one, fast tests first."""

import os

import pytest
from hypothesis import settings

# The same examples in every run: a change turns a test red, never the day.
settings.register_profile("tfunet", derandomize=True, deadline=None)
settings.load_profile("tfunet")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

LATE = ("slow", "multiprocess", "slurm", "gpu")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    def rank(item):
        return max(
            (LATE.index(mark.name) + 1 for mark in item.iter_markers() if mark.name in LATE),
            default=0,
        )

    items.sort(key=rank)
    for item in items:
        if rank(item) >= LATE.index("multiprocess") + 1:
            # Of two pytest workers one starts all other processes: they need the cores in turn.
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(autouse=True)
def _environment_stays():
    """Undo what a command set for the TensorFlow that it loads: other tests start processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
