"""A report on runs on arrays: their scores by name, the right way round, and nothing of images."""

import numpy as np
import pytest
from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet.bench.analysis.confidence_intervals import adjusted_p_values, difference
from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.answer import answer
from tfunet.bench.report.configuration_table import best_configurations
from tfunet.bench.report.findings import findings
from tfunet.bench.report.sweep_report import write_report
from tfunet.bench.report.tables import summary_rows
from tfunet.learning.student_t import CONFIDENCE

GRID = {"backend": ["single", "mirrored", "horovod"], "num_replicas": [1, 2]}
ACCURACY = {"val_accuracy": "max", "val_loss": "min"}
SWEEPS = 2000


def write(folder, scores, values, grid=GRID, repeats=3):
    """Write a sweep whose trials have scores; `values` gives them for a trial."""
    for trial in write_sweep(folder, make_study(grid=grid, repeats=repeats, skip=[])):
        found = values(trial)
        loss = found.pop("val_loss", 0.35)
        write_trial(folder, trial, regions=(), scores=scores, metrics=found, val_loss=loss)
    return summarise(read_sweep(folder))


def accuracy(trial):
    rng = np.random.default_rng([trial.repeat, len(trial.id)])
    planted = 0.1 if trial.config.backend == "horovod" else 0.0
    return {"val_accuracy": 0.8 - planted + 0.01 * trial.repeat + 1e-3 * rng.normal()}


def test_a_planted_difference_is_told_with_the_name_of_the_score(tmp_path):
    summary = write(tmp_path, ACCURACY, accuracy, repeats=5)
    different, same, *_ = findings(summary)["Scores"]
    assert "Different from the val_accuracy of single x1 (0.8" in different
    assert "more is better" in different
    assert "horovod x2 -0.1" in different
    assert "horovod x2" not in same
    assert "Scores differ: see there for" in answer(summary)
    assert summary_rows(summary.families[0])[0]["val_accuracy"].startswith("0.8")


def test_a_report_says_nothing_of_images_and_masks(tmp_path):
    write(tmp_path, ACCURACY, accuracy)
    report = write_report(tmp_path)
    for text in (report.html.read_text(), report.markdown.read_text()):
        assert "val_accuracy" in text
        assert "samples/s" in text
        assert not [word for word in ("images/s", "Images per", "mIoU", "voxel") if word in text]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        (ACCURACY, "sgd"),  # It has more of both.
        ({"val_loss": "min", "val_accuracy": None}, "adam"),
        ({"val_mae": "min", "val_loss": "min"}, "adam"),
    ],
)
def test_the_best_configuration_is_best_by_the_main_score_and_its_way(tmp_path, scores, best):
    def values(trial):
        more = 0.1 if trial.config.optimizer == "sgd" else 0.0
        value = 0.5 + more + 0.001 * trial.repeat
        return dict.fromkeys(("val_loss", "val_accuracy", "val_mae"), value)

    grid = {"optimizer": ["adam", "sgd"]}
    summary = write(tmp_path, scores, values, grid=grid, repeats=5)
    words = best_configurations(summary.families, has_speeds=False)
    kind = "highest" if scores[next(iter(scores))] == "max" else "lowest"
    assert f"optimizer={best} has the {kind} {next(iter(scores))}" in words.replace(" = ", "=")
    assert "is ahead of all others beyond chance" in words


@pytest.mark.parametrize("repeats", [3, 5, 10])
def test_scores_without_a_difference_differ_in_at_most_5_percent_of_the_sweeps(repeats):
    rng = np.random.default_rng(repeats)
    wrong = 0
    for _ in range(SWEEPS):
        shared = rng.normal(0, 0.02, repeats)
        cells = 0.8 + shared + rng.normal(0, 0.01, (4, repeats))
        first, *others = [dict(enumerate(cell, 1)) for cell in cells.tolist()]
        found = adjusted_p_values([difference(other, first) for other in others])
        wrong += any(p is not None and p < 1 - CONFIDENCE for p in found)
    assert wrong / SWEEPS <= 0.05
