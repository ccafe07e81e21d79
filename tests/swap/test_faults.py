"""What goes wrong with large-model support is refused or said, and nothing of it stays."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from faulty import batches, compiled
from paths import ROOT, SUPPORT
from small_fits import fitted, support
from supported_runs import assert_same, namespace, no_file_beyond, trained

from tfunet.config.run import RunConfig
from tfunet.swap import LargeModelSupport
from tfunet.swap.measure import profile
from tfunet.swap.plan.costs import Costs
from tfunet.swap.plan.plan import Plan
from tfunet.swap.report.text import limits_line
from tfunet.swap.storage.host import NumpyMemory

MIB = 2**20


# --- Disk -----------------------------------------------------------------------------------------


def faulty(*arguments, mount=None, **environment):
    """Return what `faulty.py` prints, with a file system mounted at its folder."""
    command = [sys.executable, str(SUPPORT / "faulty.py"), *map(str, arguments)]
    if mount is not None:
        shell = f"mount -t {mount} none {arguments[0]} && exec " + '"$@"'
        command = [*namespace(), "sh", "-c", shell, "sh", *command]
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.multiprocess
def test_full_disk_ends_training_before_its_first_step(tmp_path, same_arithmetic):
    results = faulty(tmp_path, "--full", mount="tmpfs -o size=64m", **same_arithmetic)
    assert f"1.0 MiB for swapped tensors do not fit in {tmp_path}" in results["error"]
    assert "0.5 MiB are free" in results["error"]
    assert "Free space there" in results["error"]
    assert (results["losses"], results["unchanged"], results["restored"]) == ([], True, True)
    # When the other process is gone there is room; the first attempt has kept none.
    assert results["again"] == results["plain"]
    assert results["left"] == []


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("mount", "is_direct"),
    [
        # Direct or not, as this kernel has it.
        ("tmpfs -o size=64m", None),
        # This one never takes direct reads and writes.
        ("ramfs", False),
    ],
)
def test_losses_are_the_same_on_any_file_system(mount, is_direct, tmp_path, same_arithmetic):
    results = faulty(tmp_path, mount=mount, **same_arithmetic)
    assert results["losses"] == results["plain"]
    assert results["copies"] == 2 * len(results["losses"])
    assert results["left"] == []
    assert is_direct in (None, results["direct"])


@pytest.mark.multiprocess
def test_read_only_file_system_is_refused(tmp_path):
    results = faulty(tmp_path, mount="tmpfs -o ro")
    assert "Nothing can be written" in results["refused"]
    assert "Read-only file system" in results["refused"]


def test_limit_on_file_sizes_is_a_full_disk(tmp_path):
    with no_file_beyond(2**19), pytest.raises(OSError, match="do not fit in") as failure:
        fitted([support(tmp_path)])
    assert str(tmp_path) in str(failure.value)
    assert not list(tmp_path.iterdir())


def test_disk_that_fails_in_the_middle_of_training_ends_it_with_its_name(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = compiled()
    image, mask = batches()
    steps = []

    def fail(batch, logs):
        steps.append(batch)
        if len(steps) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))

    failing = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    try:
        with pytest.raises(OSError, match="in the middle of a step: File too large") as failure:
            model.fit(image, mask, batch_size=2, verbose=0, callbacks=[support(tmp_path), failing])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(tmp_path) in str(failure.value)
    assert len(steps) == 2
    assert "train_step" not in vars(model)
    assert model.train_function is None
    assert not _files_of_this_process(tmp_path)
    model.fit(image, mask, batch_size=2, verbose=0)


@pytest.mark.multiprocess
def test_process_that_is_killed_in_the_middle_of_a_step_leaves_nothing(tmp_path, same_arithmetic):
    arguments = [sys.executable, str(SUPPORT / "faulty.py"), str(tmp_path), "--hold"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **same_arithmetic}
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert json.loads(process.stdout.readline()) == {"holds": process.pid}
            # It is in a step, and has its tensors in a file there that has no name.
            (file,) = _files(process.pid, tmp_path)
            assert file.stat().st_size >= MIB
            assert file.stat().st_nlink == 0
            assert not list(tmp_path.iterdir())
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
    results = faulty(tmp_path, **same_arithmetic)
    assert results["losses"] == results["plain"]
    assert results["left"] == []


def test_disk_is_free_after_training(tmp_path):
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(len(_files_of_this_process(tmp_path)))
    )
    fitted([support(tmp_path), watch])
    assert seen == [1, 1, 1, 1]
    assert not _files_of_this_process(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": 0, "disk": "missing"}, "does not exist. Create it"),
        ({"host": 0, "disk": "file"}, "is a file, not a folder"),
        ({"host": 0, "disk": "/proc"}, "Nothing can be written"),
        ({"host": 0, "disk": "$UNKNOWN_HERE"}, "does not exist"),
        ({"disk": "folder"}, "Give host too"),
        ({"disk_size": "1GiB"}, "needs disk: give a folder too"),
        ({"host": "auto"}, "host must be an amount such as '64GiB'"),
        ({"host": "0.5"}, "host must be an amount"),
        ({"host": 0, "disk": "folder", "disk_size": "lots"}, "disk_size must be"),
    ],
)
def test_wrong_limits_are_refused_before_anything_is_traced(options, message, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    options = {key: tmp_path / value if key == "disk" else value for key, value in options.items()}
    with pytest.raises(ValueError, match=message):
        LargeModelSupport(0, **options)


def test_folder_that_has_gone_is_refused_when_training_begins(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    callback = support(folder)
    folder.rmdir()
    with pytest.raises(ValueError, match="does not exist"):
        fitted([callback])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"swap_host": "1GiB"}, "Give swap too"),
        ({"swap_disk": "/tmp"}, "Give swap too"),
        ({"swap": "auto", "swap_disk": "/tmp"}, "Give swap_host too"),
        ({"swap": "auto", "swap_host": "0", "swap_disk": ""}, "for the current one"),
        ({"swap": "auto", "swap_host": "half"}, "swap_host must be an amount"),
        ({"swap": "auto", "swap_host": "1GiB", "swap_disk_size": "1GiB"}, "Name the folder too"),
        (
            {"swap": "auto", "swap_host": "0", "swap_disk": "/tmp", "swap_disk_size": "0.5"},
            "swap_disk_size must be an amount",
        ),
    ],
)
def test_wrong_limits_of_a_run_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**values)


def test_run_without_support_has_no_limits_of_it():
    values = {"swap_host": "1GiB", "swap_disk": "/tmp", "swap_disk_size": "1GiB"}
    assert RunConfig(swap="none", **values) == RunConfig()


# --- Limits -----------------------------------------------------------------------------------


def test_limit_on_host_memory_that_is_too_low_is_what_the_line_names(capsys):
    callback = support(host="512KiB", verbose=1)
    _, losses = fitted([callback])
    (plan,) = callback.plans
    assert plan.host_bytes <= 2**19
    assert plan.wanted_host_bytes > 2**19
    assert plan.wanted_peak_bytes < plan.peak_bytes
    shown = capsys.readouterr().out
    assert shown.count("The limit on host memory stands in the way: with 1 MiB for the") == 1
    assert losses == fitted([])[1]


def test_without_room_on_the_host_it_recomputes_instead(monkeypatch):
    def measure(step, ops, tier, known):
        # Nothing is cheaper to compute again, whatever the clock says.
        seconds = [1.0] * len(step.ops)
        return Costs(op_seconds=seconds, out_bytes_per_second=1e9, in_bytes_per_second=1e9), {}

    monkeypatch.setattr(profile, "measure", measure)
    results = []
    for limits in ({}, {"host": 0}):
        ways = ["swap", "recompute"]  # Slabs would change the last bits.
        callback = LargeModelSupport(
            0, weights="none", threshold_bytes=256, verbose=0, allowed=ways, **limits
        )
        results.append((trained("unet 3D", [callback]), set(callback.plans[-1].decisions.values())))
    (free, with_room), (limited, without_room) = results
    assert "swap" in with_room
    assert without_room == {"recompute"}
    assert_same(limited, free)
    assert_same(limited, trained("unet 3D", []))


def test_limit_on_the_disk_is_kept(tmp_path):
    callback = support(tmp_path, disk_size="512KiB")
    fitted([callback])
    (plan,) = callback.plans
    assert plan.disk_bytes <= 2**19
    assert plan.wanted_host_bytes
    assert "limits on host memory and disk stand in the way" in limits_line(plan)


def test_plan_with_tensors_on_disk_is_followed_again_or_asks_for_one(tmp_path):
    keras.backend.clear_session()
    first = support(tmp_path)
    _, losses = fitted([first])
    plan = Plan.from_json(first.plans[-1].to_json())
    assert plan.on_disk
    keras.backend.clear_session()
    again = LargeModelSupport("8GiB", plan=plan, host=0, disk=tmp_path, verbose=0)
    assert fitted([again])[1] == losses
    keras.backend.clear_session()
    with pytest.raises(ValueError, match="give disk, a folder, too"):
        fitted([LargeModelSupport("8GiB", plan=plan, verbose=0)])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"host": "64KiB"}, "MiB of host memory, and host leaves 0.1 MiB"),
        ({"host": 0, "disk_size": "64KiB"}, "MiB on disk, and disk_size leaves 0.1 MiB"),
    ],
)
def test_given_plan_does_not_pass_over_the_limits(limits, message, tmp_path):
    keras.backend.clear_session()
    disk = {"disk": tmp_path} if "disk_size" in limits else {}
    first = support(tmp_path) if disk else support()
    fitted([first])
    keras.backend.clear_session()
    with pytest.raises(ValueError, match=message):
        fitted([LargeModelSupport("8GiB", plan=first.plans[-1], verbose=0, **limits, **disk)])


def test_limits_are_recorded_where_all_fits(tmp_path):
    callback = LargeModelSupport("64GiB", host="1GiB", disk=tmp_path, disk_size="2GiB", verbose=0)
    fitted([callback])
    assert not callback.plans[-1].decisions
    assert (callback.plans[-1].host_budget_bytes, callback.plans[-1].disk_budget_bytes) == (
        2**30,
        2**31,
    )


@pytest.mark.parametrize("on_disk", [True, False])
def test_step_that_is_traced_again_takes_no_more_of_host_and_disk(on_disk, tmp_path):
    model = compiled()
    image, mask = batches()
    held = []
    with support(tmp_path if on_disk else None).on(model) as callback:
        for num in (1, 2, 3, 4):
            model.make_train_function(force=True)
            model.train_on_batch(image[:num], mask[:num])
            if on_disk:
                (file,) = _files_of_this_process(tmp_path)
                held.append(file.stat().st_size)
            else:
                held.append(sum(array.nbytes for array in callback._room.host._arrays.values()))
    assert len(callback.plans) == 4
    assert held == [plan.disk_bytes if on_disk else plan.host_bytes for plan in callback.plans]
    assert sorted(set(held)) == held


def test_steps_in_turn_have_one_set_of_arrays():
    memory = NumpyMemory()
    number = np.dtype(np.float32)
    first = memory.array(1, "a", (2, 3), number)
    memory.array(1, "b", (4,), number)
    assert memory.array(1, "a", (2, 3), number) is first
    assert memory.array(2, "c", (2, 3), number) is first
    # In the place of b; and what nobody took goes when the step begins again.
    memory.array(2, "d", (3,), number)
    assert not memory._spare
    memory.array(3, "e", (1,), number)
    assert len(memory._spare) == 1
    memory.array(3, "e", (1,), number)
    assert (memory._spare, list(memory._arrays)) == ([], ["e"])


# --- XLA ------------------------------------------------------------------------------------------


def test_xla_that_is_forced_on_is_refused(monkeypatch):
    tf.config.optimizer.set_jit(True)
    try:
        with pytest.raises(ValueError, match="set_jit has it compile any model"):
            fitted([support()])
    finally:
        tf.config.optimizer.set_jit(False)
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_cpu_global_jit --tf_xla_auto_jit=2")
    with pytest.raises(ValueError, match="TF_XLA_FLAGS=--tf_xla_auto_jit=2"):
        fitted([support()])
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=0")
    fitted([support()])


def _files(process, folder):
    """Return the open files of a process that lie in a folder, named or not."""
    files = []
    for path in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(path).startswith(f"{folder}/"):
                files.append(path)
    return files


def _files_of_this_process(folder):
    return _files(os.getpid(), folder)
