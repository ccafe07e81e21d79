"""A setting that varied has one figure, with all its values on one axis."""

from xml.etree import ElementTree

import pytest
from planted_cases import plant
from synthetic_sweep import make_study, write_sweep, write_trial

from tfunet.bench.analysis.sweep_summary import summarise
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.bench.report.plots import setting_drawings

SVG = "{http://www.w3.org/2000/svg}"
BACKENDS = {"backend": ["single", "mirrored"], "num_replicas": [1]}
TOGETHER = [{"loss": "dice", "optimizer": "adam"}, {"loss": "crossentropy", "optimizer": "sgd"}]


def drawn(folder, repeats=2, case=(), write=None, **grid):
    study = make_study(grid=grid, case=list(case), repeats=repeats, base={}, skip=[])
    trials = write_sweep(folder, study)
    for trial in trials if write else ():
        write_trial(folder, trial, **write(trial))
    drawings = setting_drawings(summarise(read_sweep(folder)))
    return trials, {drawing.name: drawing for drawing in drawings}


def texts(drawing):
    return {element.text for element in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")}


@pytest.mark.parametrize(
    ("grid", "figures"),
    [
        (
            {"learning_rate": [0.0003, 0.003], **BACKENDS},
            {
                "learning-rate": (
                    "mean Dice against learning_rate",
                    {"0.0003", "0.003", "single", "mirrored", "learning_rate (logarithmic)"},
                )
            },
        ),
        # Two settings: a figure each.
        (
            {"learning_rate": [0.1, 0.2], "model_options.filters": [4, 8]},
            {
                "learning-rate": ("mean Dice against learning_rate", {"0.1", "0.2"}),
                "model-options-filters": (
                    "mean Dice against model_options.filters",
                    {"4", "8", "model_options.filters"},
                ),
            },
        ),
        # Numbers that would stand in one place.
        (
            {"learning_rate": [1.0, 1.01, 2.0]},
            {
                "learning-rate": (
                    "mean Dice against learning_rate",
                    {"1", "1.01", "2", "learning_rate (at equal distances)"},
                )
            },
        ),
        (
            {"loss": ["dice", "crossentropy"]},
            {"loss": ("mean Dice against loss", {"crossentropy"})},
        ),
        (
            {"case": TOGETHER, "learning_rate": [0.1, 0.2]},
            {
                "loss-optimizer": ("mean Dice against loss and optimizer", {"dice", "sgd"}),
                "learning-rate": ("mean Dice against learning_rate", {"0.1", "0.2"}),
            },
        ),
        # What changes no score is drawn by its speed.
        ({"swap": ["none", "24MiB"]}, {"swap": ("images/s against swap", {"24MiB", "-"})}),
        (BACKENDS, {}),
        ({"backend": ["horovod"], "num_replicas": [1, 2, 4]}, {}),
    ],
)
def test_each_setting_has_a_figure_with_all_its_values(grid, figures, tmp_path):
    trials, drawings = drawn(tmp_path, **grid)
    assert {name.removeprefix("setting-") for name in drawings} == set(figures)
    for name, (title, words) in figures.items():
        drawing = drawings[f"setting-{name}"]
        assert drawing.title == title
        assert words <= texts(drawing)
        # A mark for every repeat links to its row.
        assert {trial.id for trial in trials if f"#trial-{trial.id}" in drawing.svg} == {
            trial.id for trial in trials
        }


def test_errors_of_numbers_are_drawn_too(tmp_path):
    _, drawings = drawn(
        tmp_path,
        learning_rate=[0.1, 0.2],
        write=lambda trial: {"regions": (), "mae": {"age": trial.config.learning_rate}},
    )
    assert drawings["setting-learning-rate"].title == "MAE of age against learning_rate"


@pytest.mark.parametrize(
    ("rates", "figures"), [([0.1], set()), ([0.1, 0.2], {"setting-learning-rate"})]
)
def test_scores_on_other_masks_are_not_drawn_on_one_axis(rates, figures, tmp_path):
    grid = {"data": ["cells", "spheres.py:open"], "learning_rate": rates}
    study = make_study(grid=grid, repeats=1, base={}, skip=[])
    for trial in write_sweep(tmp_path, study):
        voxels = 1000 if trial.config.data == "cells" else 500
        plant(tmp_path, trial, {"a": {"cell": 0.5}}, voxels=voxels)
    drawings = setting_drawings(summarise(read_sweep(tmp_path)))
    assert {drawing.name for drawing in drawings} == figures


def test_many_values_have_some_ticks_and_long_names_are_turned(tmp_path):
    rates = [round(0.01 * number, 2) for number in range(1, 20)]
    _, drawings = drawn(tmp_path / "rates", repeats=1, learning_rate=rates)
    shown = texts(drawings["setting-learning-rate"]) & {f"{rate:g}" for rate in rates}
    assert {"0.01", "0.19"} < shown
    assert len(shown) == 8
    models = [f"nets.py:{'long_' * 6}{number}" for number in range(6)]
    _, drawings = drawn(tmp_path / "models", repeats=1, model=models)
    assert set(models) <= texts(drawings["setting-model"])
    assert "rotate(-20" in drawings["setting-model"].svg
