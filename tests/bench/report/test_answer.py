"""The sentence on top of a report says which backend to take, and no more than is known."""

import json
import re

import pytest
from planted_cases import plant
from synthetic_sweep import drawn, make_study, write_sweep, write_trial

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.answer import answer
from tfunet.bench.report.findings import doubts, findings
from tfunet.bench.report.sweep_report import summary_json
from tfunet.bench.report.terms import explained

GRID = {"backend": ["single", "mirrored", "horovod"], "num_replicas": [1, 2]}


def said(folder, *, grid=GRID, repeats=5, base=None, **options):
    write_sweep(folder, make_study(grid=grid, repeats=repeats, **(base or {})), **options)
    return answer(summarise(read_sweep(folder)))


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (
            {"mirrored": 0.9, "horovod": 0.9},
            r"No difference in speed can be told between \w+ and \w+ at 2 replicas: take any\. .*"
            r"More repeats tell smaller differences: tfunet sweep plan",
        ),
        (
            {"mirrored": 0.5, "horovod": 0.9},
            r"horovod is the fastest at 2 replicas, mirrored is slower than it\. No difference in "
            r"scores can be told\.$",
        ),
    ],
)
def test_verdicts_become_an_answer(speed, words, tmp_path):
    assert re.match(words, said(tmp_path, speed=speed))


@pytest.mark.parametrize(
    ("spread", "medians", "doubt"),
    [
        (0.85, (0.004, 0.004), "its speed varied by 85%"),
        (0.02, (0.004, 0.0192), "its speed changed by 380% during the sweep"),
        (0.85, (0.004, 0.0192), "varied by 85% and changed by 380%"),
        (0.05, (0.004, 0.0041), ""),
    ],
)
def test_a_verdict_from_a_machine_that_is_not_quiet_carries_the_doubt(
    spread, medians, doubt, tmp_path
):
    said(tmp_path, speed={"mirrored": 0.5, "horovod": 0.9})
    noise = [{"spread": spread, "median_seconds": median} for median in medians]
    (tmp_path / "noise.json").write_text(json.dumps({"measurements": noise}))
    summary = summarise(read_sweep(tmp_path))
    verdict = "orovod is the fastest at 2 replicas"
    assert verdict in answer(summary)
    assert answer(summary).startswith("Not to be relied on") == bool(doubt)
    assert doubt in answer(summary)
    # So do the findings on speed, but not those on scores.
    found = findings(summary, [])
    assert {"Speed", "Scaling", "Scores"} <= set(found)
    for heading, sentences in found.items():
        is_doubtful = sentences[0].startswith("Not to be relied on")
        assert is_doubtful == (bool(doubt) and heading != "Scores")
    # For programs, a flag says it.
    facts = summary_json(tmp_path)
    assert facts["machine_was_quiet"] is not bool(doubt)
    assert {"Speed", "Scaling"} <= set(facts["findings"])
    assert not any("relied on" in line for lines in facts["findings"].values() for line in lines)
    (tmp_path / "noise.json").unlink()
    assert summary_json(tmp_path)["machine_was_quiet"] is None
    # The doubts below have the same thresholds.
    assert any("The machine" in sentence for sentence in doubts(summary)) == bool(doubt)


def test_an_unfinished_study_is_to_be_run_to_its_end(tmp_path):
    trials = write_sweep(tmp_path, make_study(grid=GRID, repeats=3), speed={"mirrored": 0.5})
    for trial in trials:
        if trial.repeat > 1:
            (tmp_path / trial.id / "result.json").unlink()
    sentence = next(text for text in doubts(summarise(read_sweep(tmp_path))) if "Some ce" in text)
    assert "only 1 good repeat" in sentence
    assert "Run the study to its end with the same command" in sentence
    assert "Give the study repeats" not in sentence


def test_of_three_the_two_fastest_can_be_equal(tmp_path):
    grid = {"backend": ["single", "mirrored", "multiworker", "horovod"], "num_replicas": [1, 2]}
    text = said(tmp_path, grid=grid, speed={"mirrored": 0.5, "multiworker": 0.9, "horovod": 0.9})
    assert (
        " are the fastest at 2 replicas and cannot be told apart, mirrored is slower than " in text
    )


def test_answers_that_differ_between_settings_are_listed(tmp_path):
    study = make_study(
        grid=GRID | {"learning_rate": [0.001, 0.002]}, repeats=5, base={"cores_per_replica": 1}
    )
    trials = write_sweep(tmp_path, study, speed={"mirrored": 0.5, "horovod": 0.9})
    for trial in trials:
        if trial.config.learning_rate == 0.002:
            write_trial(tmp_path, trial, speed={"mirrored": 0.9, "horovod": 0.5})
    text = answer(summarise(read_sweep(tmp_path)))
    assert text.startswith("Of 2 configurations, learning_rate=0.002 has the highest mean Dice")
    words = (
        "Which backend is the fastest depends on the settings: with learning_rate=0.001, horovod"
    )
    assert words in text
    assert "; with learning_rate=0.002, mirrored is the fastest" in text


def test_what_is_not_known_is_not_said(tmp_path):
    few = said(tmp_path / "few", repeats=2)
    assert few.startswith(
        "No answer yet: chance cannot be told from a difference with fewer than 3"
    )
    begun = said(tmp_path / "begun", write=lambda trial: trial.repeat == 1)
    assert begun == (
        "No answer yet: 12 trials of 15 have not ended. Run the study to its end with the same "
        "command."
    )
    assert said(tmp_path / "none", write=lambda trial: False).startswith("No answer yet: no trial")
    alone = said(tmp_path / "alone", grid={"backend": ["single"], "num_replicas": [1]})
    assert alone.startswith("Nothing to choose")


@pytest.mark.parametrize(
    ("repeats", "gain", "words"),
    [
        (5, 0.1, r", and is ahead of all others beyond chance\.$"),
        (5, 0.0, r"\. It cannot be told from learning_rate="),
        (2, 0.1, r"; whether by chance is known with 3 or more repeats\.$"),
    ],
)
def test_settings_of_one_backend_are_ranked_by_their_dice(repeats, gain, words, tmp_path):
    study = make_study(
        grid={"learning_rate": [0.001, 0.002, 0.004]},
        repeats=repeats,
        base={"cores_per_replica": 1},
    )
    for trial in write_sweep(tmp_path, study):
        (tmp_path / trial.id / "cases.csv").unlink()  # An older record.
        if trial.config.learning_rate == 0.002:
            path = tmp_path / trial.id / "result.json"
            result = json.loads(path.read_text())
            result["dice"] = {region: dice + gain for region, dice in result["dice"].items()}
            path.write_text(json.dumps(result))
    text = answer(summarise(read_sweep(tmp_path)))
    assert re.search(words, text)
    if gain:
        assert "Of 3 configurations, learning_rate=0.002 has the highest " in text


TOGETHER = [
    {"loss": "dice", "optimizer": "adam"},
    {"loss": "crossentropy", "optimizer": "sgd"},
]
RATES = {"learning_rate": [0.001, 0.002]}
BACKENDS = {"backend": ["single", "mirrored"], "num_replicas": [1]}
BEST = (
    r"learning_rate=0\.002 has the highest mean Dice, 0\.7\d\d, 0\.1\d\d \(95 % .*\) above the next"
)
AHEAD = BEST + r", and is ahead of all others beyond chance\."


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (RATES, [f"Of 2 configurations, {AHEAD}$"]),
        # Backends are answered too.
        (
            RATES | BACKENDS,
            [f"^Of 2 configurations, {AHEAD} No difference in speed", "between the ba"],
        ),
        # Each setting is answered, and the best of all.
        (
            RATES | {"loss": ["dice", "crossentropy"]},
            [
                r"^Of 4 configurations, loss=\w+ learning_rate=0\.002 has the highest",
                f"All else equal, of 2 values of learning_rate, {AHEAD}",
                r"of 2 values of loss, loss=\w+ has the highest .* cannot be told from loss=\w+\.",
            ],
        ),
        # What changes together is one setting.
        (
            RATES | {"case": TOGETHER},
            ["of 2 values of loss and optimizer, loss=dice optimizer=adam has the highest "],
        ),
        # A study of speed alone, and beside a learning rate.
        (
            {"swap": ["none", "24MiB"]},
            [r"^Of 2 configurations, swap=\S+ has the highest images/s, "],
        ),
        (
            RATES | {"cores_per_replica": [1, 2]},
            [
                f"^Of 2 configurations, {AHEAD} With learning_rate=0.001: Of 2 conf",
                r"cores_per_replica=\d has the highest images",
            ],
        ),
        (RATES | {"fold": [0, 1]}, [f"Of 2 configurations, {AHEAD}$"]),
    ],
)
def test_each_setting_that_varied_is_answered(grid, words, tmp_path):
    base = {"folds": 2} if "fold" in grid else {}
    case = grid.get("case", [])
    grid = {key: values for key, values in grid.items() if key != "case"}
    study = make_study(grid=grid, case=case, repeats=4, base=base, skip=[])
    for trial in write_sweep(tmp_path, study):
        dice = 0.6 + 0.15 * (trial.config.learning_rate == 0.002) + drawn(trial).gauss(0, 0.01)
        dice += 0.03 * (trial.config.optimizer == "adam")
        plant(tmp_path, trial, {case: {"cell": dice} for case in "abc"})
    text = answer(summarise(read_sweep(tmp_path)))
    for part in words:
        assert re.search(part, text), text


def test_errors_of_numbers_are_answered_by_the_lowest(tmp_path):
    study = make_study(grid=RATES | BACKENDS, repeats=4, base={"cores_per_replica": 1}, skip=[])
    for trial in write_sweep(tmp_path, study):
        errors = {"age": 10 * trial.config.learning_rate * 100 + trial.repeat / 10}
        write_trial(tmp_path, trial, regions=(), mae=errors)
    text = answer(summarise(read_sweep(tmp_path)))
    assert text.startswith(
        "Of 2 configurations, learning_rate=0.001 has the lowest MAE of age, 1.250, 1.000 (95 % "
        "interval +1.000 to +1.000) below the next, and is ahead of all others beyond chance."
    )


@pytest.mark.parametrize("grid", [{}, BACKENDS])
def test_the_fastest_setting_carries_the_doubt_of_its_machine_once(grid, tmp_path):
    study = make_study(grid=grid | {"swap": ["none", "24MiB"]}, repeats=4, base={}, skip=[])
    for trial in write_sweep(tmp_path, study):
        slow = {"images_per_second": 5 + 0.1 * trial.repeat} if trial.config.swap else {}
        write_trial(tmp_path, trial, **slow)
    noise = [{"spread": 0.85, "median_seconds": 0.004}] * 2
    (tmp_path / "noise.json").write_text(json.dumps({"measurements": noise}))
    text = answer(summarise(read_sweep(tmp_path)))
    assert re.match(r"Not to be relied on: .* Measured was: Of 2 configurations, swap=- has", text)
    assert "and is ahead of all others beyond chance" in text
    assert text.count("Not to be relied on") == 1


def test_speeds_of_settings_are_compared_where_all_else_is_equal(tmp_path):
    case = [{"swap": "none", "learning_rate": 0.1}, {"swap": "24MiB", "learning_rate": 0.2}]
    assert "images/s" not in said(tmp_path / "unlike", grid={}, base={"case": case, "skip": []})
    case.append({"swap": "none", "learning_rate": 0.2})
    assert "swap=" in said(tmp_path / "alike", grid={}, base={"case": case, "skip": []})


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (
            0.01,
            r"More repeats tell smaller differences: tfunet sweep plan .* --precision 5% says",
        ),
        (
            0.2,
            r"More repeats hardly help: the machine is too noisy for differences below \d\d %",
        ),
    ],
)
def test_nobody_is_sent_for_repeats_that_tell_nothing(noise, words, tmp_path):
    text = said(tmp_path, grid=BACKENDS, noise=noise, base={"skip": []})
    assert re.search(words, text), text


def test_folds_are_repeats_of_one_configuration(tmp_path):
    grid = {"fold": [0, 1, 2, 3]}
    base = {"base": {"folds": 4, "cores_per_replica": 1}}
    one = said(tmp_path / "one", grid=grid, repeats=1, base=base)
    assert re.match(
        r"single x1 has a mean Dice of 0\.\d+ \(95 % interval 0\.\d+ to 0\.\d+\) over 4 folds\. "
        r"Folds are repeats",
        one,
    )
    for run in (tmp_path / "one").glob("*/result.json"):
        result = json.loads(run.read_text())
        result["dice"] = dict.fromkeys(result["dice"], 0.99 if "f0" in run.parent.name else 0.5)
        run.write_text(json.dumps(result))
    # No Dice is above 1.
    assert "to 1.000)" in answer(summarise(read_sweep(tmp_path / "one")))
    assert "Held out" not in one
    for number, stains in enumerate((["pink", "red"], ["blue"], ["blue"])):
        for run in (tmp_path / "one").glob("*/config.json"):
            fold = json.loads(run.read_text())["fold"]
            groups = stains if fold == 0 else [f"stain{fold}"] * (1 if number < 2 else 12)
            split = {"train": ["a"], "validation": ["b"], "validation_groups": groups}
            (run.parent / "split.json").write_text(json.dumps(split))
        words = (
            f"Held out: fold 0 {', '.join(stains)}; fold 1 stain1; fold 2 stain2; fold 3 stain3."
        )
        # Many groups are not named.
        assert (words in answer(summarise(read_sweep(tmp_path / "one")))) == (number < 2)
    part = said(tmp_path / "part", grid=grid, repeats=1, base=base, write=lambda t: t.config.fold)
    assert "over 3 of 4 folds" in part
    several = said(
        tmp_path / "several",
        grid={**GRID, **grid},
        repeats=1,
        base=base,
        speed={"mirrored": 0.5, "horovod": 0.9},
    )
    assert several.startswith("horovod is the fastest at 2 replicas, mirrored is slower than it.")
    assert "fold" not in several


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("Dice left lung", "Overlap"),
        ("nsd@0.2um", "Normalised surface Dice"),
        ("vi_merge", "in bits"),
        ("samples to Dice 0.59", "first reached"),
        ("memory (GiB)", "Peak resident"),
        ("reason", ""),
    ],
)
def test_columns_are_explained_by_what_their_names_begin_with(column, words):
    assert explained(column).startswith(words) if not words else words in explained(column)


def test_scores_that_are_equal_have_no_largest_difference(tmp_path):
    trials = write_sweep(tmp_path, make_study(grid=GRID, repeats=3))
    for trial in trials:
        path = tmp_path / trial.id / "result.json"
        table = json.loads(path.read_text())
        path.write_text(json.dumps({**table, "dice": dict.fromkeys(table["dice"], 0.7)}))
    sentences = [
        text for some in findings(summarise(read_sweep(tmp_path))).values() for text in some
    ]
    (scores,) = (text for text in sentences if "mean Dice of single x1" in text)
    assert scores.startswith("The same to three digits as the mean Dice of single x1")
    assert "Largest difference" not in " ".join(sentences)
