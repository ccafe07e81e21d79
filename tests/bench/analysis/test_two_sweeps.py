import json
import shutil

import pytest
from synthetic_sweep import ENVIRONMENT, make_study, write_sweep, write_trial

from tfunet import exit_codes
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.analysis.two_sweeps import compare_sweeps
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.findings import doubts
from tfunet.bench.report.two_sweeps_text import change_json, change_text
from tfunet.files.atomic import write_atomic
from tfunet.record import RunFolder

GRID = {"backend": ["single", "mirrored", "horovod"], "num_replicas": [1, 2]}
EVEN = {"mirrored": 0.9, "horovod": 0.9}


def sweep(folder, *, speed=EVEN, noise=0.005, seed=0, repeats=6, **study):
    """Write a sweep of three cells. Another seed is other noise, and the same cells."""
    study = {"grid": GRID, **study}
    base = {"replica_batch": 4, "cores_per_replica": 1, "seed": seed}
    # Repeats share no machine with those of another sweep.
    changed = make_study(repeats=repeats, base=base, **study)
    trials = write_sweep(folder, changed, write=lambda trial: False)
    for trial in trials:
        write_trial(folder, trial, noise=noise, speed=speed, shared=0.0)
    return trials


def verdicts(change):
    return {cell.settings["backend"]: cell.verdict for cell in change.cells}


def test_a_slower_backend_is_found_and_ends_with_its_code(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", speed={"mirrored": 0.9, "horovod": 0.8}, seed=50)
    change = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.03)
    assert verdicts(change) == {
        "single": "within tolerance",
        "mirrored": "within tolerance",
        "horovod": "slower",
    }
    assert change.exit_code == exit_codes.SLOWER == 6
    (slower,) = (cell for cell in change.cells if cell.verdict == "slower")
    assert slower.ratio.low < 8 / 9 < slower.ratio.high


def test_folds_of_a_cell_are_its_repeats(tmp_path):
    for name, seed in (("a", 0), ("b", 50)):
        study = make_study(
            grid={"fold": [0, 1, 2]}, repeats=1, skip=[], base={"folds": 3, "seed": seed}
        )
        write_sweep(tmp_path / name, study)
    (cell,) = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.03).cells
    assert "fold" not in cell.settings
    assert cell.ratio.repeats == 3


def test_a_change_within_the_tolerance_is_none(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", speed={"mirrored": 0.9, "horovod": 0.88}, seed=50)
    assert verdicts(compare_sweeps(tmp_path / "a", tmp_path / "b"))["horovod"] == "slower"
    change = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.05)
    assert set(verdicts(change).values()) == {"within tolerance"}
    assert change.exit_code == exit_codes.OK


def test_faster_is_no_failure(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", speed={"mirrored": 0.99, "horovod": 0.9}, seed=50)
    change = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.01)
    assert verdicts(change)["mirrored"] == "faster"
    assert change.exit_code == exit_codes.OK


def test_a_sweep_and_itself_are_not_distinguishable(tmp_path):
    sweep(tmp_path / "a", noise=0.05)
    change = compare_sweeps(tmp_path / "a", tmp_path / "a")
    assert set(verdicts(change).values()) == {"not distinguishable"}
    assert {cell.ratio.value for cell in change.cells} == {1.0}
    assert change.exit_code == exit_codes.OK


def test_repeats_of_two_sweeps_are_no_pairs(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", seed=50)
    change = compare_sweeps(tmp_path / "a", tmp_path / "b")
    assert not any(cell.ratio.paired for cell in change.cells)


@pytest.mark.parametrize("lose", ["repeats", "all"])
def test_a_cell_without_a_verdict_ends_with_its_code(tmp_path, lose):
    sweep(tmp_path / "a")
    for trial in sweep(tmp_path / "b", seed=50):
        if trial.config.backend == "horovod" and (trial.repeat > 2 or lose == "all"):
            shutil.rmtree(tmp_path / "b" / trial.id)
    change = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.05)
    assert verdicts(change)["horovod"] == "unknown"
    assert change.exit_code == exit_codes.CANNOT_TELL == 7
    assert "unknown" in change_text(change)


def test_cells_of_one_sweep_only_are_named(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", grid={**GRID, "backend": ["single", "horovod"]})
    change = compare_sweeps(tmp_path / "a", tmp_path / "b")
    assert len(change.cells) == 2
    assert change.unmatched == (f"Only {tmp_path / 'a'} has: backend=mirrored num_replicas=2.",)
    sweep(tmp_path / "c", grid={**GRID, "xla": [True]})
    with pytest.raises(ValueError, match="no cell with equal settings"):
        compare_sweeps(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("tolerance", [-0.1, 1.0])
def test_a_tolerance_that_cannot_be_is_refused(tmp_path, tolerance):
    with pytest.raises(ValueError, match="tolerance must lie between 0 % and 100 %"):
        compare_sweeps(tmp_path, tmp_path, tolerance)


def test_another_machine_or_version_is_pointed_out(tmp_path):
    sweep(tmp_path / "a")
    for trial in sweep(tmp_path / "b", seed=50):
        packages = {**ENVIRONMENT["packages"], "tensorflow": "2.21.0"}
        RunFolder(tmp_path / "b" / trial.id).write_env({**ENVIRONMENT, "packages": packages})
    measured = {"when": "before", "median_seconds": 0.0125, "spread": 0.03}
    write_atomic(tmp_path / "b" / "noise.json", json.dumps({"measurements": [measured]}))
    first, packages, machine = compare_sweeps(tmp_path / "a", tmp_path / "b").doubts
    assert first.startswith("The sweeps ran one after the other")
    assert packages.startswith("packages.tensorflow differs between trials: 2.16.2 (18 trials)")
    assert machine.startswith("A fixed computation took 1.25 times as long")


def test_sweep_that_counts_its_warm_up_is_pointed_out(tmp_path):
    sweep(tmp_path / "a")
    for trial in sweep(tmp_path / "b", seed=50):
        path = tmp_path / "b" / trial.id / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "warm_up_steps": None}))
    _, warm_up = compare_sweeps(tmp_path / "a", tmp_path / "b").doubts
    assert "are older records" in warm_up
    assert len(compare_sweeps(tmp_path / "b", tmp_path / "b").doubts) == 1
    (doubt,) = (
        sentence
        for sentence in doubts(summarise(read_sweep(tmp_path / "b")))
        if "warm-up" in sentence
    )
    assert doubt.startswith("18 of 18 trials are older records")


def test_programs_get_every_number(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", repeats=2, seed=50)
    change = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.03)
    table = json.loads(json.dumps(change_json(change), allow_nan=False))
    assert (table["tolerance"], table["exit_code"]) == (0.03, exit_codes.CANNOT_TELL)
    assert table["cells"][0]["ratio_low"] is None
    assert table["cells"][0]["verdict"] == "unknown"


def test_the_text_has_a_line_a_cell(tmp_path):
    sweep(tmp_path / "a")
    sweep(tmp_path / "b", speed={"mirrored": 0.9, "horovod": 0.8}, seed=50)
    text = change_text(compare_sweeps(tmp_path / "a", tmp_path / "b", 0.03))
    lines = [line for line in text.splitlines() if line.startswith("backend=")]
    assert len(lines) == 3
    assert lines[2].startswith("backend=horovod num_replicas=2")
    assert lines[2].endswith("slower")
    assert "tolerance 3.0%" in text
