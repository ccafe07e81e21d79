"""A metric that is a function of the user's own."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tfunet.config.case_metrics import case_metrics, is_share
from tfunet.config.monitors import check_monitors
from tfunet.config.run import RunConfig
from tfunet.config.trust import programs
from tfunet.data.source import open_source
from tfunet.data.task import open_task
from tfunet.learning.case_metrics import check_library, measure
from tfunet.learning.own_metric import load_own, make_own

SOURCE = """
def larger(truth, predicted, spacing):
    truth[:] = False  # A copy.
    return predicted.sum() * spacing[0]


def says(truth, predicted, spacing):
    return ANSWERS.pop()


def fails(truth, predicted, spacing):
    return 1 / 0


ANSWERS = []


class Tall:
    def __init__(self, truth, predicted, spacing):
        pass


class Wide:
    def __call__(self, truth, predicted, spacing):
        return 3.0


def of_batch(y_true, y_pred):
    return 0.0


wide = Wide()
"""
KERAS_SOURCE = """
import keras


class Own(keras.metrics.Mean):
    pass


own = Own()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mymetrics.py"
    path.write_text(SOURCE)
    return path


def of(file, name):
    metrics = case_metrics([f"{file}:{name}", "dice"])
    check_library(metrics)
    load_own(metrics)
    truth = np.zeros((3, 4), bool)
    truth[0, :2] = True
    predicted = np.ones((3, 4), bool)
    return measure(metrics, predicted, truth, (0.5, 1.0))


def test_it_is_given_masks_and_pixel_sizes_and_returns_a_number(file):
    assert of(file, "larger") == [6.0, pytest.approx(4 / 14)]
    (metric,) = case_metrics([f"{file}:larger"])
    assert metric.name == "larger"
    assert not is_share(metric.name)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("None", math.nan),
        ("float('inf')", math.nan),
        ("True", 1.0),
        ("__import__('numpy').ones(())", 1),
    ],
)
def test_what_is_not_defined_is_left_out_of_means(file, answer, value):
    file.write_text(SOURCE.replace("ANSWERS = []", f"ANSWERS = [{answer}]"))
    np.testing.assert_equal(of(file, "says")[0], value)


@pytest.mark.parametrize("name", ["dice_cell", "val_mine", "iou", "steps"])
def test_a_class_of_batches_takes_no_name_of_a_score(name, tmp_path):
    path = tmp_path / f"named_{name}.py"
    path.write_text(
        "import keras\nclass Mine(keras.metrics.Mean):\n    def __init__(self):\n"
        f"        super().__init__(name={name!r})\n"
    )
    with pytest.raises(ValueError, match=f"which is called '{name}'"):
        make_own(f"{path}:Mine")


def test_errors_name_the_metric_and_its_line(file):
    with pytest.raises(ValueError, match=r"fails' raised ZeroDivisionError.*line 12: return 1 / 0"):
        of(file, "fails")
    file = file.with_name("othermetrics.py")  # A file is loaded once.
    file.write_text(SOURCE.replace("ANSWERS = []", "ANSWERS = ['much']"))
    with pytest.raises(
        ValueError, match=r"must return a number, or None.* returned 'much' \(str\)"
    ):
        of(file, "says")
    with pytest.raises(ValueError, match="has no 'smaller'"):
        of(file, "smaller")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Own", "is a metric of Keras"),
        ("own", "is a metric of Keras"),
        ("keras.metrics.binary_accuracy", "is a metric of Keras"),
        ("Tall", "is a class"),
        ("of_batch", r"cannot be called with \(truth, predicted, spacing\): too many positional"),
        ("wide", None),
    ],
)
def test_what_is_no_function_of_whole_cases_is_refused_before_training(name, words, tmp_path):
    path = tmp_path / "kinds.py"
    path.write_text(SOURCE + KERAS_SOURCE)
    if words is None:
        assert of(path, name)[0] == 3.0
        return
    with pytest.raises(ValueError, match=f"{name}' {words}.* Write a function of a region"):
        load_own(case_metrics([f"{path}:{name}"]))


@pytest.mark.parametrize(
    "name", ["dice", "dice_cell", "case", "group", "present", "nsd_x", "dataset_iou"]
)
def test_a_name_of_another_score_is_refused(name):
    with pytest.raises(ValueError, match="is a name of tfunet's own scores"):
        RunConfig(metrics=(f"m.py:{name}",))


def test_two_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two functions 'width'"):
        RunConfig(metrics=("a.py:width", "b.py:width"))


@pytest.mark.parametrize("part", ["cases", "sd", "median", "low", "high"])
def test_a_name_of_the_spread_of_another_is_refused(part):
    with pytest.raises(ValueError, match=f"function 'f_{part}', .* column 'f_{part}' for 'f'"):
        RunConfig(metrics=(f"a.py:f_{part}", "b.py:f"))
    RunConfig(metrics=(f"a.py:f_{part}", "b.py:g"))


def test_a_metric_that_is_named_twice_counts_once():
    names = ("hd95", "a.py:width", "hd95", "a.py:width")
    assert [metric.name for metric in case_metrics(names)] == ["hd95", "width"]


@pytest.mark.parametrize(
    ("names", "regions", "words"),
    [
        (["m.py:f", "m.py:f_cell"], ["cell"], "'f_cell': 'f_cell', and 'f' of the region 'cell'"),
        (["m.py:f_cell", "m.py:f"], ["cell"], "'f_cell': 'f_cell', and 'f' of the region 'cell'"),
        (["m.py:f", "m.py:f_a"], ["b", "a_b"], "'f_a_b': 'f_a' of the region 'b', and 'f' of the"),
        (["m.py:lesion", "lesion_f1"], ["f1"], "'lesion_f1': 'lesion_f1', and 'lesion' of the"),
        (["m.py:f", "m.py:f_cell"], ["nucleus"], None),
        (["m.py:f", "dice", "nsd@1mm"], ["cell", "f"], None),
    ],
)
def test_no_two_scores_of_an_epoch_have_one_name(names, regions, words):
    cells = replace(
        open_source("cells", {"num_cases": 6, "size": 32}),
        num_classes=len(regions) + 1,
        regions={region: (label,) for label, region in enumerate(regions, 1)},
    )
    config = RunConfig(metrics=tuple(names), patch=(32, 32))
    if words is None:
        open_task(config, lambda *_, **__: cells)
        return
    with pytest.raises(ValueError, match=f"two scores of an epoch the name {words}"):
        open_task(config, lambda *_, **__: cells)


def test_it_is_a_program_that_a_record_of_another_user_does_not_run():
    config = RunConfig(metrics=("hd95", "nsd@1mm", "m.py:width"))
    assert programs(vars(config)) == ["m.py:width"]


@pytest.mark.parametrize(("mode", "is_refused"), [({}, True), ({"mode": "min"}, False)])
def test_who_monitors_it_says_which_way_is_better(mode, is_refused):
    table = {"name": "EarlyStopping", "monitor": "val_width", **mode}
    config = RunConfig(metrics=("m.py:width",), callbacks=(table,))
    if is_refused:
        with pytest.raises(ValueError, match="neither more nor less is known to be better"):
            check_monitors(config, ["cell"], [], has_own_logs=False)
    else:
        check_monitors(config, ["cell"], [], has_own_logs=False)
