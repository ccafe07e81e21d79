"""Where efficiency is lost: parts that are planted in records, and sum to the whole."""

import csv

import pytest
from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet.bench.analysis.lost_efficiency import bus_bytes_per_second
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.sweep_report import summary_json, write_report
from tfunet.bench.report.tables import lost_rows

GRID = {"backend": ["single", "horovod", "mirrored"], "num_replicas": [1, 2]}
# Milliseconds of a step that one replica makes in 100, 4 of them waiting for its data.
ONE = {"computation": 95.0, "input": 4.0, "communication": 0.0, "stragglers": 0.0, "rest": 1.0}
TWO = {"computation": 97.0, "input": 12.0, "communication": 30.0, "stragglers": 9.0, "rest": 2.0}


def record(parts, num_replicas, scale=1.0):
    """What result.json holds of a run whose step takes `parts` (ms)."""
    alone = parts["computation"]
    slowest = alone + parts["stragglers"]
    synthetic = slowest + parts["communication"]
    real = synthetic + parts["input"]
    whole = real + parts["rest"]
    table = {
        "median_step_seconds": scale * whole / 1000,
        "synthetic_pairs_seconds": [[scale * real / 1000, scale * synthetic / 1000]] * 3,
    }
    if num_replicas > 1:
        table["alone_seconds"] = [
            [scale * milliseconds / 1000] * 3 for milliseconds in (alone, slowest)
        ]
        table |= {"average_seconds": [0.02, 0.02, 0.5], "gradient_bytes": 4_000_000}
    return table


@pytest.fixture
def sweep(tmp_path):
    """Horovod has measured its parts, mirrored not; repeats differ in the machine's speed."""
    trials = write_sweep(tmp_path, make_study(repeats=3, grid=GRID))
    for trial in trials:
        count, scale = trial.config.num_replicas, 1 + 0.1 * trial.repeat
        if trial.config.backend != "mirrored":
            parts = ONE if count == 1 else TWO
            write_trial(tmp_path, trial, **record(parts, count, scale))
    return tmp_path


def test_parts_are_those_that_were_planted_and_sum_to_the_whole(sweep):
    (family,) = summarise(read_sweep(sweep)).families
    by_name = {cell.label: cell.lost for cell in family.cells}
    assert by_name["mirrored x2"] == ()
    assert len(by_name["horovod x2"]) == 3
    whole = sum(TWO.values())
    for parts in by_name["horovod x2"]:
        for name, milliseconds in TWO.items():
            assert getattr(parts, name) == pytest.approx((milliseconds - ONE[name]) / whole), name
        assert parts.total == pytest.approx(1 - sum(ONE.values()) / whole)


ROWS = {"patch": [32, 32]}
SHARED = (
    # Base, way of two devices, what its record has beside, what is lost, in ms of 150.
    ({"global_batch": 8}, {"backend": "horovod", "num_replicas": 2}, {}, {}),
    # 20 of the 30 ms of communication go into the exchange of borders.
    (
        ROWS,
        {"backend": "multiworker", "split": [2, 1]},
        {"split": [2, 1], "exchanging_seconds": [[0.126] * 3] * 2},
        {"halo": 20, "communication": 10},
    ),
    # What is computed for halos.
    (
        {**ROWS, "global_batch": 2, "loss": "crossentropy"},
        {"backend": "multiworker", "tiling": [2, 1], "num_replicas": 2},
        {"tiling": {"redundancy": 1.5}},
        {"halo": 97 - 97 / 1.5, "computation": 97 / 1.5 - 95 / 2},
    ),
)


@pytest.mark.parametrize(("base", "way", "more", "lost"), SHARED, ids=("strong", "split", "tiles"))
def test_where_devices_share_work_each_counts_by_its_share(tmp_path, base, way, more, lost):
    base = {"cores_per_replica": 1, **base}
    case = [{"backend": "single"}, way]
    study = make_study(repeats=1, base=base, grid={}, skip=[], case=case)
    for trial in write_sweep(tmp_path, study):
        is_alone = trial.config.backend == "single"
        table = record(ONE, 1) if is_alone else record(TWO, 2) | more
        write_trial(tmp_path, trial, **table)
    (family,) = summarise(read_sweep(tmp_path)).families
    (parts,) = next(cell for cell in family.cells if not cell.is_baseline).lost
    for name, milliseconds in ({"computation": 97 - 95 / 2} | lost).items():
        assert getattr(parts, name) == pytest.approx(milliseconds / 150), name
    assert parts.total == pytest.approx(1 - 100 / 2 / 150)
    if "split" in more:
        assert lost_rows(family)[-1]["halo"] == "+0.133"


def test_of_stages_of_split_samples_each_exchange_and_each_wait_is_a_part(tmp_path):
    both = {"backend": "multiworker", "split": [2, 1], "stages": 2}
    study = make_study(
        repeats=1,
        base={"patch": [32, 32], "replica_batch": 4, "share_cores": True},
        grid={},
        skip=[],
        case=[{"backend": "single"}, both],
    )
    for trial in write_sweep(tmp_path, study):
        if not trial.config.split:
            write_trial(tmp_path, trial, **record(ONE, 1))
            continue
        table = record({**TWO, "stragglers": 0.0}, 2)
        # Milliseconds of each device, and of the slowest all but the average, then without borders.
        times = {"alone": (20, 30, 40, 50), "crossing": (1, 85, 2, 3), "exchanging": (100, 1, 2, 3)}
        for name, values in times.items():
            table[f"{name}_seconds"] = [[milliseconds / 1000] * 3 for milliseconds in values]
        table |= {"split": [2, 1], "pipeline": {"stages": 2}, "bubble_seconds": 0.025}
        write_trial(tmp_path, trial, **table)
    (family,) = summarise(read_sweep(tmp_path)).families
    cell = next(cell for cell in family.cells if not cell.is_baseline)
    whole = sum(TWO.values()) - TWO["stragglers"]
    milliseconds = {
        "computation": 35 - 95 / 4,
        "input": TWO["input"] - ONE["input"] / 4,
        "communication": 127 - 100,
        "rest": TWO["rest"] - ONE["rest"] / 4,
        "halo": 100 - 85,
        "transfer": 85 - 50 - 25,
        "bubble": 25,
        "imbalance": 50 - 35,
    }
    (parts,) = cell.lost
    assert parts.parts == {
        name: pytest.approx(value / whole) for name, value in milliseconds.items()
    }
    assert parts.total == pytest.approx(1 - 100 / 4 / whole)
    row = lost_rows(family)[-1]
    assert (row["bubble"], row["halo"]) == (f"{25 / whole:+.3f}", f"{15 / whole:+.3f}")
    assert "share_cores is set" in " ".join(summary_json(tmp_path)["doubts"])


def test_the_report_shows_them_with_the_bus_bandwidth(sweep):
    (family,) = summarise(read_sweep(sweep)).families
    (row,) = lost_rows(family)
    assert row["lost efficiency"] == "0.333"
    assert (row["communication"], row["input"], row["rest"]) == ("+0.200", "+0.053", "+0.007")
    # The median average: 2 (n - 1) / n of 4 MB in 20 ms.
    assert (row["average alone (ms)"], row["bus GB/s"]) == ("20", "0.200")
    cell = next(cell for cell in summary_json(sweep)["cells"] if cell["backend"] == "horovod")
    assert cell["lost_stragglers"] == pytest.approx(0.06)
    assert cell["bus_bytes_per_second"] == pytest.approx(2e8)
    (sentence,) = summary_json(sweep)["findings"]["Lost efficiency"]
    assert sentence == (
        "horovod at 2 replicas loses 33.3% of its time: communication 20.0%, stragglers 6.0%, "
        "input 5.3%, computation 1.3%, rest 0.7%."
    )
    report = write_report(sweep)
    for path in (report.html, report.markdown):
        assert "+0.200" in path.read_text()
    rows = {row["trial"]: row for row in csv.DictReader(report.trials.open())}
    assert float(next(row for name, row in rows.items() if "horovod" in name)["average_seconds"])


@pytest.mark.parametrize(("num_replicas", "gigabytes"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_that_of_nccl_tests(num_replicas, gigabytes):
    assert bus_bytes_per_second(2e9, 2.0, num_replicas) == pytest.approx(gigabytes * 1e9)
