"""Trackers are told of runs, as their records have them; what they cannot do harms no run."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from paths import ROOT

from tfunet.arguments import from_dict
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.cli import main
from tfunet.config.run_keys import TRACKERS
from tfunet.export.tracked_run import TrackedRun, epochs, numbers
from tfunet.export.trackers import open_tracked
from tfunet.files.table import read_rows
from tfunet.record import RunFolder
from tfunet.training.trackers import Trackers

SWEEP = ROOT / "logs/reference/sem"
# MLflow's own server, without the program that starts several of it; it says at which port it is.
SERVER = """
from mlflow.server import app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
# Far more than trackers take to start, which run at the lowest priority, on a loaded machine.
SECONDS = 300


class Notes:
    """A tracker that writes down what it is told."""

    def __init__(self):
        self.told = []

    def begin(self, known):
        self.told.append(("begin", known))
        return "an id"

    def log(self, epoch, step, metrics):
        self.told.append(("log", epoch, step, metrics["loss"]))

    def end(self, *, is_done, metrics):
        self.told.append(("end", is_done, metrics.get("result/steps")))


@pytest.fixture
def offline(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", str(SECONDS))


@pytest.fixture
def sweep(tmp_path, offline):
    """Two trials of a recorded sweep, of which the second has failed."""
    names = [trial.id for trial in read_sweep(SWEEP).trials][:2]
    shutil.copytree(
        SWEEP,
        tmp_path / "study",
        ignore=lambda folder, files: [
            name for name in files if (Path(folder) / name).is_dir() and name not in names
        ],
    )
    (tmp_path / "study" / names[1] / "result.json").unlink()
    return tmp_path / "study", [tmp_path / "study" / name for name in names]


def cut_epochs(folder, count):
    """Leave the first epochs of a run, and return its whole table."""
    path = folder / "epochs.csv"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[: count + 1]))
    return whole


def test_every_epoch_is_told_once_while_a_run_goes_on(sweep):
    _, (folder, _) = sweep
    result = (folder / "result.json").read_text()
    (folder / "result.json").unlink()
    rows = read_rows(folder / "epochs.csv")
    told = [("log", int(row["epoch"]), int(row["steps"]), float(row["loss"])) for row in rows]
    whole = cut_epochs(folder, 1)
    notes = Notes()
    run = TrackedRun(folder=folder, tracker="mlflow", place="here")
    run.tell(notes, is_over=False)
    run.tell(notes, is_over=False)
    assert notes.told == [("begin", None), told[0]]
    # It was killed; another process goes on, and drops rows after its checkpoint meanwhile.
    run.tell(notes, is_over=True)
    assert notes.told[2:] == [("end", False, None)]
    (folder / "epochs.csv").write_text(whole)
    (folder / "result.json").write_text(result)
    again = Notes()
    TrackedRun(folder=folder, tracker="mlflow", place="here").tell(again, is_over=True)
    steps = json.loads(result)["steps"]
    assert again.told == [("begin", "an id"), *told[1:], ("end", True, steps)]
    # Another store knows nothing yet.
    other = Notes()
    TrackedRun(folder=folder, tracker="mlflow", place="there").tell(other, is_over=False)
    assert other.told == [("begin", None), *told]


def test_scores_of_the_data_set_are_told(tmp_path):
    with RunFolder(tmp_path).epochs_table(["cell", "wall"]) as table:
        row = dict.fromkeys(table.columns, 0) | {"epoch": 1, "steps": 5}
        table.append(row | {"dataset_iou": 0.5, "dataset_iou_cell": 0.75, "dataset_dice_wall": ""})
    ((epoch, step, metrics),) = epochs(tmp_path)
    assert (epoch, step) == (1, 5)
    assert (metrics["dataset_iou"], metrics["dataset_iou_cell"]) == (0.5, 0.75)
    assert "dataset_dice_wall" not in metrics
    result = {"miou": 0.5, "dataset_iou": {"cell": 0.75, "wall": None}}
    assert numbers(result) == {"result/miou": 0.5, "result/dataset_iou_cell": 0.75}


def test_a_sweep_is_put_into_a_file_store(sweep, tmp_path, capsys):
    study, (done, failed) = sweep
    command = ["export", str(study), "--to", "mlflow", "--out", str(tmp_path / "store")]
    for _ in range(2):  # The second time, nothing is new.
        assert main(command) == 0
    assert (tmp_path / "store").as_uri() in capsys.readouterr().out

    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "store").as_uri())
    (experiment,) = [found for found in client.search_experiments() if found.name == "study"]
    runs = client.search_runs([experiment.experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    assert sorted(by_name) == sorted([done.name, failed.name])
    assert len(runs) == 2
    assert by_name[done.name].info.status == "FINISHED"
    assert by_name[failed.name].info.status == "FAILED"
    run, config = by_name[done.name], RunFolder(done).read_config()
    assert run.data.params["backend"] == config.backend
    assert run.data.params["model_options.filters"] == str(config.model_options["filters"])
    assert run.data.metrics["result/loss"] == json.loads((done / "result.json").read_text())["loss"]
    for name in ("val_loss", "learning_rate"):
        history = client.get_metric_history(run.info.run_id, name)
        rows = read_rows(done / "epochs.csv")
        expected = [(int(row["steps"]), float(row[name])) for row in rows if row[name]]
        # Epochs without an evaluation have no score.
        assert [(point.step, point.value) for point in history] == expected


def started(names, folder, wait_seconds=SECONDS):
    said = []
    return Trackers(names, folder, said.append, wait_seconds), said


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def told_epochs(file):
    """Return how many epochs a tracker knows, by the file that says so."""
    (known,) = json.loads(file.read_text()).values()
    return known["epochs"]


@pytest.mark.multiprocess
def test_a_run_is_followed_to_its_end(sweep, monkeypatch):
    """By both trackers, each into its own folder."""
    _, (folder, _) = sweep
    whole = cut_epochs(folder, 1)
    trackers, said = started(TRACKERS, folder)
    files = [folder / f"tracked-{name}.json" for name in TRACKERS]
    until(lambda: all(file.exists() for file in files))
    assert [told_epochs(file) for file in files] == [1] * 2
    (folder / "epochs.csv").write_text(whole)
    count = len(list(epochs(folder)))
    assert count > 1
    # While the run goes on: after its end a tracker has seconds.
    until(lambda: [told_epochs(file) for file in files] == [count] * 2)
    trackers.look()
    trackers.end()
    assert said == []

    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (known,) = json.loads(files[0].read_text()).values()
    run = MlflowClient((folder / "mlflow").as_uri()).get_run(known["run"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["epoch"] == count
    (written,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"val_loss" in written.read_bytes()


@pytest.mark.multiprocess
def test_a_server_is_told_and_may_die(sweep, tmp_path, monkeypatch):
    _, (folder, _) = sweep
    store = {
        "_MLFLOW_SERVER_FILE_STORE": (tmp_path / "store").as_uri(),
        "_MLFLOW_SERVER_ARTIFACT_ROOT": (tmp_path / "artifacts").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, **store},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = int(server.stdout.readline())
        whole = cut_epochs(folder, 2)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        trackers, said = started(["mlflow"], folder)
        until((folder / "tracked-mlflow.json").exists)

        from mlflow import MlflowClient

        client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
        experiment = client.get_experiment_by_name("study")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.run_name == folder.name
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [point.value for point in history] == [
            float(row["loss"]) for row in read_rows(folder / "epochs.csv")
        ]
    finally:
        server.kill()
        server.communicate()
    (folder / "epochs.csv").write_text(whole)
    until(lambda: trackers.look() or said)
    trackers.end()
    (line,) = said
    assert "127.0.0.1" in line
    assert not (folder / "mlflow").exists()


@pytest.mark.multiprocess
def test_a_tracker_that_cannot_go_on_is_said_once(sweep, monkeypatch):
    _, (folder, other) = sweep
    # A file is where the folders of both belong.
    for name in TRACKERS:
        (folder / name).write_text("in the way")
    trackers, said = started(TRACKERS, folder)
    until(lambda: trackers.look() or len(said) == len(TRACKERS))
    trackers.look()
    trackers.end()
    assert len(said) == len(TRACKERS)
    for name, line in zip(TRACKERS, sorted(said), strict=True):
        assert line.startswith(f"warning: {name} does not track this run any more: ")
        assert f"tfunet export {folder} --to {name}" in line
        assert str(folder / name) in line

    # A server that takes a request and never answers; then one whose process is killed.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        trackers, said = started(["mlflow"], other, wait_seconds=0.5)
        silent.settimeout(SECONDS)
        with silent.accept()[0]:
            trackers.end()
            trackers.end()
        assert [line.partition("more: ")[2][:31] for line in said] == [
            "it did not end within 0.5 s. No"
        ]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    # Other tests of this process may have left children of theirs.
    others = psutil.Process().children()
    trackers, said = started(["mlflow"], other)
    (follower,) = set(psutil.Process().children()) - set(others)
    follower.kill()
    until(lambda: trackers.look() or said)
    trackers.end()
    assert ["its process ended with code -9" in line for line in said] == [True]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_tracker_is_named_with_its_remedy(name, sweep, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    study, (folder, _) = sweep
    with pytest.raises(ValueError, match=rf"{name} is not installed.*'tfunet\[trackers\]'"):
        open_tracked(name, folder)
    assert main(["export", str(study), "--to", name]) == 2
    assert capsys.readouterr().err.count(f"{name} is not installed") == 2


def test_other_trackers_are_refused():
    with pytest.raises(ValueError, match=r"Unknown tracker 'mflow'\. Did you mean 'mlflow'"):
        from_dict({"track": ["mflow"]})
    with pytest.raises(ValueError, match=r"callbacks = \[\{name = \"TensorBoard\""):
        from_dict({"track": ["tensorboard"]})
    with pytest.raises(ValueError, match="twice: wandb, wandb"):
        from_dict({"track": ["wandb", "wandb"]})
