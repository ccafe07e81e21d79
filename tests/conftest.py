"""Quiet TensorFlow, no GPU unless a test asks for one, fast tests first."""

import gc
import os
import signal
import sys

import numpy as np
import pytest
from hypothesis import settings

# The same examples in every run: a change turns a test red, never the day.
settings.register_profile("tfunet", derandomize=True, deadline=None)
settings.load_profile("tfunet")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# With oneDNN and several threads, the last bit of a gradient depends on which ops TensorFlow makes
# one of, and TensorFlow turns it on by itself on some processors. Read when TensorFlow is imported.
ONEDNN, IS_OURS = "TF_ENABLE_ONEDNN_OPTS", "TFUNET_TEST_ONEDNN"
if ONEDNN not in os.environ:
    os.environ.update({ONEDNN: "0", IS_OURS: "yes"})  # Workers of pytest-xdist inherit both.
_own_onednn = os.environ[ONEDNN]

# A shell has what it starts in the background ignore these, and so would all that tests start.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        is_interrupt = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if is_interrupt else lambda *_: None)

_states = {}  # States of random generators that are global in a module of tests.
# After the fast tests. The longest group first, and at the end tests that any worker takes: with a
# long group last, one worker would be at work and the other have nothing to do.
LATE = ("gpu", "slurm", "multiprocess", "slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    def rank(item):
        return min(
            (LATE.index(mark.name) + 1 for mark in item.iter_markers() if mark.name in LATE),
            default=0,
        )

    for item in items:
        if 0 < rank(item) <= LATE.index("multiprocess") + 1:
            # What a file's tests have trained, and one SLURM, serve all of them: on one worker.
            shared = item.path.parent if item.path.parent.name == "slurm" else item.path
            item.add_marker(pytest.mark.xdist_group(str(shared.relative_to(item.config.rootpath))))
    result = yield  # pytest-xdist reads the groups; pytest puts uses of a fixture side by side.
    items.sort(key=rank)
    return result


def pytest_collection_finish():
    # The modules and tests stay to the end: each of Keras's clear_session would look through them.
    gc.collect()
    gc.freeze()
    # What tests start is as users start it.
    if os.environ.pop(IS_OURS, None):
        del os.environ[ONEDNN]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Draw the same numbers in each test, whichever tests this process has run before.

    One draw rounds far worse than another.
    """
    if keras := sys.modules.get("keras"):
        keras.utils.set_random_seed(1)
    for value in vars(item.module).values():
        if isinstance(value, np.random.Generator):
            # As it was when its module was imported.
            state = _states.setdefault(id(value), value.bit_generator.state)
            value.bit_generator.state = state


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Make a failure of a skipped test where $CI is set: there, nothing may be left out.

    But for what only the kernel can give, and nobody can install.
    """
    report = yield
    is_left_out = report.skipped and not hasattr(report, "wasxfail")
    if is_left_out and os.environ.get("CI") and "namespaces" not in str(call.excinfo.value):
        report.outcome = "failed"
        report.longrepr = f"Left out, which CI does not allow: {call.excinfo.value}"
    return report


def pytest_terminal_summary(terminalreporter):
    """Print why tests failed that passed when they were run again: they are faults, too."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}", red=True)
        terminalreporter.line(report.longreprtext)


@pytest.fixture
def float64():
    """Keras's layers in float64, in which a mistake cannot hide behind rounding."""
    import keras

    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


@pytest.fixture
def same_arithmetic():
    """Variables with which a process that a test starts computes the same bits as this one."""
    return {ONEDNN: _own_onednn}


@pytest.fixture(autouse=True)
def _settings_stay():
    """Undo what a run sets for its process: other tests run in it."""
    keras = sys.modules.get("keras")
    policy = keras and keras.config.dtype_policy()
    yield
    if keras:
        keras.config.set_dtype_policy(policy)
    # TensorFlow has no public name for it.
    if settings_of_ops := sys.modules.get("tensorflow.python.framework.config"):
        settings_of_ops.disable_op_determinism()


@pytest.fixture(autouse=True)
def _environment_stays():
    """Undo what a command set for the TensorFlow that it loads: other tests start processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
