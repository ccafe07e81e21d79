import json

import pytest
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.repeats_needed import (
    assumed_noise,
    need_of,
    noise_of_machine,
    num_comparisons,
    repeats_needed,
)
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.analysis.trial_noise import Noise, block_noise, noise_of_records
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.repeats_needed_text import need_json, need_text
from tfunet.bench.study.trial_plan import plan_trials

KNOWN = Noise(deviation=0.02, freedom=None, source="known")


def test_more_precision_noise_or_comparisons_take_more_repeats():
    usual = repeats_needed(KNOWN, 0.02, 3).repeats
    assert repeats_needed(KNOWN, 0.01, 3).repeats > 3 * usual
    assert repeats_needed(KNOWN, 0.02, 30).repeats > usual
    louder = Noise(deviation=0.04, freedom=None, source="known")
    assert repeats_needed(louder, 0.02, 3).repeats > 3 * usual


def test_the_repeats_are_those_of_the_textbook():
    # One comparison: (1.96 + 1.645)^2 (0.02 / ln 1.02)^2 = 13.3 with normal quantiles, and two
    # more with those of t.
    assert repeats_needed(KNOWN, 0.02, 1).repeats == 16


def test_an_estimate_from_few_records_asks_for_more_than_an_assumption():
    few = Noise(deviation=0.02, freedom=2, source="records")
    assert repeats_needed(few, 0.02, 3).repeats > 2 * repeats_needed(KNOWN, 0.02, 3).repeats


def test_folds_count_as_repeats():
    base = {"folds": 4}
    study = make_study(grid={"fold": [0, 1, 2, 3]}, skip=[], repeats=1, base=base)
    text = need_text(repeats_needed(KNOWN, 0.02, 1), plan_trials(study, 4))
    words = "repeats = 1 of 4 folds, which count as repeats: set repeats = 4 (16 trials instead"
    assert words in text


def test_never_fewer_repeats_than_an_interval_needs():
    silent = Noise(deviation=0.0, freedom=None, source="known")
    assert repeats_needed(silent, 0.01, 1).repeats == 3
    assert repeats_needed(KNOWN, 0.9, 1).repeats == 3


@pytest.mark.parametrize(
    ("deviation", "precision", "words"),
    [
        (0.02, 0.0, "precision must lie between 0 % and 100 %, got 0%"),
        (0.02, 1.5, "got 150%"),
        (-0.1, 0.02, "noise must be 0 % or more, got -10%"),
    ],
)
def test_a_precision_that_cannot_be_is_refused(deviation, precision, words):
    noise = Noise(deviation=deviation, freedom=None, source="known")
    with pytest.raises(ValueError, match=words):
        repeats_needed(noise, precision, 1)


def test_noise_is_what_is_left_without_cells_and_repeats():
    exact = [{1: 10.0, 2: 5.0, 3: 8.0}, {1: 20.0, 2: 10.0, 3: 16.0}]
    assert block_noise(exact) == (pytest.approx(0, abs=1e-12), 2)
    # Logarithms of the ratio: 0 and 0.2, whose variance is 0.02.
    assert block_noise([{1: 1.0, 2: 1.2214028}, {1: 1.0, 2: 1.0}]) == (pytest.approx(0.02), 1)
    assert block_noise([{1: 1.0, 2: 2.0}]) == (0.0, 0)
    assert block_noise([{1: 1.0}, {2: 2.0}]) == (0.0, 0)


def test_the_noise_of_records_is_the_one_that_was_planted(tmp_path):
    write_sweep(tmp_path, make_study(repeats=40), noise=0.03)
    noise = noise_of_records(summarise(read_sweep(tmp_path)))
    # 7 cells, 40 repeats; of a ratio of two trials.
    assert noise.freedom == 6 * 39
    assert noise.deviation == pytest.approx(0.03 * 2**0.5, rel=0.1)


def test_one_repeat_tells_no_noise(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    assert noise_of_records(summarise(read_sweep(tmp_path))) is None


def test_pairs_at_equal_replicas_are_counted():
    assert num_comparisons(plan_trials(make_study(), 64)) == 6
    grid = {"backend": ["single", "horovod"], "num_replicas": [1, 2], "xla": [True, False]}
    assert num_comparisons(plan_trials(make_study(grid=grid, skip=[]), 64)) == 2


def test_the_source_of_the_noise_is_told(tmp_path):
    planned = plan_trials(make_study(), 64)
    texts = {"assumed": need_text(need_of(planned, tmp_path, 0.1, assumed=0.01), planned)}
    write_sweep(tmp_path / "done")
    texts["records"] = need_text(need_of(planned, tmp_path / "done", 0.1), planned)
    machine = noise_of_machine({"spread": 0.0256})
    texts["machine"] = need_text(repeats_needed(machine, 0.1, 6), planned)
    assert machine.deviation == pytest.approx(0.01 * 2**0.5, rel=0.01)
    assert "your assumption that a trial varies by 1.0%" in texts["assumed"]
    assert f"from the records in {tmp_path / 'done'}, 12 degrees" in texts["records"]
    assert (
        "no recorded repeats; assuming that a trial varies as much as a short" in texts["machine"]
    )
    assert "in 95 of 100 sweeps, judged among 6 comparisons." in texts["machine"]


def test_an_assumption_counts_for_more_than_records(tmp_path):
    write_sweep(tmp_path)
    need = need_of(plan_trials(make_study(), 64), tmp_path, 0.1, assumed=0.01)
    assert need.noise == assumed_noise(0.01)


def test_without_records_the_machine_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tfunet.bench.analysis.repeats_needed.measure_noise", lambda: {"spread": 0.02}
    )
    need = need_of(plan_trials(make_study(), 64), tmp_path, 0.1)
    assert need.noise == noise_of_machine({"spread": 0.02})


@pytest.mark.parametrize(
    ("deviation", "precision", "repeats", "finest", "own"),
    [
        (0.3, 0.05, 494, "30 %", "100 %"),
        (0.3, 0.001, None, "30 %", "100 %"),  # More than are ever counted.
        (0.05, 0.01, 331, "5 %", "24 %"),
        (3.0, 0.05, None, "100 %", "100 %"),
    ],
)
def test_a_noisy_machine_is_called_so_instead_of_asking_for_hundreds(
    deviation, precision, repeats, finest, own
):
    planned = plan_trials(make_study(repeats=3), 64)
    need = repeats_needed(Noise(deviation=deviation, freedom=None, source="known"), precision, 1)
    text = need_text(need, planned)
    assert need.repeats == repeats
    assert need_json(need)["repeats"] == repeats
    assert (
        f"the machine is too noisy for differences below {finest}, even with 20 repeats, " in text
    )
    assert f"The study's 3 repeats find none below {own}." in text
    assert "trials instead" not in text
    if need_json(need)["finest"] < 1:
        assert repeats_needed(need.noise, need_json(need)["finest"], 1).repeats == 20
    # A study that has them already is told that they are enough.
    if repeats is not None:
        rich = plan_trials(make_study(repeats=repeats), 64)
        assert f"repeats = {repeats}, which is enough." in need_text(need, rich)


def test_the_text_says_what_to_set():
    short, long = plan_trials(make_study(repeats=3), 64), plan_trials(make_study(repeats=30), 64)
    need = repeats_needed(KNOWN, 0.03, 6)
    assert f"repeats = 3: set repeats = {need.repeats}" in need_text(need, short)
    assert f"({7 * need.repeats} trials instead of 21)" in need_text(need, short)
    assert "The study has repeats = 30, which is enough." in need_text(need, long)


def test_programs_get_every_number():
    table = json.loads(json.dumps(need_json(repeats_needed(assumed_noise(0.01), 0.02, 3))))
    assert table["repeats"] >= 3
    assert table["noise"] == pytest.approx(0.01 * 2**0.5)
    assert {"precision", "power", "half_width", "comparisons", "noise_source"} < table.keys()


def test_a_planted_slow_down_is_found_by_the_repeats_asked_for(tmp_path):
    speed = {"mirrored": 0.95, "multiworker": 1.0, "horovod": 1.0}
    study = make_study(grid={"backend": list(speed), "num_replicas": [2]}, skip=[])
    need = need_of(plan_trials(study, 64), tmp_path / "none", 0.05, assumed=0.01)
    more = make_study(
        repeats=need.repeats, grid={"backend": list(speed), "num_replicas": [2]}, skip=[]
    )
    write_sweep(tmp_path / "sweep", more, noise=0.01, speed=speed)
    (family,) = summarise(read_sweep(tmp_path / "sweep")).families
    verdicts = {
        (comparison.upper.way, comparison.lower.way): comparison.verdict
        for comparison in family.comparisons
    }
    assert verdicts.pop(("horovod", "mirrored")) == "faster"
    assert verdicts.pop(("multiworker", "mirrored")) == "faster"
    assert list(verdicts.values()) == ["not distinguishable"]
