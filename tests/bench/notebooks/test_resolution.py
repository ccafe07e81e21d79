"""Dice of every case at two resolutions, read from made-up sweeps whose truth is known."""

import pytest
from synthetic_sweep import make_study, write_failed, write_seen, write_sweep, write_trial

from tfunet.bench.notebooks.growth_plots import BOXES, resolution_figure
from tfunet.bench.notebooks.resolution import (
    read_resolutions,
    resolution_rows,
    resolution_sentences,
)
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.plots import drawn
from tfunet.record import RunFolder

REGIONS = {"whole": 0.8, "core": 0.7}
LOSS = 0.04  # of Dice at half the resolution


def write_resolution_sweep(
    folder, *, regions=REGIONS, coarser=(1, 2), repeats=3, loss=LOSS, contrary=0.0
):
    """Write runs whose Dice falls by `loss`, but in one case, where the voxels are coarser.

    By `contrary` the whole first repeat differs the other way.
    """
    cases = [{"cpu_memory": "200MiB", "swap": "none"}, {"cpu_memory": "200MiB", "swap": "auto"}]
    study = make_study(
        repeats=repeats,
        base={"data": "tumours", "replica_batch": 1},
        grid={"model_options.coarser": list(coarser)},
        case=cases,
        skip=[],
    )
    for trial in write_sweep(folder, study, write=lambda trial: False):
        config = trial.config
        step = config.model_options["coarser"]
        if step == 1 and config.swap is None:
            write_failed(folder, trial, "error: out of memory: no room")
        elif step == 2 and config.swap is not None:
            continue
        else:
            lost = (loss - contrary * (trial.repeat == 1)) if step == 2 else 0.0
            noise = 0.01 * trial.repeat
            dice = {region: value - lost + noise for region, value in regions.items()}
            write_trial(folder, trial, dice=dice)
            RunFolder(folder / trial.id).write_cases(_cases(dice, lost))
        write_seen(folder, trial, (48, 48, 48))


def _cases(dice, lost):
    for region, mean in dice.items():
        for at in range(8):
            # The last case does not mind.
            value = mean + 0.01 * at + (lost if at == 7 else 0.0)
            hit = round(1000 * value)
            counts = {"true_positive": hit, "false_positive": 0, "false_negative": 2 * (1000 - hit)}
            yield {"epoch": 1, "case": f"case{at}", "region": region, **counts}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resolution")
    write_resolution_sweep(folder)
    return read_resolutions(read_sweep(folder))


def test_what_the_network_sees_tells_resolutions_apart(compared):
    (one,) = compared
    assert (one.data, one.regions) == ("tumours", ("whole", "core"))
    assert [resolution.label for resolution in one.resolutions] == ["48 x 48 x 48", "24 x 24 x 24"]
    assert [len(resolution.trained) for resolution in one.resolutions] == [3, 3]


def test_a_case_counts_once_with_its_mean_over_the_runs(compared):
    full, half = compared[0].resolutions
    assert full.case_dice("whole") == pytest.approx(
        {f"case{at}": 0.82 + 0.01 * at for at in range(8)}
    )
    assert half.case_dice("whole")["case7"] == pytest.approx(full.case_dice("whole")["case7"])
    rows = resolution_rows(compared)
    assert [row["cases"] for row in rows] == ["8"] * 4
    assert [row["mean Dice"] for row in rows] == ["0.855", "0.820", "0.755", "0.720"]
    assert rows[0]["lowest"] == "0.820"


def test_the_planted_difference_is_told_and_what_did_not_train(compared):
    lines = resolution_sentences(compared)
    assert len(lines) == 3
    assert lines[0].startswith("tumours, whole: Dice 0.855 at 48 x 48 x 48 and 0.820 at 24 x 24")
    assert "+0.035 (95 % interval over cases 0.023 to 0.047; adjusted p" in lines[0]
    assert "by seed +0.040, +0.040, +0.040)" in lines[0]
    assert lines[0].endswith("better in 7 of 8 cases: the higher resolution is better.")
    assert lines[2] == "tumours at 48 x 48 x 48 without support in 200MiB: out of memory."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": 0.0}, "better in 0 of 8 cases: not distinguishable."),
        ({"loss": -LOSS}, "better in 0 of 8 cases: the lower one is better."),
        # The cases agree, but not the seeds.
        ({"contrary": LOSS + 0.01}, "better in 7 of 8 cases: not distinguishable."),
        ({"repeats": 2}, "better in 7 of 8 cases: more cases or repeats are needed to tell."),
    ],
)
def test_nothing_is_said_that_could_be_chance(changes, words, tmp_path):
    write_resolution_sweep(tmp_path, **changes)
    lines = resolution_sentences(read_resolutions(read_sweep(tmp_path)))
    assert lines[0].endswith(words)


def test_one_resolution_is_refused_with_what_to_do(tmp_path):
    write_resolution_sweep(tmp_path, coarser=(2,))
    with pytest.raises(ValueError, match=r'Give the study "model_options.coarser" = \[1, 2\]'):
        read_resolutions(read_sweep(tmp_path))


def test_the_figure_has_a_panel_for_each_region(compared):
    svg = drawn("resolution", *BOXES, lambda: resolution_figure(compared)).svg
    for words in ("tumours, whole", "tumours, core", "48 x 48 x 48", "24 x 24 x 24"):
        assert f">{words}<" in svg
