"""The report of a sweep of samples: the best trials and pictures, instead of families."""

import json
import sys

import pytest
from synthetic_sweep import make_study, write_failed, write_sweep, write_trial

from tfunet.bench.analysis.ensemble import ensemble_of, importance, rank_correlation
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.ensemble_plots import MOST_DOTS, against_settings, parallel_coordinates
from tfunet.bench.report.sweep_report import summary_json, summary_table, write_report

RATES = {"low": 1e-4, "high": 1e-1, "log": True}
SPACE = {
    "learning_rate": RATES,
    "optimizer": ["adam", "sgd"],
    "model_options": {"filters": [4, 8]},
}


def sample_study(number, **changes):
    samples = {"method": "random", "number": number, "space": SPACE}
    base = {"replica_batch": 4}
    return make_study(base=base, grid={}, skip=[], repeats=1, samples=samples, **changes)


def write_samples(folder, number):
    """Write finished trials whose Dice is best at the highest learning rate; one has failed."""
    trials = write_sweep(folder, sample_study(number), write=lambda trial: False)
    for trial in trials[1:]:
        score = 0.5 + 4 * trial.config.learning_rate
        write_trial(folder, trial, dice={"cell": score}, iou={"cell": score / 2})
    write_failed(folder, trials[0], "out of memory")
    return trials


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs") / "samples"
    return folder, write_samples(folder, 24)


def test_the_best_trials_come_first_with_their_settings(sweep):
    folder, trials = sweep
    ensemble = ensemble_of(read_sweep(folder))
    assert ensemble.columns == ("learning_rate", "optimizer", "model_options.filters")
    assert (ensemble.objective, ensemble.direction) == ("val_dice", "maximize")
    by_rate = sorted(trials[1:], key=lambda trial: -trial.config.learning_rate)
    assert [result.trial.id for result in ensemble.scored] == [trial.id for trial in by_rate]
    assert (
        ensemble.best.values["model_options.filters"] == by_rate[0].config.model_options["filters"]
    )
    assert rank_correlation(ensemble, "learning_rate") == pytest.approx(1)
    assert rank_correlation(ensemble, "optimizer") is None
    assert abs(rank_correlation(ensemble, "model_options.filters")) < 0.6


def test_the_report_shows_the_ensemble_and_no_families(sweep, tmp_path):
    folder, trials = sweep
    best = max(trials[1:], key=lambda trial: trial.config.learning_rate)
    text = summary_table(folder)
    assert f"The highest val_dice is {0.5 + 4 * best.config.learning_rate:.4g}" in text
    assert "23 of 24 trials have a score" in text
    assert "speed-up" not in text
    facts = summary_json(folder)
    assert facts["cells"] == facts["comparisons"] == []
    assert facts["ensemble"]["trials"][0]["trial"] == best.id
    json.dumps(facts)
    report = write_report(folder, tmp_path / "report")
    assert [path.stem for path in report.figures] == ["samples", "parallel", "importance"]
    page = report.html.read_text()
    assert "<h2>Ensemble</h2>" in page
    assert "learning_rate" in report.figures[1].read_text()
    assert "out of memory" in page
    assert "## Ensemble" in report.markdown.read_text()
    assert len(report.trials.read_text().splitlines()) == 25


def test_the_setting_that_decides_is_the_most_important(sweep):
    shares = importance(ensemble_of(read_sweep(sweep[0])))
    assert next(iter(shares)) == "learning_rate"
    assert shares["learning_rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)


def test_without_optuna_the_report_says_what_is_missing(sweep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    report = write_report(sweep[0], tmp_path / "report")
    assert [path.stem for path in report.figures] == ["samples", "parallel"]
    assert "The importance of settings needs Optuna: pip install" in summary_table(sweep[0])


def test_figures_of_thousands_of_trials_stay_small(sweep):
    from dataclasses import replace

    ensemble = ensemble_of(read_sweep(sweep[0]))
    many = replace(ensemble, scored=ensemble.scored * 100)
    axes = against_settings(many, most=2).axes[0]
    assert len(axes.collections[0].get_offsets()) == MOST_DOTS
    lines = parallel_coordinates(many, most=300).axes[0].lines
    assert len(lines) == 300 + 4  # And an axis for each setting and the score.


def test_a_sample_is_ranked_by_its_mean_over_folds(tmp_path):
    study = make_study(
        base={"folds": 2},
        grid={"fold": [0, 1]},
        skip=[],
        repeats=1,
        samples={"method": "random", "number": 3, "space": {"learning_rate": RATES}},
    )
    trials = write_sweep(tmp_path, study, write=lambda trial: False)
    rates = sorted({trial.config.learning_rate for trial in trials})
    # The first has the best single fold, the second the best mean; the third lacks a fold.
    scores = {rates[0]: (0.9, 0.1), rates[1]: (0.6, 0.7), rates[2]: (0.95, None)}
    for trial in trials:
        score = scores[trial.config.learning_rate][trial.config.fold]
        if score is not None:
            write_trial(tmp_path, trial, dice={"cell": score})
    ensemble = ensemble_of(read_sweep(tmp_path))
    assert ensemble.columns == ("learning_rate",)
    assert [(result.values["learning_rate"], result.score) for result in ensemble.scored] == [
        (rates[1], pytest.approx(0.65)),
        (rates[0], pytest.approx(0.5)),
    ]
    assert "2 of 3 trials have a score" in summary_table(tmp_path)


def test_a_study_without_samples_has_no_ensemble(tmp_path):
    write_sweep(tmp_path / "sweep", make_study(repeats=1))
    assert ensemble_of(read_sweep(tmp_path / "sweep")) is None
    assert "ensemble" not in summary_json(tmp_path / "sweep")
    plan = json.loads((tmp_path / "sweep/plan.json").read_text())
    assert "samples" not in plan


def test_an_ensemble_without_a_score_has_a_report(tmp_path):
    folder = tmp_path / "samples"
    for trial in write_sweep(folder, sample_study(2), write=lambda trial: False):
        write_failed(folder, trial, "no such data set")
    assert "0 of 2 trials have a score (val_dice)" in summary_table(folder)
    assert "no such data set" in write_report(folder).html.read_text()
