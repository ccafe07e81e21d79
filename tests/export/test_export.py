"""Records, of the measured runs, in the forms that other programs read."""

import json
import shutil
from statistics import fmean

import pytest
import tensorflow as tf
from paths import ROOT
from synthetic_sweep import MIB, write_swap_sweep

from tfunet.bench.records.run_tables import read_steps
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.cli import main
from tfunet.export.mlperf import PREFIX, mlperf_lines
from tfunet.export.tensorboard import write_events
from tfunet.files.table import read_rows
from tfunet.record import RunFolder

SWEEP = ROOT / "logs/reference/sem"


@pytest.fixture(scope="module")
def trial():
    return next(trial for trial in read_sweep(SWEEP).trials if trial.config.backend == "horovod")


def entries(trial):
    lines = list(mlperf_lines(trial))
    assert all(line.startswith(PREFIX) for line in lines)
    return [json.loads(line.removeprefix(PREFIX)) for line in lines]


def test_mlperf_lines_tell_the_run_in_order(trial):
    lines = entries(trial)
    assert [line["time_ms"] for line in lines] == sorted(line["time_ms"] for line in lines)
    values = {line["key"]: line["value"] for line in lines}
    assert values["global_batch_size"] == trial.config.global_samples
    assert values["eval_samples"] == len(RunFolder(trial.folder).read_split()["validation"])
    assert values["eval_accuracy"] == pytest.approx(trial.result.mean_dice)
    epochs = read_rows(trial.folder / "epochs.csv")
    spent = [line["time_ms"] for line in lines if line["key"] in ("epoch_start", "epoch_stop")]
    assert spent[1] - spent[0] == pytest.approx(1000 * float(epochs[0]["training_seconds"]), abs=1)
    assert len(spent) == 2 * len(epochs)
    assert lines[-1]["key"] == "run_stop"
    assert lines[-1]["metadata"] == {"status": "success"}


def test_mlperf_lines_of_a_run_that_failed_end_as_aborted(trial, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trial.folder, folder)
    (folder / "result.json").unlink()
    (one,) = read_sweep(folder).trials
    assert entries(one)[-1]["metadata"] == {"status": "aborted"}


def test_every_trial_of_a_sweep_is_exported_for_tensorboard(trial, tmp_path, capsys):
    assert main(["export", str(SWEEP), "--to", "tensorboard", "--out", str(tmp_path)]) == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == sorted(trial.id for trial in read_sweep(SWEEP).trials)
    (path,) = (tmp_path / trial.id).iterdir()
    assert str(path) in capsys.readouterr().out
    events = [
        event for event in tf.compat.v1.train.summary_iterator(str(path)) if event.summary.value
    ]
    scalars = {}
    for event in events:
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    steps = read_steps(trial.folder)
    losses = scalars["train/loss"]
    assert [step for step, _ in losses] == steps["step"]
    assert [loss for _, loss in losses] == pytest.approx(steps["loss"])
    assert len(scalars["train/step_seconds"]) == len(losses) - 1  # Less the step that traces.
    regions = ("axon", "myelin")
    dice = fmean(scalars[f"validation/dice_{region}"][-1][1] for region in regions)
    assert dice == pytest.approx(trial.result.mean_dice)
    assert [event.wall_time for event in events] == sorted(event.wall_time for event in events)


def swap_scalars(path):
    """Return (step, value) of what an event file tells of large-model support."""
    collected = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            if value.tag.startswith("swap/"):
                collected.setdefault(value.tag, []).append((event.step, value.simple_value))
    return collected


def test_swap_traffic_is_exported_for_tensorboard(tmp_path):
    write_swap_sweep(tmp_path / "sweep")
    traced, *_ = sorted((tmp_path / "sweep").glob("single-*24mib*"))
    lines = ["step,name,begin_seconds,seconds", "0,start,90,9", "1,step,100,5", "1,swap out,101,4"]
    lines += ["2,step,110,5", "2,swap out,111,0.5", "2,swap out,112,0.25", "2,swap in,113,0.125"]
    (traced / "spans-0.csv").write_text("".join(f"{line}\n" for line in lines))
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "sweep"), "--to", "tensorboard", "--out", str(out)]) == 0
    by_name = {path.parent.name: swap_scalars(path) for path in out.glob("*/events*")}
    # The larger of two plans counts, at the end of each epoch.
    ends = [int(row["steps"]) for row in read_rows(traced / "epochs.csv")]
    planned = {
        "swap/copied_out_bytes": 20 * MIB,
        "swap/copied_in_bytes": 25 * MIB,
        "swap/planned_hidden_seconds": 0.03,
        "swap/planned_exposed_seconds": 0.02,
        "swap/planned_peak_bytes": 20 * MIB,
    }
    measured = {"swap/measured_peak_bytes": 21 * MIB}
    one = by_name.pop(traced.name)
    # The step that traces is left out.
    assert one.pop("swap/measured_out_seconds") == [(2, 0.75)]
    assert one.pop("swap/measured_in_seconds") == [(2, 0.125)]
    for name, value in (planned | measured).items():
        assert one.pop(name) == [(end, pytest.approx(value)) for end in ends]
    assert one == {}
    for name, others in by_name.items():  # Runs that were not traced.
        has_support, is_measured = "24mib" in name, name.startswith("single")
        told = planned | (measured if is_measured else {}) if has_support else {}
        assert sorted(others) == sorted(told)


def test_a_step_of_several_passes_copies_as_many_times(tmp_path):
    write_swap_sweep(tmp_path)
    run = next(tmp_path.glob("single-*24mib*"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "accumulation": 2}))
    write_events(run, tmp_path / "out")
    scalars = swap_scalars(next((tmp_path / "out").iterdir()))
    assert {value for _, value in scalars["swap/copied_out_bytes"]} == {40 * MIB}
    assert {value for _, value in scalars["swap/planned_peak_bytes"]} == {20 * MIB}


@pytest.mark.parametrize(
    ("form", "words"), [("perfetto", "--trace true"), ("mlperf", "a finished epoch")]
)
def test_folder_without_what_is_asked_for_says_so(form, words, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    config = next(SWEEP.glob("single-*/config.json"))
    shutil.copy(config, tmp_path / "run")
    assert main(["export", str(tmp_path), "--to", form]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_perfetto_file_is_written_beside_the_run(tmp_path, capsys):
    run = tmp_path / "one"
    shutil.copytree(next(SWEEP.glob("single-*")), run)
    (run / "spans-0.csv").write_text("step,name,begin_seconds,seconds\n1,step,1700000000.5,0.25\n")
    assert main(["export", str(run), "--to", "perfetto"]) == 0
    path = run / "perfetto" / "one.json"
    assert str(path) in capsys.readouterr().out
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["dur"] for event in events if event["ph"] == "X"] == [250_000.0]
