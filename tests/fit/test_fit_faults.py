"""What a script gets wrong ends it with a line that says what to do, before its first step."""

import os
import subprocess
import sys

import pytest
from paths import ROOT

FOLDER = ROOT / "benchmarks/fit/faults"
# By script: the backend, and words of the error.
FAULTS = {
    "unseeded_generator": ("multiworker", "The processes read different batches."),
    "shuffled_by_process": ("multiworker", "The processes read different batches."),
    "model_before": ("mirrored", "after TensorFlow took its devices"),
    # Keras's own words.
    "compile_distribute": ("mirrored", "compile() got an unexpected keyword argument 'distribute'"),
    "other_keras_backend": ("mirrored", "Start with KERAS_BACKEND=tensorflow"),
    "tf_keras_imported": ("mirrored", "Import keras (Keras 3)"),
}
NO_FAULTS = ("unseeded_shuffle",)


def run(name, backend):
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = ["--backend", backend, "--num_replicas", "2", str(FOLDER / f"{name}.py")]
    return subprocess.run(
        [sys.executable, "-m", "tfunet", "run", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_the_script_and_says_what_to_do(name):
    backend, words = FAULTS[name]
    ended = run(name, backend)
    assert ended.returncode != 0, ended.stdout
    assert "trained" not in ended.stdout
    assert words in " ".join(ended.stderr.split())


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", NO_FAULTS)
def test_a_script_without_a_seed_is_no_fault(name):
    ended = run(name, "multiworker")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("trained") == 1


def test_every_script_of_a_fault_is_run():
    assert {file.stem for file in FOLDER.glob("*.py")} == {*FAULTS, *NO_FAULTS}
