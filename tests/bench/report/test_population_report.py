"""The part of a report that is about tournaments, from made-up records."""

import json
import math
import re
from dataclasses import replace

import pytest
from synthetic_sweep import make_study, write_sweep

from tfunet.bench.analysis.populations import compare, read_populations
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.population_tables import (
    comparison_rows,
    cost_rows,
    population_answer,
    population_rows,
    population_sentences,
)
from tfunet.bench.report.sweep_report import summary_json, summary_table, write_report
from tfunet.record import EARLIER, ROUND_COLUMNS, RunFolder

NOISE = "augmentation.noise"
RULE = {"factors": [0.5], "low": 0.01, "high": 1.0}
TOURNAMENT = {"trainers": 3, "round_steps": 20, "mutate": {NOISE: RULE}}
DIFFERENCE = "minus independent runs"
# For each trainer and round: own score, partner, its score, whose model, learning rate.
PLAYED = {
    0: [(0.5, 1, 0.6, 1, 0.002), (0.7, None, None, 0, 0.002)],
    1: [(0.6, 0, 0.5, 1, 0.001), (math.nan, 2, 0.2, 2, 0.004)],
    2: [(0.4, None, None, 2, 0.001), (0.3, 1, None, 2, 0.001)],
}


def write_tournaments(folder, repeats):
    study = make_study(
        repeats=repeats,
        base={"replica_batch": 4, "augmentation": {"noise": 0.1}},
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
        with RunFolder(folder / trial.id).rounds_table([NOISE]) as table:
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
                    NOISE: 0.1 if giver == trainer else 0.05,
                    "training_seconds": 1.0,
                    "round_seconds": 3.0,
                    "waited_seconds": 1.0,
                }
                assert set(row) == {*ROUND_COLUMNS, NOISE}
                table.append(row)
        if trial.config.seed == 4:
            (folder / EARLIER / f"{trial.id}-1").mkdir(parents=True)
            result = RunFolder(folder / trial.id).read_result()
            began = {"began_unix_seconds": [[1, 5.0], [21, 9.0]]}
            RunFolder(folder / trial.id).write_result({**result, **began})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tournaments(tmp_path_factory.mktemp("sweep"), repeats=2)


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
    assert rows[1][DIFFERENCE] == "-"
    best = [population.best[1] for population in populations]
    mean = (best[0] - best[2] + best[1] - best[3]) / 2
    assert rows[0][DIFFERENCE].startswith(f"{mean:+.3f}")
    name = next(key for key in rows[0] if key.startswith("device-hours to Dice"))
    target = float(name.split()[-1])
    assert target <= min(best) < target + 0.01
    # A Dice that is reached in the first evaluation takes less than one that is never reached.
    assert populations[0].hours(0.0) < populations[0].hours(target) <= populations[0].hours()
    assert populations[0].hours(2.0) is None


def test_costs_to_a_dice_are_compared_with_those_of_independent_runs(tmp_path):
    found = read_populations(read_sweep(write_tournaments(tmp_path, repeats=3)))
    rows = cost_rows(found)
    assert [row["reached"] for row in rows] == ["3 of 3"] * 3
    dice = float(next(iter(rows[0])).removeprefix("to Dice "))
    assert dice == pytest.approx(min(population.best[1] for population in found), abs=0.01)
    costs = [population.cost(dice) for population in found]
    assert {cost.steps for cost in costs[:6]} <= {20, 40, 60}
    for name, shown in (("seconds", "seconds"), ("device_hours", "device-hours")):
        logs = [
            math.log(getattr(mine, name) / getattr(theirs, name))
            for mine, theirs in zip(costs[:3], costs[3:6], strict=True)
        ]
        ratio, interval = rows[0][f"{shown} / independent"].split(" ", 1)
        assert float(ratio) == pytest.approx(math.exp(sum(logs) / 3), abs=0.006)
        assert re.fullmatch(r"\([0-9.]+ to [0-9.]+\)", interval)
    assert rows[1]["steps / independent"] == "-"
    # One that nobody reached has no cost; one that some reached counts only those.
    assert cost_rows(found, 2.0)[0]["reached"] == "0 of 3"
    assert cost_rows(found, 2.0)[0]["seconds"] == "-"
    assert re.search(r"to [+-]0\.\d+; adjusted p [0-9.]+\)$", comparison_rows(found)[0][DIFFERENCE])


def test_the_answer_is_how_runs_end_against_independent_ones(tmp_path):
    folder = write_tournaments(tmp_path, repeats=3)
    found = compare(read_populations(read_sweep(folder)))
    label = found[0].label
    assert label.endswith(f", {NOISE} times 0.5, 0.01 to 1")
    assert found[0].adjusted_p > 0.05
    start = "The best Dice, against independent runs: "
    told = f"no difference can be told with {label}"
    assert summary_json(folder)["answer"].startswith(f"{start}{told}")
    for sign, word in ((1, "higher"), (-1, "lower")):
        better = replace(found[0].difference, value=sign * 0.02)
        one = replace(found[0], difference=better, adjusted_p=0.01)
        assert population_answer([one]) == f"{start}{word} with {label} ({sign * 0.02:+.3f})."
    # Two repeats have no interval.
    assert population_answer([replace(found[0], adjusted_p=None)]) is None


def test_programs_get_the_comparison_and_every_pedigree(folder):
    facts = json.loads(json.dumps(summary_json(folder), allow_nan=False))["tournaments"]
    assert [cell["runs"].split(",")[0] for cell in facts["cells"]] == [
        *("3 trainers", "3 trainers", "mirrored x3"),
    ]
    tournament, independent, _ = facts["cells"]
    assert len(tournament["costs"]) == 2
    assert tournament["costs"][0]["device_hours"] > 0
    assert tournament["seconds_ratio"] == pytest.approx(
        math.prod(
            mine["seconds"] / theirs["seconds"]
            for mine, theirs in zip(tournament["costs"], independent["costs"], strict=True)
        )
        ** 0.5
    )
    assert (tournament["seconds_ratio_low"], independent["difference"]) == (None, None)
    one = facts["populations"][0]
    assert one["tournament"]["mutate"][NOISE]["factors"] == [0.5]
    assert len(one["trials"]) == len(one["done"]) == 3
    assert [facts["populations"][at]["restarts"] for at in (0, 1)] == [{}, {"1": [1, 21]}]
    assert one["begun_by"] == {"0": 1, "1": 2, "2": 2}
    rows = {(row["trainer"], row["round"]): row for row in one["pedigree"]}
    assert len(rows) == 6
    assert rows[0, 1]["model_of"] == 1
    assert rows[0, 1]["hyperparameters"] == {NOISE: 0.05}
    assert rows[1, 2]["own_score"] is None
    assert [facts["populations"][at]["pedigree"] for at in (2, 4)] == [[], []]
    assert facts["populations"][4]["tournament"] is None
    assert facts["dice"] is not None
    assert summary_json(folder, 0.9)["tournaments"]["dice"] == 0.9


def test_missed_rounds_and_dependent_trainers_are_said(populations):
    sentences = population_sentences(populations)
    assert "not independent" in sentences[0]
    assert "trainer 2 missed others in 1 round (2)." in sentences[1]
    # Trainer 1 of the second population was killed, first before and then after a checkpoint.
    assert sentences[-1].endswith("2: trainer 1 was started again 2 times, at step 1, 21.")
    assert [population.restarts for population in populations[:2]] == [{}, {1: (1, 21)}]
    assert len(sentences) == 4


def test_the_report_shows_the_pedigree_and_the_best_score(folder):
    report = write_report(folder)
    page = report.html.read_text()
    assert "<h2>Tournaments</h2>" in page
    assert "## Tournaments" in report.markdown.read_text()
    names = [path.stem for path in report.figures]
    assert names[-3:] == ["population-scores", "pedigree-1", "pedigree-2"]
    svg = report.figures[-2].read_text()
    texts = re.findall(r">([^<>\n]+)</text>", svg)
    assert {"trainer 0", "trainer 2", "0.500", "none", "0.004", "noise 0.05"} <= set(texts)
    assert "Tournaments" in summary_table(folder)


def test_a_sweep_without_tournaments_has_no_such_part(tmp_path):
    write_sweep(tmp_path, make_study(repeats=1))
    assert read_populations(read_sweep(tmp_path)) == []
    assert "ournament" not in write_report(tmp_path).html.read_text()
    assert "tournaments" not in summary_json(tmp_path)
