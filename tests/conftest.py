"""Quiet TensorFlow, no GPU unless a test asks for one, fast tests first."""

import os
import signal

import pytest
from hypothesis import settings

# The same examples in every run: a change turns a test red, never the day.
settings.register_profile("tfunet", derandomize=True, deadline=None)
settings.load_profile("tfunet")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# A shell has what it starts in the background ignore these, and so would all that tests start.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        is_interrupt = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if is_interrupt else lambda *_: None)

LATE = ("slow", "multiprocess", "slurm", "gpu")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    def rank(item):
        return max(
            (LATE.index(mark.name) + 1 for mark in item.iter_markers() if mark.name in LATE),
            default=0,
        )

    items.sort(key=rank)


@pytest.fixture(autouse=True)
def _environment_stays():
    """Undo what a command set for the TensorFlow that it loads: other tests start processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
