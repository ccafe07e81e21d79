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


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function that returns the folder of a sweep, which is written once for each speed."""
    root, known = tmp_path_factory.mktemp("sweeps"), {}

    def folder_of(speed=EVEN, **options):
        key = repr((speed, options))
        if key not in known:
            known[key] = root / str(len(known))
            sweep(known[key], speed=speed, **options)
        return known[key]

    return folder_of


WITHIN, SLOWER, FASTER = "within tolerance", "slower", "faster"


@pytest.mark.parametrize(
    ("mirrored", "horovod", "tolerance", "found", "code"),
    [
        (0.9, 0.8, 0.03, [WITHIN, WITHIN, SLOWER], exit_codes.SLOWER),
        # The same change, which matters or does not.
        (0.9, 0.88, 0.0, ["not distinguishable", "not distinguishable", SLOWER], exit_codes.SLOWER),
        (0.9, 0.88, 0.05, [WITHIN] * 3, exit_codes.OK),
        (0.99, 0.9, 0.01, [None, FASTER, None], exit_codes.OK),
    ],
)
def test_a_backend_that_became_slower_ends_with_its_code(
    mirrored, horovod, tolerance, found, code, written
):
    after = written({"mirrored": mirrored, "horovod": horovod}, seed=50)
    change = compare_sweeps(written(), after, tolerance)
    assert change.exit_code == code
    assert exit_codes.SLOWER == 6
    by_name = verdicts(change)
    for backend, verdict in zip(("single", "mirrored", "horovod"), found, strict=True):
        assert by_name[backend] == verdict or verdict is None
    # Repeats of two sweeps are no pairs.
    assert not any(cell.ratio.paired for cell in change.cells)
    text = change_text(change)
    lines = [line for line in text.splitlines() if line.startswith("backend=")]
    assert len(lines) == 3
    assert lines[2].startswith("backend=horovod num_replicas=2")
    assert lines[2].endswith(by_name["horovod"])
    assert f"tolerance {tolerance:.1%}" in text
    if horovod == 0.8:
        assert change.cells[2].ratio.low < 8 / 9 < change.cells[2].ratio.high


def test_a_sweep_and_itself_are_not_distinguishable(written):
    folder = written(noise=0.05)
    change = compare_sweeps(folder, folder)
    assert set(verdicts(change).values()) == {"not distinguishable"}
    assert {cell.ratio.value for cell in change.cells} == {1.0}
    assert change.exit_code == exit_codes.OK


def test_folds_of_a_cell_are_its_repeats(tmp_path):
    for name, seed in (("a", 0), ("b", 50)):
        study = make_study(
            grid={"fold": [0, 1, 2]}, repeats=1, skip=[], base={"folds": 3, "seed": seed}
        )
        write_sweep(tmp_path / name, study)
    (cell,) = compare_sweeps(tmp_path / "a", tmp_path / "b", 0.03).cells
    assert "fold" not in cell.settings
    assert cell.ratio.repeats == 3


@pytest.mark.parametrize("lose", ["repeats", "all"])
def test_a_cell_without_a_verdict_ends_with_its_code(tmp_path, lose, written):
    for trial in sweep(tmp_path / "b", seed=50):
        if trial.config.backend == "horovod" and (trial.repeat > 2 or lose == "all"):
            shutil.rmtree(tmp_path / "b" / trial.id)
    change = compare_sweeps(written(), tmp_path / "b", 0.05)
    assert verdicts(change)["horovod"] == "unknown"
    assert change.exit_code == exit_codes.CANNOT_TELL == 7
    assert "unknown" in change_text(change)


def test_cells_of_one_sweep_only_are_named(tmp_path, written):
    sweep(tmp_path / "b", grid={**GRID, "backend": ["single", "horovod"]})
    change = compare_sweeps(written(), tmp_path / "b")
    assert len(change.cells) == 2
    assert change.unmatched == (f"Only {written()} has: backend=mirrored num_replicas=2.",)
    sweep(tmp_path / "c", grid={**GRID, "xla": [True]})
    with pytest.raises(ValueError, match="no cell with equal settings"):
        compare_sweeps(written(), tmp_path / "c")


@pytest.mark.parametrize("tolerance", [-0.1, 1.0])
def test_a_tolerance_that_cannot_be_is_refused(tmp_path, tolerance):
    with pytest.raises(ValueError, match="tolerance must lie between 0 % and 100 %"):
        compare_sweeps(tmp_path, tmp_path, tolerance)


def test_another_machine_or_version_is_pointed_out(tmp_path, written):
    for trial in sweep(tmp_path / "b", seed=50):
        packages = {**ENVIRONMENT["packages"], "tensorflow": "2.21.0"}
        RunFolder(tmp_path / "b" / trial.id).write_env({**ENVIRONMENT, "packages": packages})
    measured = {"when": "before", "median_seconds": 0.0125, "spread": 0.03}
    write_atomic(tmp_path / "b" / "noise.json", json.dumps({"measurements": [measured]}))
    first, packages, machine = compare_sweeps(written(), tmp_path / "b").doubts
    assert first.startswith("The sweeps ran one after the other")
    assert packages.startswith("packages.tensorflow differs between trials: 2.16.2 (18 trials)")
    assert machine.startswith("A fixed computation took 1.25 times as long")


def test_sweep_that_counts_its_warm_up_is_pointed_out(tmp_path, written):
    for trial in sweep(tmp_path / "b", seed=50):
        path = tmp_path / "b" / trial.id / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "warm_up_steps": None}))
    _, warm_up = compare_sweeps(written(), tmp_path / "b").doubts
    assert "are older records" in warm_up
    assert len(compare_sweeps(tmp_path / "b", tmp_path / "b").doubts) == 1
    (doubt,) = (
        sentence
        for sentence in doubts(summarise(read_sweep(tmp_path / "b")))
        if "warm-up" in sentence
    )
    assert doubt.startswith("18 of 18 trials are older records")


def test_programs_get_every_number(tmp_path, written):
    sweep(tmp_path / "b", repeats=2, seed=50)
    change = compare_sweeps(written(), tmp_path / "b", 0.03)
    table = json.loads(json.dumps(change_json(change), allow_nan=False))
    assert (table["tolerance"], table["exit_code"]) == (0.03, exit_codes.CANNOT_TELL)
    assert table["cells"][0]["ratio_low"] is None
    assert table["cells"][0]["verdict"] == "unknown"
