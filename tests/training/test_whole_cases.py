"""Metrics of whole cases in a run: windows are put together where they were cut out."""

import csv
import math
import tomllib

import numpy as np
import pytest
from pages import blocks
from paths import ROOT
from PIL import Image
from scipy import ndimage

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.bench.records.epoch_times import epoch_times
from tfunet.bench.records.objectives import objective_of
from tfunet.bench.records.run_tables import read_history
from tfunet.bench.records.shown_cases import read_shown_cases
from tfunet.bench.records.trial_result import parse_result
from tfunet.config.case_metrics import case_metrics
from tfunet.config.run import RunConfig
from tfunet.learning.case_metrics import measure
from tfunet.learning.scores import dice
from tfunet.loop import run
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice


def rows(folder):
    with (folder / "cases.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_of_cases_agree_with_counts_of_windows(tmp_path):
    names = ("dice", "volume_difference", "hd95", "nsd@2px")
    config = RunConfig(
        data_options={"num_cases": 12, "size": 40},
        model_options={"filters": 2, "levels": 1},
        # Smaller than the images along one axis, larger along the other.
        patch=(16, 48),
        evaluation_halo=2,
        cache_dir=str(tmp_path / "cache"),
        global_batch=3,
        steps=4,
        metrics=(*names, "sparse_categorical_accuracy"),
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    # The worse one of two validation cases is the median, too.
    shown = read_shown_cases(tmp_path / "run")
    assert [case.planes[0].labels.shape for case in shown.cases] == [(40, 40)] * 2
    table = rows(tmp_path / "run")
    kept = {case.case_id: case.planes[0] for case in shown.cases}
    assert tuple(table[0])[6:] == names
    counted = ("true_positive", "false_positive", "false_negative")
    for row in table:
        counts = np.array([float(row[name]) for name in counted])
        assert float(row["dice"]) == pytest.approx(float(dice(counts)), abs=1e-12)
        assert float(row["volume_difference"]) == counts[1] - counts[2]
        if row["case"] in kept:
            plane = kept.pop(row["case"])
            predicted, truth = plane.labels > 0, plane.mask > 0
            errors = (predicted & truth).sum(), (predicted & ~truth).sum()
            assert tuple(counts[:2]) == errors
        is_one_empty = (counts[:2].sum() == 0) != (counts[::2].sum() == 0)
        assert (row["hd95"] == "") == is_one_empty
        assert math.isclose(float(row["nsd@2px"]), 1) or 0 <= float(row["nsd@2px"]) < 1
    assert not kept


OWN_CLASS = """
import keras

class Foreground(keras.metrics.Mean):
    def __init__(self):
        super().__init__(name="foreground")

    def update_state(self, y_true, y_pred, sample_weight=None):
        label = keras.ops.argmax(y_pred, axis=-1)
        super().update_state(keras.ops.cast(label, "float32"))


class Undefined(Foreground):
    def __init__(self):
        keras.metrics.Mean.__init__(self, name="undefined")

    def result(self):
        return super().result() * float("nan")
"""


def test_metrics_stand_wherever_scores_do(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text(OWN_CLASS)
    config = RunConfig(
        data_options={"num_cases": 10, "size": 32},
        model_options={"filters": 2, "levels": 1},
        cache_dir=str(tmp_path / "cache"),
        global_batch=4,
        steps=4,
        metrics=("dice", "hd95", "accuracy", f"{own}:Foreground", f"{own}:Undefined"),
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    result = parse_result(RunFolder(tmp_path / "run").read_result())
    history = read_history(tmp_path / "run")
    assert set(result.metrics) == {
        *("accuracy", "foreground", "val_dice", "val_dice_cell", "val_hd95", "val_hd95_cell")
    }
    assert history["undefined"] == [None] * len(history["epoch"])
    assert {name: history[name][-1] for name in result.metrics} == result.metrics
    table = rows(tmp_path / "run")
    last = [row for row in table if row["epoch"] == table[-1]["epoch"]]
    for name in ("dice", "hd95"):
        of_cases = [float(row[name]) for row in last if row[name]]
        assert result.metrics[f"val_{name}_cell"] == pytest.approx(np.mean(of_cases))
    assert objective_of("val_hd95").of_result(result) == result.metrics["val_hd95"]
    (epoch, *_) = epoch_times(tmp_path / "run")
    assert objective_of("val_hd95").of_epoch(epoch) == history["val_hd95"][0]
    assert objective_of("foreground").of_epoch(epoch) == history["foreground"][0]


def test_the_example_of_cells_between_membranes_scores_them(tmp_path):
    page = (ROOT / "docs/metrics.md").read_text()
    (text,) = (text for text in blocks(page, "toml") if text.startswith("# membranes.toml"))
    table = tomllib.loads(text)
    table["data_options"] |= {"num_cases": 10, "size": 48}
    config = from_dict({**table, "cache_dir": str(tmp_path / "cache")})
    run(config, SingleDevice(Launch()), tmp_path / "run")
    metrics = case_metrics(config.metrics)
    assert [metric.name for metric in metrics] == ["arand", "vi_split", "vi_merge", "cldice"]
    shown = {case.case_id: case.planes[0] for case in read_shown_cases(tmp_path / "run").cases}
    labels = {"cell": 1, "border": 2}
    compared = 0
    for row in rows(tmp_path / "run"):
        if row["case"] in shown:
            plane, label = shown[row["case"]], labels[row["region"]]
            values = measure(metrics, plane.labels == label, plane.mask == label, None)
            texts = ["" if math.isnan(value) else str(value) for value in values]
            assert [row[metric.name] for metric in metrics] == texts
            compared += 1
    assert compared >= 4


def test_true_objects_are_those_that_the_masks_number(tmp_path):
    """Squares in rows without a gap; the patch is larger than the images along one axis."""
    rng = np.random.default_rng(0)
    numbers = np.kron(np.arange(1, 13).reshape(3, 4), np.ones((8, 8), int)).astype(np.uint8)
    for case in range(6):
        mask = np.where(rng.random((3, 4)) < 0.6, 1, 0).repeat(8, 0).repeat(8, 1) * numbers
        Image.fromarray(np.uint8(90 * (mask > 0) + rng.integers(0, 90, mask.shape))).save(
            tmp_path / f"{case}.png"
        )
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / f"{case}_mask.png")
    names = ("instance_recall", "panoptic_quality", "arand")
    config = RunConfig(
        data="folder",
        data_options={
            "root": str(tmp_path),
            "images": "{case}.png",
            "masks": {"cell": "{case}_mask.png"},
            "objects": "numbers",
        },
        model_options={"filters": 4, "levels": 1},
        patch=(16, 48),
        cache_dir=str(tmp_path / "cache"),
        global_batch=2,
        steps=30,
        metrics=names,
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    shown = {case.case_id: case.planes[0] for case in read_shown_cases(tmp_path / "run").cases}
    by_components = []
    for row in rows(tmp_path / "run"):
        predicted, truth = shown[row["case"]].labels > 0, shown[row["case"]].mask > 0
        objects = np.asarray(Image.open(tmp_path / f"{row['case']}_mask.png"))
        metrics = case_metrics(names)
        values = measure(metrics, predicted, truth, None, objects)
        assert [float(row[name]) for name in names] == pytest.approx(values)
        by_components.append(measure(metrics, predicted, truth, None) != values)
    assert any(by_components)


def test_the_example_of_a_metric_of_ones_own_scores_cases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/metrics.md").read_text()
    (source,) = (text for text in blocks(page, "python") if text.startswith("# count_error.py"))
    (text,) = (text for text in blocks(page, "toml") if text.startswith("# counted.toml"))
    (tmp_path / "count_error.py").write_text(source)
    table = tomllib.loads(text)
    table["data_options"] = {"num_cases": 10, "size": 48}
    config = from_dict({**table, "cache_dir": str(tmp_path / "cache")})
    run(config, SingleDevice(Launch()), tmp_path / "run")
    shown = {case.case_id: case.planes[0] for case in read_shown_cases(tmp_path / "run").cases}
    found = {row["case"]: float(row["missing_objects"]) for row in rows(tmp_path / "run")}
    assert shown
    for case, plane in shown.items():
        truth, predicted = (ndimage.label(mask == 1)[1] for mask in (plane.mask, plane.labels))
        assert found[case] == truth - predicted
    # Whoever reads the record of another does not run it.
    monkeypatch.delenv("TFUNET_TRUST", raising=False)
    (tmp_path / "run/.signature").write_text("forged")
    config = RunFolder(tmp_path / "run").read_config()
    with pytest.raises(ValueError, match=r"names the program 'count_error.py:missing_objects'"):
        RunFolder(tmp_path / "run").check_programs(config, ["metrics"])
    RunFolder(tmp_path / "run").check_programs(config, ["model"])
