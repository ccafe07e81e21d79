"""Records that somebody damaged, or made to do damage, through all that reads records.

TFUNET_MUTATIONS says how many records are mutated; by default as many as take ten seconds.
"""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import warnings

import pytest
from mutants import MUTATIONS, mutate
from synthetic_sweep import STUDY, make_study, write_seen, write_swap_sweep, write_sweep

from tfunet import exit_codes
from tfunet.bench.launch.resume_and_cancel import resume_sweep
from tfunet.bench.notebooks.growth import cost_rows, growth_sentences, read_growth, size_rows
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.cli import main
from tfunet.files.atomic import WriteError
from tfunet.record import RunFolder

# Files of a trial that are mutated at once.
PER_TRIAL = 2
SWAPS = ("none", "24MiB", "32MiB", "auto")


def fingerprint(folder):
    """Return what lies in a folder: kind and content of every entry."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path)] = path.stat().st_mode
    return found


def told(*arguments):
    """Run a command in this process; return exit code, output and errors."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main([str(argument) for argument in arguments])
    # What a terminal or a file takes.
    output.getvalue().encode()
    errors.getvalue().encode()
    return code, output.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A sweep with every kind of file that a record has."""
    folder = tmp_path_factory.mktemp("template") / "sweep"
    trials = write_swap_sweep(folder, SWAPS)
    for trial in trials:
        run = RunFolder(folder / trial.id)
        write_seen(folder, trial, (48, 48, 48))
        run.write_split({"train": ["a", "b"], "validation": ["c"], "left_out": []})
        with run.spans_table(0) as table:
            for step in (1, 2, 3):
                begin = 100.0 + step
                named = {"start": begin - 1} if step == 1 else {}
                for name, at in {**named, "step": begin, "swap out": begin + 0.1}.items():
                    table.append(
                        {"step": step, "name": name, "begin_seconds": at, "seconds": 0.05}
                        | ({"seconds": 0.9} if name == "step" else {})
                    )
        result = run.read_result()
        extra = {
            "synthetic_pairs_seconds": [[0.2, 0.1]] * 3,
            "alone_seconds": [[0.1, 0.1], [0.1, 0.12]],
            "average_seconds": [0.01, 0.02],
            "synthetic_share": 0.9,
            "gradient_bytes": 4000,
            "energy_joules": 12.5,
            "replicas_from_step": [[1, trial.config.num_replicas]],
            "began_unix_seconds": [[1, 1.7e9]],
        }
        run.write_result({**result, **extra})
    (folder / trials[1].id / "result.json").unlink()
    RunFolder(folder / trials[1].id).write_failure("out of memory", 3, 0)
    return folder


def named(path, text):
    """Whether a message names a file."""
    return path.name in text or str(path) in text


def test_one_wrong_file_in_each_trial_takes_away_no_other(template, tmp_path):
    """Status, report, comparison, exports and notebooks read every trial that is not damaged."""
    dice = random.Random(20)
    num_trials = sum(1 for path in template.iterdir() if path.is_dir())
    rounds = MUTATIONS * 3 // 4 // num_trials // PER_TRIAL
    for number in range(rounds):
        folder = tmp_path / f"{number}"
        shutil.copytree(template, folder)
        if number % 2:  # Single runs, each with its config.json.
            for name in ("plan.json", "noise.json", "study.toml"):
                (folder / name).unlink()
        damaged = []
        for trial in sorted(path for path in folder.iterdir() if path.is_dir()):
            files = sorted(file for file in trial.iterdir() if file.suffix in (".json", ".csv"))
            for path in dice.sample(files, PER_TRIAL):
                mutate(path, dice)
                damaged.append(path)
        before = fingerprint(folder)
        check_all_that_reads(folder, template, damaged, tmp_path / "out", full=number == 1)
        assert fingerprint(folder) == before
        shutil.rmtree(folder)


def check_all_that_reads(root, template, damaged, out, *, full):
    code, words, _ = told("sweep", "status", root, "--json")
    rows = {row["trial"]: row for row in json.loads(words)["trials"]}
    assert code == exit_codes.OK
    assert len(rows) == len(damaged) // PER_TRIAL
    for name, row in rows.items():
        told_why = (
            *("out of memory", "correctness checks", "no reason was recorded"),
            "it belongs to a run with",  # Either of two files is wrong.
        )
        if row["state"] == "failed" and not any(words in row["reason"] for words in told_why):
            files = [path for path in damaged if path.parent.name == name]
            # The reason of failure.json is any text.
            is_told = any(named(path, row["reason"]) for path in files)
            assert is_told or any(path.name == "failure.json" for path in files), (row, files)
    assert told("sweep", "status", root)[0] == exit_codes.OK
    code, words, _ = told("report", root, "--json")
    assert code == exit_codes.OK
    json.loads(words)
    if full:
        assert told("report", root, "--out", out)[0] == exit_codes.OK
        html = (out / "report.html").read_text()
        assert all(path.parent.name in html for path in damaged)
    code, _, errors = told("compare", template, root)
    assert code in (exit_codes.OK, exit_codes.SLOWER, exit_codes.CANNOT_TELL), errors
    for form in ("mlperf", "perfetto"):
        code, words, errors = told("export", root, "--to", form, "--out", out)
        assert code in (exit_codes.OK, exit_codes.BAD_INPUT)
        lines = errors.splitlines()
        assert all(any(named(path, line) for path in damaged) for line in lines), errors
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")
        growth = read_growth(read_sweep(root))
        size_rows(growth)
        cost_rows(growth)
        growth_sentences(growth)


OF_THE_SWEEP = ("plan.json", "plan.json", "noise.json", "study.toml", "running.json")


def test_a_wrong_file_of_the_sweep_is_named_and_nothing_is_lost(tmp_path, monkeypatch):
    """All that reads a sweep, and resume, which may only write plan.json and study.toml anew."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # It would take most of the time.
    dice = random.Random(21)
    small = tmp_path / "small"
    study = make_study(**{**STUDY, "grid": {"backend": ["single", "horovod"]}, "repeats": 1})
    write_sweep(small, study)
    (small / "running.json").write_text('{"trial": "single-1r-r1", "process": 7}')
    files = fingerprint(small)
    for number in range(MUTATIONS // 8):
        folder = tmp_path / f"{number}"
        shutil.copytree(small, folder)
        path = folder / dice.choice(OF_THE_SWEEP)
        mutate(path, dice)
        before = fingerprint(folder)
        for command in (
            ("sweep", "status", folder, *["--json"][number % 2 :]),
            ("report", folder, "--json"),
            ("compare", folder, small, "--json"),
            ("export", folder, "--to", "mlperf", "--out", tmp_path / "out"),
        ):
            code, _, errors = told(*command)
            assert code in (
                *(exit_codes.OK, exit_codes.BAD_INPUT),
                *(exit_codes.SLOWER, exit_codes.CANNOT_TELL),
            )
            if code == exit_codes.BAD_INPUT:
                empty = ("nothing to compare", "holds no run")  # A plan may have no trials.
                assert named(path, errors) or any(words in errors for words in empty), errors
        assert fingerprint(folder) == before
        with contextlib.suppress(ValueError, WriteError), contextlib.redirect_stdout(io.StringIO()):
            resume_sweep(folder, states=())
        ours = {str(folder / name) for name in (*OF_THE_SWEEP, ".lock")}
        after = fingerprint(folder)
        assert {name: after.get(name) for name in before if name not in ours} == {
            name: content for name, content in before.items() if name not in ours
        }
        shutil.rmtree(folder)
    assert fingerprint(small) == files


def test_a_wrong_plan_of_memory_is_named(template, tmp_path):
    dice = random.Random(22)
    whole = next(template.glob("*/swap.json"))
    for number in range(MUTATIONS // 8):
        path = tmp_path / str(number) / "swap.json"
        path.parent.mkdir()
        path.write_text(whole.read_text())
        mutate(path, dice)
        for command in (("show", path.parent), ("diff", path, whole)):
            code, _, errors = told("swap", *command)
            assert code in (exit_codes.OK, exit_codes.BAD_INPUT, exit_codes.DIFFERENT)
            assert (code == exit_codes.BAD_INPUT) == named(path, errors), errors
