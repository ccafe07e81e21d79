import json
import os
import shutil
from pathlib import Path

import pytest
from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet.bench.launch.sweep_status import status, status_table
from tfunet.bench.records.run_tables import read_cases, read_steps, read_table
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.record import RunFolder

ONE = {"grid": {"backend": ["single"]}, "skip": [], "repeats": 1}


@pytest.fixture
def one_trial(tmp_path):
    (trial,) = write_sweep(tmp_path, make_study(**ONE))
    return tmp_path, trial


def read_one(folder):
    (trial,) = read_sweep(folder).trials
    return trial


def test_a_finished_trial_has_its_numbers(one_trial):
    folder, planned = one_trial
    trial = read_one(folder)
    assert (trial.state, trial.reason, trial.config) == ("done", "", planned.config)
    assert trial.result.images_per_second > 0
    assert trial.result.mean_dice == pytest.approx(trial.result.dice["cell"])
    assert trial.result.peak_device_bytes == ()
    assert trial.environment["packages.tensorflow"] == "2.16.2"


def rewrite(folder, **changes):
    path = folder / "result.json"
    table = json.loads(path.read_text())
    table.update(changes)
    path.write_text(json.dumps({key: value for key, value in table.items() if value != "left out"}))


WRONG_FIELDS = (
    ("steps", "abc"),
    ("steps", True),
    ("images_per_second", True),
    ("images_per_second", 1e300),
    ("synthetic_pairs_seconds", [[]]),
    ("synthetic_pairs_seconds", [[1.0, 2.0, 3.0]]),
    ("alone_seconds", [[]]),
    ("elapsed_seconds", "abc"),
    ("elapsed_seconds", -1),
    ("median_step_seconds", []),
    ("synthetic_share", []),
    ("peak_resident_bytes", [1.5]),
    ("peak_device_bytes", 7),
    ("energy_joules", float("inf")),
    ("dice", {"cell": float("nan")}),
    ("replicas_from_step", [[1]]),
    ("checks", [True]),
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"checks": {"samples": True, "weights": False}}, "correctness checks failed: weights"),
        ({"checks": {"weights": None}}, "correctness checks failed: weights"),
        ({"checks": {}}, "correctness checks are missing"),
        ({"checks": "left out"}, "correctness checks are missing"),
        ({"images_per_second": None}, "no steady step was measured"),
        ({"images_per_second": 0}, "images_per_second must be a positive number, got 0"),
        ({"images_per_second": "fast"}, "must be a positive number, got 'fast'"),
        ({"images_per_second": float("nan")}, "must be a positive number, got nan"),
        ({"num_replicas": 2}, "a run with num_replicas=2, but the plan has 1"),
        ({"schema_version": 7}, "schema_version is 7, and this tfunet reads 1"),
        ({"dice": {"cell": "high"}}, "dice[]: expected float, got str"),
        ({"dice": [1]}, "result.json cannot be used"),
        *(({field: value}, field) for field, value in WRONG_FIELDS),
        # A number of which not even the digits are shown.
        ({"num_replicas": 10**400}, "result.json cannot be used"),
        # A whole file that is torn, or something else.
        *((text, "result.json cannot be used") for text in ("", "{", "[]", "null", '"x"', "{}")),
    ],
    ids=str,
)
def test_a_result_that_cannot_be_trusted_is_one_failed_row(tmp_path, changes, reason):
    first, _ = write_sweep(tmp_path, make_study(**{**ONE, "repeats": 2}))
    if isinstance(changes, str):
        (tmp_path / first.id / "result.json").write_text(changes)
    else:
        rewrite(tmp_path / first.id, **changes)
    bad, good = read_sweep(tmp_path).trials
    assert (bad.state, bad.result, good.state) == ("failed", None, "done")
    assert reason in bad.reason
    assert [row["state"] for row in status(tmp_path)["trials"]] == ["failed", "done"]


def replan(folder, change):
    path = folder / "plan.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        *(("id", value, "trials[0].id: ") for value in (None, 5, "x" * 300, "../out", "a\nb")),
        ("cell", "1", "trials[0].cell: expected int, got str"),
        ("repeat", [], "trials[0].repeat: expected int, got array"),
        ("scaling", "medium", "trials[0].scaling: invalid enum value"),
        ("changes", None, "trials[0].changes: expected object, got null"),
        ("settings", [], "trials[0].settings: expected object, got array"),
        ("changes", {"num_replicas": "two"}, "num_replicas must be a whole number, got the text"),
        ("changes", {"backend_options": None}, "backend_options must be a table"),
        ("changes", {"epochs": 0}, "epochs must be at least 1, got 0"),
    ],
)
def test_a_trial_that_the_plan_describes_wrongly_is_a_failed_row(tmp_path, key, value, words):
    first, second = write_sweep(tmp_path, make_study(**{**ONE, "repeats": 2}))
    replan(tmp_path, lambda table: table["trials"][0].update({key: value}))
    sweep = read_sweep(tmp_path)
    bad, good = sweep.trials
    assert (good.id, good.state, bad.state, bad.is_readable) == (second.id, "done", "failed", False)
    assert bad.reason.startswith("plan.json cannot be used: ")
    assert words in bad.reason
    assert bad.folder.parent == tmp_path
    assert bad.id == ("trials[0]" if key == "id" else first.id)
    assert sweep.readable == (good,)


def test_two_trials_of_one_name_are_not_read_from_one_folder(tmp_path):
    write_sweep(tmp_path, make_study(**{**ONE, "repeats": 2}))
    replan(tmp_path, lambda table: table["trials"][1].update(id=table["trials"][0]["id"]))
    rows = read_sweep(tmp_path).trials
    assert [row.state for row in rows] == ["done", "failed"]
    assert "trials[1].id: an earlier trial is called" in rows[1].reason


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("plan.json", None, "plan.json cannot be used: skipped: expected a list, got None"),
        ("noise.json", '{"measurements": null}', "measurements: expected a list, got None"),
        ("noise.json", '{"measurements": [{"spread": null}]}', "measurements[0].spread: expected"),
        ("noise.json", "[" * 100_000, "maximum recursion depth"),
        ("TRIAL/env.json", "[1]", "env.json cannot be used: expected object, got array"),
    ],
)
def test_what_the_numbers_do_not_need_is_named_and_they_stay(one_trial, name, text, fault):
    folder, planned = one_trial
    if text is None:
        replan(folder, lambda table: table.update(skipped=None))
    else:
        (folder / name.replace("TRIAL", planned.id)).write_text(text)
    sweep = read_sweep(folder)
    assert [trial.state for trial in sweep.trials] == ["done"]
    assert len(sweep.faults) == 1
    assert fault in sweep.faults[0]
    assert status(folder)["note"] == f"{sweep.faults[0]}."
    assert fault in status_table(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("backend", None), ("backend_options", None), ("patch", "48"), ("learning_rate", [])],
)
def test_a_wrong_setting_of_a_lone_run_is_its_row(tmp_path, field, value):
    for name in ("one", "two"):
        run = RunFolder(tmp_path / name)
        run.create()
        run.write_config(RunConfig())
    path = tmp_path / "one" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    one, two = read_sweep(tmp_path).trials
    assert (one.state, two.state) == ("failed", "interrupted")
    assert field in one.reason


def test_a_name_that_is_not_utf8_is_shown(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    run = RunFolder(Path(folder))
    run.create()
    run.write_config(RunConfig())
    assert status(folder)["study"] == "\\xff"
    assert main(["sweep", "status", folder]) == 0
    assert main(["report", folder]) == 0


def test_trials_without_a_result_say_why(one_trial):
    folder, planned = one_trial
    run = RunFolder(folder / planned.id)
    (run.path / "result.json").unlink()
    trial = read_one(folder)
    assert (trial.state, trial.reason) == ("interrupted", "never finished")

    run.write_failure("process 1 of 2 was killed by SIGKILL", 3, 1)
    trial = read_one(folder)
    assert (trial.state, trial.reason) == ("failed", "process 1 of 2 was killed by SIGKILL")

    run.write_failure("ended by a signal", 130)
    assert read_one(folder).state == "interrupted"

    (run.path / "failure.json").write_text("{ torn")
    trial = read_one(folder)
    assert trial.state == "failed"
    assert trial.reason.startswith("failure.json cannot be used: Expecting property name")

    shutil.rmtree(run.path)
    assert read_one(folder).state == "waiting"


def test_a_running_trial_is_one_that_a_living_sweep_names(one_trial):
    folder, planned = one_trial
    (folder / planned.id / "result.json").unlink()
    (folder / "running.json").write_text(json.dumps({"trial": planned.id}))
    assert read_one(folder).state == "interrupted"
    with RunFolder(folder).locked():
        assert read_one(folder).state == "running"


def test_tables_are_read_up_to_the_first_torn_row(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text(
        "step,seconds,loss,traced\n1,0.5,2.0,1\n2,0.4,1.5,0\n3,0.\x00,\n4,0.4,1.0,0\n5,0."
    )
    table = read_steps(tmp_path)
    assert table == {"step": [1, 2], "seconds": [0.5, 0.4], "loss": [2.0, 1.5], "traced": [1, 0]}
    assert read_table(path, {"step": int, "other": int}) == {"step": [], "other": []}
    assert read_steps(tmp_path / "nowhere")["step"] == []


def test_cases_are_those_of_the_last_evaluation(tmp_path):
    columns = "epoch,case,region,true_positive,false_positive,false_negative\n"
    (tmp_path / "cases.csv").write_text(
        f"{columns}1,a,cell,1,2,3\n2,a,cell,4,5,6\n2,b,cell,7,8,9\n"
    )
    table = read_cases(tmp_path)
    assert table["case"] == ["a", "b"]
    assert table["true_positive"] == [4, 7]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"trials": [{}], "base": {}}'])
def test_a_torn_plan_is_named_with_what_to_do(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"plan.json cannot be read .*Run the sweep again"):
        read_sweep(tmp_path)


def test_a_plan_of_another_version_is_named(one_trial):
    folder, _ = one_trial
    path = folder / "plan.json"
    path.write_text(path.read_text().replace('"precision"', '"accuracy"'))
    with pytest.raises(ValueError, match=r"'accuracy' is no key of this version .*another version"):
        read_sweep(folder)


def test_folders_without_records_are_named(tmp_path):
    with pytest.raises(ValueError, match="There is no folder"):
        read_sweep(tmp_path / "none")
    with pytest.raises(ValueError, match="holds no runs"):
        read_sweep(tmp_path)


def test_a_folder_of_runs_is_read_without_a_plan(tmp_path):
    trials = write_sweep(tmp_path / "sweep", make_study(repeats=2, grid={"backend": ["single"]}))
    runs = tmp_path / "runs"
    for trial in trials:
        shutil.copytree(tmp_path / "sweep" / trial.id, runs / trial.id)
    torn = RunFolder(runs / "torn")
    torn.create()
    (torn.path / "config.json").write_text("{")
    by_name = {trial.id: trial for trial in read_sweep(runs).trials}
    assert [by_name[trial.id].repeat for trial in trials] == [1, 2]
    assert len({by_name[trial.id].cell for trial in trials}) == 1
    assert by_name["torn"].state == "failed"
    assert "config.json cannot be used" in by_name["torn"].reason
    # One run alone is a sweep of one.
    assert len(read_sweep(runs / trials[0].id).trials) == 1


def test_runs_with_one_global_batch_are_strong_scaling(tmp_path):
    for count in (1, 2):
        run = RunFolder(tmp_path / f"run{count}")
        run.create()
        run.write_config(RunConfig(backend="horovod", num_replicas=count, global_batch=8))
    assert {trial.scaling for trial in read_sweep(tmp_path).trials} == {"strong"}


def test_status_counts_states_and_shows_every_trial(tmp_path):
    trials = write_sweep(tmp_path)
    shutil.rmtree(tmp_path / trials[0].id)
    write_trial(tmp_path, trials[1], checks={"weights": False})
    answer = status(tmp_path)
    none = dict.fromkeys(("interrupted", "profiled", "running"), 0)
    counts = {"done": 19, "failed": 1, "waiting": 1, **none}
    assert answer["counts"] == counts
    assert json.loads(json.dumps(answer)) == answer
    text = status_table(tmp_path)
    assert "21 trials: 19 done, 1 failed, 1 waiting." in text
    assert "correctness checks failed: weights" in text
    assert all(trial.id in text for trial in trials)
