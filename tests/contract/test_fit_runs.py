"""Keras's own `fit` in a script: what one device gives, on every backend."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import runs
from paths import ROOT

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1200)]
SCRIPT = Path(__file__).with_name("fit_script.py")
BACKENDS = ["mirrored", "multiworker", "horovod"]
# The cases of each backend; no names are all. What the others show hangs on no backend.
FEW = ("rows_left_over", "own_step", "two_optimizers", "written", "half_precision", "backed_up")
CASES = {"mirrored": FEW, "multiworker": (), "horovod": (*FEW, "images")}
TOLERANCE = 1e-6
# Other roundings in low precision; and moments that each replica takes of its own rows.
TOLERANCES = {"half_precision": 1e-2, "brain_floats": 5e-2, "moments_apart": 2.0}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return request.param


@dataclass(frozen=True)
class Fitted:
    """A script that has ended."""

    folder: Path
    exit_code: int
    output: str

    @property
    def results(self):
        """What came out, by name, in each process."""
        return [np.load(path) for path in sorted(self.folder.glob("result-*.npz"))]


def fitted(folder, *cases, backend=None, **variables):
    """Run the script to its end: with `tfunet run`, or with Python alone."""
    launcher = ["-m", "tfunet", "run", "--backend", f"{backend}", "--num_replicas", "2"]
    launcher += ["--out", f"{folder}-logs"]
    done = subprocess.run(
        [sys.executable, *(launcher if backend else []), SCRIPT, folder, *cases],
        cwd=ROOT,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": f"{ROOT}:{SCRIPT.with_name('audit')}",
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=runs.SECONDS,
        check=False,
    )
    return Fitted(folder, done.returncode, done.stdout)


def far_off(found, expected):
    """Return by how much results differ, relative to the largest value, where it is too much.

    For weights and what optimizers keep, the largest one of their model counts.
    """
    assert set(found) == set(expected)
    far, largest = {}, {}
    values = {name: np.asarray(value, "float64") for name, value in expected.items()}
    for name, value in values.items():
        kind = name.rpartition("/")[0]
        # Keys of random numbers are large whole numbers, and measure nothing.
        if "float" in str(expected[name].dtype):
            largest[kind] = max(largest.get(kind, 0), np.abs(value).max(initial=0))
    for name, value in values.items():
        case, _, _ = name.partition("/")
        allowed = TOLERANCES.get(case, TOLERANCE) * largest.get(name.rpartition("/")[0], 0)
        difference = np.abs(np.asarray(found[name], "float64") - value).max(initial=0)
        if not difference <= allowed:
            far[name] = difference
    return far


@pytest.fixture(scope="module")
def alone(contract_folder):
    """The script by `python`."""
    run = fitted(contract_folder / "fit")
    assert run.exit_code == 0, run.output
    return run


@pytest.fixture(scope="module")
def whole(backend, contract_folder):
    folder = contract_folder / f"fit-{backend}"
    audit = {"TFUNET_TEST_AUDIT": f"{folder}-audit.txt", "TFUNET_TEST_AUDITED": f"{folder}/"}
    run = fitted(folder, *CASES[backend], backend=backend, **audit)
    assert run.exit_code == 0, run.output
    return run


def test_results_are_those_of_one_device(backend, whole, alone):
    found, expected = whole.results[0], alone.results[0]
    cases = {name.partition("/")[0] for name in found}
    assert cases >= set(CASES[backend] or {name.partition("/")[0] for name in expected})
    own = {name: value for name, value in expected.items() if name.partition("/")[0] in cases}
    assert far_off(found, own) == {}


def test_all_processes_have_the_same_bits(backend, whole):
    chief, *others = whole.results
    assert len(others) == (backend in ("multiworker", "horovod"))
    for other in others:
        assert [key for key in chief if chief[key].tobytes() != other[key].tobytes()] == []


def test_files_are_written_once(whole, alone):
    audit = Path(f"{whole.folder}-audit.txt")
    lines = [line.split(" ", 1) for line in audit.read_text().splitlines()]
    assert {index for index, path in lines if "written" in path} == {"0"}
    names, expected = (
        sorted(f"{path.parent.relative_to(run.folder)}/{path.suffix}" for path in files(run))
        for run in (whole, alone)
    )
    assert names == expected
    logs = [(run.folder / "written/log.csv").read_text().splitlines() for run in (whole, alone)]
    assert [len(rows) for rows in logs] == [3, 3]


def files(run):
    return [path for path in (run.folder / "written").rglob("*") if path.is_file()]


def test_progress_is_told_once(backend, whole):
    assert whole.output.count("Epoch 1/2\n") == 1
    assert whole.output.count(f"tfunet: 2 replicas of the backend {backend}") == 1
    for path in Path(f"{whole.folder}-logs").glob("log-[1-9].txt"):
        assert "Epoch" not in path.read_text()


def test_killed_process_ends_the_script_and_is_named_and_it_goes_on_to_the_same_bits(
    backend, whole, contract_folder
):
    folder, last = contract_folder / f"fit-{backend}-killed", len(whole.results) - 1
    killed = fitted(folder, "backed_up", backend=backend, TFUNET_TEST_KILL=str(last))
    ended = time.time()
    assert killed.exit_code == 3
    name = f"tfunet: process {last} of {len(whole.results)} was killed by SIGKILL"
    assert name in killed.output
    # Unnoticed, the others would wait for hang_seconds.
    (backup,) = folder.glob("backup/*.json")
    assert ended - backup.stat().st_mtime < 100
    resumed = fitted(folder, "backed_up", backend=backend)
    assert resumed.exit_code == 0, resumed.output
    ours, expected = resumed.results[0], whole.results[0]
    assert ours.files
    assert [key for key in ours if ours[key].tobytes() != expected[key].tobytes()] == []


# One backend each: where some are chosen by a parameter, pytest 9.1 makes `whole` twice.
def test_each_replica_takes_a_batch_and_the_rate_is_scaled(backend, whole, contract_folder):
    if backend != "multiworker":
        return
    how = {"batch": "replica", "scale_learning_rate": True}
    run = fitted(
        contract_folder / f"fit-{backend}-in-batches",
        "in_batches",
        backend=backend,
        TFUNET_TEST_DISTRIBUTE=json.dumps(how),
        TFUNET_TEST_BATCH=json.dumps([2, 0.05]),
    )
    assert run.exit_code == 0, run.output
    expected = {key: whole.results[0][key] for key in run.results[0]}
    assert expected
    assert far_off(run.results[0], expected) == {}


def test_samples_are_cut_over_devices(backend, whole, contract_folder):
    if backend != "horovod":
        return
    run = fitted(
        contract_folder / f"fit-{backend}-cut",
        "images",
        backend=backend,
        TFUNET_TEST_DISTRIBUTE=json.dumps({"split": [2, 1]}),
    )
    assert run.exit_code == 0, run.output
    assert f"tfunet: 1 replica of 2 devices each of the backend {backend}" in run.output
    expected = {key: whole.results[0][key] for key in run.results[0]}
    assert expected
    assert far_off(run.results[0], expected) == {}
