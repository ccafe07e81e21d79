"""States of thousands of trials come from few reads, and are those of reading all in full."""

import json
import os
from dataclasses import replace

import pytest
from synthetic_sweep import make_study, write_failed, write_sweep, write_trial

from tfunet.bench.launch.sweep_status import status, status_table
from tfunet.bench.records.trial_states import read_states
from tfunet.bench.study.plan_text import plan_json
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials

NUM_TRIALS = 10_000


@pytest.fixture
def sweep(tmp_path):
    """A sweep whose trials ended in every way."""
    study = make_study(
        grid={"learning_rate": [0.1 + 0.01 * at for at in range(12)]}, skip=[], repeats=1
    )
    trials = write_sweep(tmp_path, study, write=lambda trial: False)
    for trial in trials[:8]:
        write_trial(tmp_path, trial)
    result = json.loads((tmp_path / trials[0].id / "result.json").read_text())
    for trial, changes in (
        (trials[1], {"checks": {"weights": False}}),
        (trials[2], {"checks": {}}),
        (trials[3], {"num_replicas": 2}),
        (trials[4], {"images_per_second": "fast"}),
        (trials[5], {"schema_version": 99}),
    ):
        (tmp_path / trial.id / "result.json").write_text(json.dumps({**result, **changes}))
    (tmp_path / trials[6].id / "result.json").write_text('{"torn')
    (tmp_path / trials[7].id / "result.json").unlink()  # Never finished.
    write_failed(tmp_path, trials[8], "out of memory")
    return tmp_path


def test_short_reads_say_what_full_ones_say(sweep):
    assert read_states(sweep, many=1) == read_states(sweep)
    states = [trial.state for trial in read_states(sweep, many=1).trials]
    assert set(states) == {"done", "failed", "interrupted", "waiting"}


@pytest.mark.parametrize(
    "fault",
    [
        lambda plan: plan["trials"][1].update(id=plan["trials"][0]["id"]),
        lambda plan: plan["trials"][1].update(id="../elsewhere"),
        lambda plan: plan["trials"][1].pop("changes"),
        lambda plan: plan["trials"][1].update(changes=3),
    ],
)
def test_a_wrong_plan_is_read_in_full(sweep, fault):
    plan = json.loads((sweep / "plan.json").read_text())
    fault(plan)
    (sweep / "plan.json").write_text(json.dumps(plan))
    assert read_states(sweep, many=1) == read_states(sweep)
    assert "plan.json cannot be used" in str(read_states(sweep, many=1))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 10**5, '{"trials": 3}'])
def test_what_is_no_plan_is_refused_as_by_any_command(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json cannot be read"):
        read_states(tmp_path)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A plan of 10,000 samples, made from that of one; every tenth trial is done, one failed."""
    folder = tmp_path_factory.mktemp("large")
    samples = {"method": "random", "number": 1, "space": {"learning_rate": [0.5]}}
    planned = plan_trials(study_from_dict({"name": "large", "samples": samples}), 2)
    plan = plan_json(planned)
    (first,) = planned.trials
    plan["trials"] = [
        {**plan["trials"][0], "id": f"sample-{at}", "changes": {"learning_rate": at + 1.0}}
        for at in range(NUM_TRIALS)
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    write_trial(folder, replace(first, id="sample-0"))
    for at in range(10, NUM_TRIALS, 10):
        (folder / f"sample-{at}").mkdir()
        os.link(folder / "sample-0/result.json", folder / f"sample-{at}/result.json")
    write_failed(folder, replace(first, id="sample-7"), "out of memory")
    return folder


def test_status_of_ten_thousand_trials_opens_one_file_of_each_that_is_done(large, monkeypatch):
    opened = []
    real = os.open

    def count(path, *options, **more):
        opened.append(str(path))
        return real(path, *options, **more)

    monkeypatch.setattr(os, "open", count)
    counts = status(large)["counts"]
    assert counts == {**dict.fromkeys(counts, 0), "done": 1000, "failed": 1, "waiting": 8999}
    names = {os.path.relpath(path, large) for path in opened}
    assert {name for name in names if name.startswith("sample-")} == {
        *(f"sample-{at}/result.json" for at in range(0, NUM_TRIALS, 10)),
        *(f"sample-7/{name}.json" for name in ("result", "failure", "env")),
    }
    assert len(opened) < 1010


def test_status_of_ten_thousand_trials_names_those_that_ended_badly(large):
    lines = status_table(large).splitlines()
    assert lines[0] == "Study large: 10000 trials: 1000 done, 1 failed, 8999 waiting."
    assert next(line for line in lines if line.startswith("sample-7")).endswith("out of memory")
    assert "9999 more trials: add --json." in lines
    assert len(lines) < 10
