"""The secret of a run: drawn once, the same in all processes, and readable by nobody else."""

import os
import stat
import subprocess
import sys

import pytest
from paths import ROOT

from tfunet.process.secret import forget, shared_secret


def test_all_processes_of_a_run_have_one_secret(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tfunet.process.secret import shared_secret; "
        "print(shared_secret(Path(sys.argv[1]) / 'run', {}).decode())"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(4)
    ]
    said = {process.communicate(timeout=60)[0].strip() for process in started}
    assert len(said) == 1
    assert len(said.pop()) == 64
    assert stat.S_IMODE((tmp_path / "run" / ".secret").stat().st_mode) == 0o600


def test_another_attempt_draws_another_secret(tmp_path):
    first = shared_secret(tmp_path, {})
    assert shared_secret(tmp_path, {}) == first
    forget(tmp_path)
    assert shared_secret(tmp_path, {}) != first


def test_the_environment_overrides_the_file(tmp_path):
    given = {"TFUNET_SECRET": "drawn by the user once"}
    assert shared_secret(tmp_path, given) == b"drawn by the user once"
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"at least 16 characters .* got 3"):
        shared_secret(tmp_path, {"TFUNET_SECRET": "abc"})


def known(path, mode=0o600):
    path.write_text("0" * 64)
    path.chmod(mode)


def linked(path):
    known(path.with_name("theirs"))
    path.symlink_to(path.with_name("theirs"))


def foreign(path):
    known(path)
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda path: known(path, 0o644), "others can read it"),
        (linked, "it is a symbolic link"),
        (os.mkfifo, "it is a pipe"),
        pytest.param(
            foreign,
            "belongs to another user",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
        ),
    ],
)
def test_a_secret_that_a_stranger_put_there_is_refused(plant, words, tmp_path):
    plant(tmp_path / ".secret")
    with pytest.raises((ValueError, OSError), match=words):
        shared_secret(tmp_path, {})
