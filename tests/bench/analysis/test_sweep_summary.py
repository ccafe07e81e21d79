import re

import pytest
from synthetic_sweep import EFFICIENCY, drawn, make_study, summary_of, write_sweep, write_trial

from tfunet.bench.analysis.confidence_intervals import spread
from tfunet.bench.analysis.dice_target import DiceTarget, Reached
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.findings import doubts, findings
from tfunet.bench.report.tables import family_heading, metric_rows

NO_SKIP = {"skip": []}


def cells_of(family):
    return {cell.label: cell for cell in family.cells}


def test_speed_up_and_efficiency_are_those_that_were_planted(tmp_path):
    summary, _ = summary_of(tmp_path, noise=0.0)
    (family,) = summary.families
    assert (family.baseline, family.scaling) == ("single", "weak")
    cells = cells_of(family)
    assert len(cells) == 7
    for label, cell in cells.items():
        if not cell.is_baseline:
            assert cell.efficiency == pytest.approx(EFFICIENCY[cell.way]), label
            # The 10 % by which the repeats differ are shared with the baseline.
            assert cell.speed_up.high == pytest.approx(cell.speed_up.low)
            assert cell.speed_up_repeats == pytest.approx([cell.speed_up.value] * 3)
    assert [cell.label for cell in family.cells if cell.is_baseline] == ["single x1"]


def test_strong_scaling_keeps_the_global_batch_fixed(tmp_path):
    summary, _ = summary_of(tmp_path, noise=0.0, base={"global_batch": 8})
    (family,) = summary.families
    assert family.scaling == "strong"
    cells = cells_of(family)
    assert [(cell.replica_batch, cell.global_batch) for cell in cells.values()][-1] == (2, 8)
    assert cells["horovod x4"].efficiency == pytest.approx(EFFICIENCY["horovod"])


def test_cells_are_compared_only_with_cells_of_the_same_settings(tmp_path):
    summary, _ = summary_of(
        tmp_path,
        base={},
        grid={
            "backend": ["single", "horovod"],
            "num_replicas": [1, 2],
            "replica_batch": [2, 4],
            "model_options.filters": [8, 16],
        },
        **NO_SKIP,
    )
    assert len(summary.families) == 4
    assert {family.title for family in summary.families} == {
        f"model_options.filters={filters} replica_batch={batch}"
        for filters in (8, 16)
        for batch in (2, 4)
    }
    for family in summary.families:
        assert len({cell.replica_batch for cell in family.cells}) == 1


def test_folds_are_repeats_of_a_cell_and_are_compared_within_themselves(tmp_path):
    summary, _ = summary_of(
        tmp_path,
        noise=0.0,
        repeats=2,
        base={"folds": 3, "cores_per_replica": 1},
        grid={"backend": ["single", "horovod"], "num_replicas": [1, 2], "fold": [0, 1, 2]},
        **NO_SKIP,
    )
    (family,) = summary.families
    assert (family.num_folds, family.title) == (3, "")
    cells = cells_of(family)
    assert set(cells) == {"single x1", "horovod x1", "horovod x2"}
    for cell in cells.values():
        assert [trial.repeat for trial in cell.trials] == [1, 2, 3, 4, 5, 6]
        assert [trial.config.fold for trial in cell.trials] == [0, 1, 2] * 2
    # What a repeat and a fold share cancels.
    speed_up = cells["horovod x2"].speed_up
    assert (speed_up.repeats, speed_up.paired) == (6, True)
    assert speed_up.high == pytest.approx(speed_up.low)
    rows = metric_rows(family)
    assert [(row["metric"], row["backend"], row["replicas"]) for row in rows] == [
        ("Dice", "single", "1"),
        ("Dice", "horovod", "1"),
        ("Dice", "horovod", "2"),
    ]
    dice = [trial.result.dice["cell"] for trial in cells["single x1"].trials]
    assert rows[0]["mean (95 % interval)"].startswith(f"{sum(dice) / 6:.3f} (")
    assert "3 folds, which count as repeats" in family_heading(family)
    assert not [line for line in doubts(summary) if "too few for an interval" in line]


def test_a_fold_alone_changes_nothing(tmp_path):
    summary, _ = summary_of(tmp_path, base={"folds": 3, "fold": 2, "cores_per_replica": 1})
    (family,) = summary.families
    assert [trial.repeat for trial in family.cells[0].trials] == [1, 2, 3]
    assert "fold" not in family_heading(family)


def test_options_of_a_backend_make_another_way(tmp_path):
    summary, _ = summary_of(
        tmp_path,
        grid={"num_replicas": [1, 2]},
        case=[
            {"backend": "single"},
            {"backend": "horovod"},
            {"backend": "horovod", "backend_options.compression": "fp16"},
            {"backend": "multiworker", "processes": 1},
        ],
        **NO_SKIP,
    )
    (family,) = summary.families
    assert family.ways == [
        "single",
        "horovod",
        "horovod compression=fp16",
        "multiworker processes=1",
    ]


def test_without_single_each_way_has_its_own_baseline(tmp_path):
    summary, _ = summary_of(
        tmp_path,
        noise=0.0,
        grid={"backend": ["mirrored", "horovod"], "num_replicas": [1, 2]},
        **NO_SKIP,
    )
    (family,) = summary.families
    assert family.baseline is None
    cells = cells_of(family)
    assert {label for label, cell in cells.items() if cell.is_baseline} == {
        "mirrored x1",
        "horovod x1",
    }
    assert cells["mirrored x2"].efficiency == pytest.approx(EFFICIENCY["mirrored"])
    assert "Scores" not in findings(summary)


def test_split_samples_and_stages_count_their_devices(tmp_path):
    cases = [
        {"backend": "single"},
        {"backend": "mirrored", "split": [2, 1]},
        {"backend": "mirrored", "split": [2, 2], "num_replicas": 2, "replica_batch": 2},
        {"backend": "horovod", "stages": 2, "micro_batches": 2, "balance": ["up0"]},
    ]
    summary, _ = summary_of(tmp_path, noise=0.0, grid={}, case=cases, **NO_SKIP)
    cells = {}
    for family in summary.families:
        cells |= cells_of(family)
    split = cells["mirrored split=2x1 x1"]
    assert split.num_devices == 2
    assert not split.is_baseline
    assert split.speed_up.value == pytest.approx(2 * EFFICIENCY["mirrored"])
    assert split.efficiency == pytest.approx(EFFICIENCY["mirrored"])
    assert cells["mirrored split=2x2 x2"].num_devices == 8
    staged = cells["horovod stages=2 schedule=1f1b micro_batches=2 balance=up0 x1"]
    assert staged.num_devices == 2
    assert not staged.is_baseline
    assert staged.speed_up.value == pytest.approx(2 * EFFICIENCY["horovod"])


def test_pipelines_and_stores_are_ways_beside_the_usual_one(tmp_path):
    cases = [{"pipeline": "tf"}, {"pipeline": "dali"}, {"store": "files"}]
    case = [{"backend": "single", **one} for one in cases]
    summary, _ = summary_of(tmp_path, noise=0.0, grid={}, case=case, **NO_SKIP)
    (family,) = summary.families
    cells = cells_of(family)
    assert set(cells) == {"single x1", "single pipeline=dali x1", "single store=files x1"}
    assert [label for label, cell in cells.items() if cell.is_baseline] == ["single x1"]


def test_split_samples_alone_have_no_baseline(tmp_path):
    cases = [{"backend": "mirrored", "split": [2, 1]}, {"backend": "horovod", "split": [2, 1]}]
    summary, _ = summary_of(tmp_path, grid={}, case=cases, **NO_SKIP)
    (family,) = summary.families
    assert [cell.speed_up for cell in family.cells] == [None, None]
    assert not any(cell.is_baseline for cell in family.cells)


def test_without_one_replica_there_is_no_speed_up(tmp_path):
    summary, _ = summary_of(tmp_path, grid={"backend": ["horovod"], "num_replicas": [2, 4]})
    (family,) = summary.families
    assert [cell.speed_up for cell in family.cells] == [None, None]
    assert family.baseline is None


def test_the_faster_way_comes_first_and_says_so(tmp_path):
    summary, _ = summary_of(tmp_path, noise=0.001)
    (family,) = summary.families
    found = [
        (comparison.upper.label, comparison.lower.way, comparison.verdict)
        for comparison in family.comparisons
    ]
    assert found == [
        (f"{upper} x{count}", lower, "faster")
        for count in (2, 4)
        for upper, lower in (
            ("horovod", "mirrored"),
            ("horovod", "multiworker"),
            ("mirrored", "multiworker"),
        )
    ]
    sentences = findings(summary)["Speed"]
    assert sentences[0].startswith("horovod at 2 replicas is 1.06 times as fast as mirrored (95 %")
    assert re.search(r"3 repeats; adjusted p .+\): faster\.$", sentences[0])


def test_the_verdict_allows_for_all_comparisons_of_the_sweep(tmp_path):
    grid = {"backend": ["mirrored", "horovod"], "num_replicas": [2]}
    study = make_study(grid={**grid, "xla": [True, False]}, skip=[])
    speeds = {"mirrored": (10.0, 10.0, 10.0), "horovod": (10.9, 11.3, 11.0)}
    for trial in write_sweep(tmp_path, study):
        value = speeds[trial.config.backend][trial.repeat - 1]
        if not trial.config.xla:  # the same again, as another family
            value += 0.001 * trial.repeat
        write_trial(tmp_path, trial, images_per_second=value)
    both = summarise(read_sweep(tmp_path))
    assert (len(both.families), both.num_comparisons) == (2, 2)
    p_values = sorted(family.comparisons[0].ratio.p_value() for family in both.families)
    adjusted = sorted(family.comparisons[0].adjusted_p for family in both.families)
    assert adjusted[0] == pytest.approx(2 * p_values[0])
    assert adjusted[1] >= adjusted[0]


def test_an_interval_can_exclude_1_where_the_verdict_does_not(tmp_path):
    study = make_study(
        grid={"backend": ["mirrored", "horovod", "multiworker"], "num_replicas": [2]}
    )
    speeds = {
        "mirrored": (10.0, 10.0, 10.0),
        "horovod": (10.7, 11.3, 11.0),
        "multiworker": (9.0, 11.0, 10.0),
    }
    for trial in write_sweep(tmp_path, study):
        write_trial(
            tmp_path, trial, images_per_second=speeds[trial.config.backend][trial.repeat - 1]
        )
    (family,) = summarise(read_sweep(tmp_path)).families
    found = next(
        comparison for comparison in family.comparisons if comparison.lower.way == "mirrored"
    )
    assert found.ratio.low > 1
    assert found.ratio.p_value() < 0.05 < found.adjusted_p
    assert found.verdict == "not distinguishable"


def test_one_backend_under_two_names_is_not_distinguishable(tmp_path):
    names = ["horovod", "hvd.backend:HorovodBackend"]
    grid = {"backend": names, "num_replicas": [2, 4]}
    summary, _ = summary_of(tmp_path, grid=grid, repeats=10, speed={}, noise=0.05)
    verdicts = [comparison.verdict for comparison in summary.families[0].comparisons]
    assert verdicts == ["not distinguishable"] * 2


def test_the_law_of_the_scaling_is_told(tmp_path):
    summary, _ = summary_of(tmp_path, noise=0.0, speed={"horovod": 0.9})
    sentences = findings(summary)["Scaling"]
    # 2 replicas give 1.8, 4 give 3.6: shares 0.2 and 0.4 / 3, the second with 9 times the weight.
    assert (
        "horovod follows Gustafson's law with a serial share of 0.140; its speed-ups are up to "
        "3.3% away from it."
    ) in sentences
    strong, _ = summary_of(tmp_path / "strong", noise=0.0, base={"global_batch": 8})
    (limit,) = (
        sentence
        for sentence in findings(strong)["Scaling"]
        if sentence.startswith("multiworker follows")
    )
    assert "follows Amdahl's law" in limit
    assert "which allows at most" in limit


def test_pairs_decide_which_is_faster_not_medians(tmp_path):
    study = make_study(grid={"backend": ["mirrored", "horovod"], "num_replicas": [2]})
    speeds = {"mirrored": (10.0, 20.0, 30.0), "horovod": (19.0, 19.0, 29.0)}
    for trial in write_sweep(tmp_path, study):
        value = speeds[trial.config.backend][trial.repeat - 1]
        write_trial(tmp_path, trial, images_per_second=value)
    (comparisons,) = summarise(read_sweep(tmp_path)).families[0].comparisons
    assert (comparisons.upper.way, comparisons.lower.way) == ("horovod", "mirrored")
    assert comparisons.ratio.value == pytest.approx((1.9 * 19 / 20 * 29 / 30) ** (1 / 3))


def test_equal_backends_are_not_distinguishable(tmp_path):
    summary, _ = summary_of(tmp_path, speed={}, base={"seed": 1})
    sentences = findings(summary)["Speed"]
    assert len(sentences) == 6
    assert all(sentence.endswith(": not distinguishable.") for sentence in sentences)


def test_many_ways_are_compared_with_the_fastest_only(tmp_path):
    options = [{"backend": "horovod", "backend_options.cycle": number} for number in range(5)]
    summary, _ = summary_of(tmp_path, grid={"num_replicas": [2]}, case=options, **NO_SKIP)
    (family,) = summary.families
    assert len(family.main_comparisons) == 4
    pairs = [{comparison.upper.way, comparison.lower.way} for comparison in family.main_comparisons]
    assert len(set.intersection(*pairs)) == 1
    # Which one is the fastest is seen only afterwards: all pairs count.
    assert summary.num_comparisons == len(family.comparisons) == 10


def test_a_failed_trials_time_is_not_used(tmp_path):
    summary, trials = summary_of(tmp_path, noise=0.0)
    planted = next(trial for trial in trials if trial.id.startswith("horovod-2r-r1"))
    write_trial(tmp_path, planted, images_per_second=1e6, checks={"weights": False})
    summary = summarise(read_sweep(tmp_path))
    cell = cells_of(summary.families[0])["horovod x2"]
    assert len(cell.done) == 2
    assert max(cell.images_per_second.values) < 1e3
    assert cell.efficiency == pytest.approx(EFFICIENCY["horovod"])
    assert [trial.id for trial in summary.not_done] == [planted.id]


def test_settings_are_split_into_varying_and_fixed(tmp_path):
    summary, _ = summary_of(tmp_path)
    assert summary.varying["backend"] == ["single", "mirrored", "multiworker", "horovod"]
    assert summary.varying["num_replicas"] == ["1", "2", "4"]
    assert summary.fixed["model_options.filters"] == 8
    assert not summary.varying.keys() & summary.fixed.keys()
    assert "seed" not in {*summary.varying, *summary.fixed}


def test_scores_are_judged_against_the_single_device(tmp_path):
    study = {"grid": {"backend": ["single", "horovod", "mirrored"], "num_replicas": [1, 2]}}
    trials = write_sweep(tmp_path, make_study(**study))
    dice = {"single": 0.80, "horovod": 0.70, "mirrored": 0.8001}
    for trial in trials:
        value = dice[trial.config.backend] + 0.001 * trial.repeat
        noise = 0.001 * drawn(trial).gauss(0, 1)
        write_trial(tmp_path, trial, dice={"cell": value + noise}, steps=40)
    first, second = findings(summarise(read_sweep(tmp_path)))["Scores"]
    assert first.startswith("Different from the mean Dice of single x1 (0.80")
    assert re.search(r"horovod x2 -0\.(099|100|101) \(95 % interval", first)
    assert second.startswith("Not distinguishable from the mean Dice")
    assert "mirrored x2" in second


def test_one_repeat_allows_no_verdict(tmp_path):
    summary, _ = summary_of(tmp_path, repeats=1)
    sentences = findings(summary)
    assert sentences["Speed"][0].endswith(
        "(1 repeat: no interval): more repeats are needed to tell."
    )
    assert sentences["Scores"][0].startswith("Too few repeats to tell from the mean Dice")
    assert "different numbers of optimizer steps (15 to 60)" in sentences["Scores"][1]


def test_samples_that_grow_with_their_devices_are_compared(tmp_path):
    """Twice the volume on two devices at 0.8 of the rate of one device: 1.6 times the voxels."""
    summary, _ = summary_of(
        tmp_path,
        noise=0.0,
        # A split cell of two devices makes 2 x 10 x 0.4 samples a second, one device 10.
        speed={**EFFICIENCY, "multiworker": 0.4},
        grid={},
        case=[
            {"backend": "single", "patch": [32, 32]},
            {"backend": "single", "patch": [64, 32]},
            {"backend": "multiworker", "patch": [64, 32], "split": [2, 1]},
            # Neither has a part of this size.
            {"backend": "multiworker", "patch": [48, 32], "split": [2, 1]},
            # Another network is no baseline.
            {"backend": "single", "patch": [32, 32], "model_options.filters": 16},
        ],
        **NO_SKIP,
    )
    (line,) = findings(summary)["Weak scaling in space"]
    assert "split=2x1 x1 on samples of 64 x 32 does 1.60 times the voxels a second of" in line
    assert "single x1 on 32 x 32, with 2 times its devices: efficiency 0.80" in line


def test_who_reaches_a_score_first_is_told(tmp_path):
    """Twice the images a second are no use to who needs four times the images."""
    summary, _ = summary_of(tmp_path)
    (family,) = summary.families

    def reached(*seconds):
        rest = dict.fromkeys(("samples", "device_hours"), spread([1.0]))
        return Reached(num_reached=3, num_repeats=3, seconds=spread(seconds), **rest)

    times = {"horovod x2": reached(16.0, 18.0, 20.0), "single x1": reached(8.0, 9.0, 12.0)}
    target = DiceTarget(dice=0.68, reached=times)
    (line,) = findings(summary, [(family, target)])["Time to a score"]
    assert line.startswith(
        "single x1 is the first at a Dice of 0.68, after 9 [8, 12] s of training"
    )
    assert "; horovod x2 18 [16, 20] s, 2.00 times as long." in line
    assert "Time to a score" not in findings(summary, [(family, DiceTarget(dice=None, reached={}))])


TERMS = {
    # One run, and runs of one number of replicas: there is no scaling to speak of.
    "one run": "2 replicas, replica_batch=8, global_batch=16; no scaling can be told",
    "one replica": "1 replica, replica_batch=8, global_batch=8; speed-up against one replica of",
    "two backends": "2 replicas, replica_batch=8, global_batch=16; no scaling can be told",
    "no single": "Weak scaling (fixed replica_batch); speed-up of each backend against its own",
    "strong": "Strong scaling (fixed global_batch); speed-up against one replica of single",
}


@pytest.mark.parametrize(
    ("case", "backends", "counts", "fixed"),
    [
        ("one run", ["mirrored"], [2], "global_batch"),
        ("one replica", ["single", "horovod"], [1], "replica_batch"),
        ("two backends", ["mirrored", "horovod"], [2], "global_batch"),
        ("no single", ["mirrored", "horovod"], [1, 2], "replica_batch"),
        ("strong", ["single", "horovod"], [1, 2], "global_batch"),
    ],
)
def test_a_heading_says_of_scaling_what_the_runs_can_tell(tmp_path, case, backends, counts, fixed):
    batch = {"replica_batch": 8, "global_batch": 16}[fixed]
    grid = {"backend": backends, "num_replicas": counts}
    base = {fixed: batch, "cores_per_replica": 1}
    trials = write_sweep(tmp_path / "sweep", make_study(repeats=1, grid=grid, base=base, **NO_SKIP))
    folder = tmp_path / "sweep"
    if case == "one run":  # By its folder alone, where no plan is.
        folder = folder / trials[0].id
    (family,) = summarise(read_sweep(folder)).families
    assert family_heading(family).startswith(TERMS[case])
