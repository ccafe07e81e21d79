"""The work of a command grows with the number of trials and files, not with its square.

Calls, reads and comparisons are counted: times differ from machine to machine.
"""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis import configuration_scores, configurations, sweep_summary
from tfunet.bench.launch import local_sweep, search_plan, search_sweep, time_left
from tfunet.bench.launch.sweep_folder import write_plan
from tfunet.bench.launch.time_left import TimeLeft
from tfunet.bench.records import plan_lines, sweep_record
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.study.refusals import refusals
from tfunet.bench.study.study_file import study_from_dict
from tfunet.bench.study.trial_plan import plan_trials
from tfunet.prediction.jobs import plan_jobs

NUMBERS = (20, 80)
# Four times as many may take a little more than four times as much, and never sixteen times.
MOST = 4.5


@pytest.fixture
def counted(monkeypatch):
    """Return a function that counts the calls of a function of a module."""
    calls = Counter()

    def count(module, name):
        real = getattr(module, name)

        def counting(*given, **more):
            calls[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, counting)
        return calls

    return count


class Name(str):
    """A name that counts with how many others it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def is_linear(work):
    few, many = (work(number) for number in NUMBERS)
    assert many <= MOST * max(few, NUMBERS[0]), (few, many)


def samples(number, **changes):
    space = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
    table = {"samples": {"method": "random", "number": number, "space": space}, "name": "s"}
    return study_from_dict({**table, "base": {"share_cores": True}, **changes})


def grid(folder, number, **changes):
    rates = [(at + 1) / (number + 1) for at in range(number)]
    study = make_study(repeats=1, grid={"learning_rate": rates}, skip=[], **changes)
    write_sweep(folder / str(number), study)
    return read_sweep(folder / str(number))


def test_families_of_trials(tmp_path, counted):
    calls = counted(sweep_summary, "_key")

    def work(number):
        calls.clear()
        sweep_summary.families_of(grid(tmp_path, number).trials)
        return calls["_key"]

    is_linear(work)


def test_rankings_of_configurations(tmp_path, counted, monkeypatch):
    monkeypatch.setattr(configuration_scores, "MOST_PAIRED", 10)
    calls = counted(configuration_scores, "difference")

    def work(number):
        families = sweep_summary.summarise(grid(tmp_path, number)).families
        calls.clear()
        assert configurations.rankings(families)[0]
        return calls["difference"]

    is_linear(work)


@dataclass
class Folder:
    """A folder whose files have names that count."""

    name: str = ""

    def __truediv__(self, name):
        return Folder(Name(name))


def test_names_of_predictions():
    def work(number):
        Name.compared = 0
        images = [f"/x/{at}.png" for at in range(number)]
        plan_jobs(images, Folder(), "png", probabilities=False, overlay=True)
        return Name.compared

    is_linear(work)


def test_refusals_of_trials():
    def work(number):
        planned = plan_trials(samples(number))
        trials = tuple(replace(trial, id=Name(trial.id)) for trial in planned.trials)
        Name.compared = 0
        assert refusals(replace(planned, trials=trials), [trial.id for trial in trials]) == []
        return Name.compared

    is_linear(work)


def test_time_that_is_left(counted):
    calls = counted(time_left, "_median")

    def work(number):
        trials = plan_trials(samples(number)).trials
        calls.clear()
        left = TimeLeft(trials, {})
        for trial in trials:
            left.ended(trial.cell, 1.0)
            assert left.seconds is not None
        assert left.seconds == 0
        return calls["_median"]

    is_linear(work)


def test_time_that_is_left_is_that_of_all_at_once():
    trials = plan_trials(samples(10, repeats=3)).trials
    seconds = {}
    left = TimeLeft(trials, seconds)
    for at, trial in enumerate(trials):
        tells = at % 3 != 1
        if tells:
            seconds.setdefault(trial.cell, []).append(float(at))
        left.ended(trial.cell, float(at) if tells else None)
        assert left.seconds == pytest.approx(TimeLeft(trials[at + 1 :], seconds).seconds)


def test_the_plan_of_a_search_is_read_and_written_by_lines(tmp_path, counted):
    counted(plan_lines, "parse_json")
    counted(sweep_record, "read_plan")
    counted(search_plan, "read_plan")
    calls = counted(search_sweep, "write_atomic")
    table = {"search": {"sampler": "random", "space": {"learning_rate": {"low": 0.1, "high": 1.0}}}}

    def work(number):
        calls.clear()
        study = study_from_dict({**table, "search": {**table["search"], "trials": number}})
        folder = tmp_path / str(number)
        command = ["true"]
        local_sweep.run_sweep(study, folder, command=lambda _: command, say=lambda _: None)
        assert len(read_sweep(folder).trials) == number
        # Once for the plan without trials; all else are lines.
        assert calls["write_atomic"] == 1
        assert calls["read_plan"] <= 5
        return calls["parse_json"]

    is_linear(work)


def test_a_job_looks_at_its_own_trial_of_the_plan(tmp_path, monkeypatch):
    texts = []
    real = sweep_record.parse_json
    monkeypatch.setattr(
        sweep_record, "parse_json", lambda text, *more: texts.append(text) or real(text, *more)
    )
    for number in NUMBERS:
        folder = tmp_path / str(number)
        folder.mkdir()
        planned = plan_trials(samples(number))
        write_plan(planned, folder)
        trial = planned.trials[number // 2]
        assert sweep_record.planned_trial(folder, trial.id).config == trial.config
    few, many = map(len, texts)
    assert many < 1.1 * few


def test_a_sweep_reads_each_trial_a_few_times(tmp_path, monkeypatch, counted):
    monkeypatch.setattr(local_sweep, "run_trial", lambda *_: 0)
    calls = counted(local_sweep, "read_trial")
    sweeps = counted(local_sweep, "read_sweep")

    def work(number):
        calls.clear()
        study = samples(number)
        local_sweep.run_sweep(study, tmp_path / str(number), noise=dict, say=lambda _: None)
        assert sweeps["read_sweep"] < 5
        return calls["read_trial"]

    is_linear(work)
