"""The part of a report that is about tournaments, from made-up records."""

import math
import re

import pytest
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.populations import read_populations
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.population_tables import (
    comparison_rows,
    population_rows,
    population_sentences,
)
from tfunet.bench.report.sweep_report import summary_table, write_report
from tfunet.record import ROUND_COLUMNS, RunFolder

TOURNAMENT = {"trainers": 3, "round_steps": 20}
# Of each trainer and round: own score, partner, its score, whose model, learning rate.
PLAYED = {
    0: [(0.5, 1, 0.6, 1, 0.002), (0.7, None, None, 0, 0.002)],
    1: [(0.6, 0, 0.5, 1, 0.001), (math.nan, 2, 0.2, 2, 0.004)],
    2: [(0.4, None, None, 2, 0.001), (0.3, 1, None, 2, 0.001)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    study = make_study(
        repeats=2,
        grid={},
        skip=[],
        case=[
            {"tournament": TOURNAMENT},
            {"tournament": {**TOURNAMENT, "selection": "none"}},
            {"backend": "mirrored", "num_replicas": 3},
        ],
    )
    for trial in write_sweep(folder, study):
        if trial.config.tournament.get("selection", "none") == "none" and trial.cell:
            continue
        trainer = trial.config.seed % 3
        with RunFolder(folder / trial.id).rounds_table() as table:
            for round, (own, other, theirs, giver, rate) in enumerate(PLAYED[trainer], 1):
                missed = "trainer 1 is missing or late: it plays alone"
                row = {
                    "round": round,
                    "step": 20 * round,
                    "trainer": trainer,
                    "partner": "" if other is None else other,
                    "own_score": own,
                    "partner_score": "" if theirs is None else theirs,
                    "model_of": giver,
                    "reason": missed if other is not None and theirs is None else "why",
                    "learning_rate": rate,
                    "training_seconds": 1.0,
                    "round_seconds": 3.0,
                    "waited_seconds": 1.0,
                }
                assert tuple(row) == ROUND_COLUMNS
                table.append(row)
    return folder


@pytest.fixture(scope="module")
def populations(folder):
    return read_populations(read_sweep(folder))


def test_trainers_of_a_population_stand_in_one_row(populations):
    rows = population_rows(populations)
    assert [(row["runs"].split(", ")[:2], row["population"], row["done"]) for row in rows] == [
        (["3 trainers", "pairwise"], "1", "3 of 3"),
        (["3 trainers", "pairwise"], "2", "3 of 3"),
        (["3 trainers", "independent"], "1", "3 of 3"),
        (["3 trainers", "independent"], "2", "3 of 3"),
        (["mirrored x3"], "1", "1 of 1"),
        (["mirrored x3"], "2", "1 of 1"),
    ]
    # Trainer 0 went on with the model of 1, and 1 with that of 2.
    assert [row["models taken over"] for row in rows] == ["2", "2", "0", "0", "0", "0"]
    assert rows[0]["last models begun by"] == "1, 2"
    assert rows[2]["last models begun by"] == "-"
    best = max(trial.result.mean_dice for trial in populations[0].trainers)
    assert rows[0]["best Dice"] == f"{best:.3f}"


def test_device_hours_count_all_trainers_and_their_rounds_without_waiting(populations):
    tournament, _, independent, *_ = populations
    seconds = [population.curve()[-1][0] for population in (tournament, independent)]
    trial = tournament.trainers[0]
    longest = max(
        3 * trial.result.median_step_seconds * trial.result.steps / 3
        for trial in tournament.trainers
    )
    assert trial.result.steps == 60
    # Both rounds, of 2 s without waiting, come before the last evaluation.
    assert seconds[0] == pytest.approx(longest + 4)
    hours = float(population_rows([tournament])[0]["device-hours"])
    assert hours == pytest.approx(seconds[0] * 3 / 3600, rel=0.01)
    dice = [dice for _, dice in tournament.curve()]
    assert dice == sorted(dice)
    assert len(independent.curve()) >= 3


def test_cells_are_compared_with_independent_runs_population_by_population(populations):
    rows = comparison_rows(populations)
    assert [row["populations"] for row in rows] == ["2", "2", "2"]
    assert rows[1]["minus independent runs"] == "-"
    best = [population.best[1] for population in populations]
    mean = (best[0] - best[2] + best[1] - best[3]) / 2
    assert rows[0]["minus independent runs"].startswith(f"{mean:+.3f}")
    name = next(key for key in rows[0] if key.startswith("device-hours to Dice"))
    target = float(name.split()[-1])
    assert target <= min(best) < target + 0.01
    # A Dice that is reached in the first evaluation takes less than one that is never reached.
    assert populations[0].hours(0.0) < populations[0].hours(target) <= populations[0].hours()
    assert populations[0].hours(2.0) is None


def test_missed_rounds_and_dependent_trainers_are_said(populations):
    sentences = population_sentences(populations)
    assert "not independent" in sentences[0]
    assert "trainer 2 missed others in 1 round (2)." in sentences[1]
    assert len(sentences) == 3


def test_the_report_shows_the_pedigree_and_the_best_score(folder):
    report = write_report(folder)
    page = report.html.read_text()
    assert "<h2>Tournaments</h2>" in page
    assert "## Tournaments" in report.markdown.read_text()
    names = [path.stem for path in report.figures]
    assert names[-3:] == ["population-scores", "pedigree-1", "pedigree-2"]
    svg = report.figures[-2].read_text()
    texts = re.findall(r">([^<>\n]+)</text>", svg)
    assert {"trainer 0", "trainer 2", "0.500", "none", "0.004"} <= set(texts)
    assert "Tournaments" in summary_table(folder)


def test_a_sweep_without_tournaments_has_no_such_part(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    assert read_populations(read_sweep(tmp_path)) == []
    assert "ournament" not in write_report(tmp_path).html.read_text()
