"""`tfunet init` measures on some training cases how to normalise, by the rules of `tfunet auto`."""

import json
import tomllib

import numpy as np
import pytest
from init_folders import RNG, begun, save, square

from tfunet.config.data_keys import SplitKeys
from tfunet.data.discovery import plan_rules
from tfunet.data.discovery.describe import describe_folder
from tfunet.data.discovery.fingerprint import fingerprint
from tfunet.data.discovery.first_measured import add_measured
from tfunet.data.split import split_of


def write_aerial(folder, number, dtype=np.uint8):
    """Write tiles of land (dark) or water (bright), each nearly of one class."""
    for case in range(number):
        mask = np.full((32, 48), case % 2, np.uint8)
        mask[:4, :4] = 1 - case % 2
        image = np.clip(RNG.normal(90 + 60 * mask, 8), 0, 255).astype(dtype)
        save(folder / f"images/{case}.tif", image)
        save(folder / f"masks/{case}.tif", mask)
    return folder


def reasons_of(run):
    both = run.options["intensity"], run.model_options.get("normalization", (None, ""))
    return [value for value, _ in both], [reason for _, reason in both]


@pytest.mark.parametrize(
    ("dtype", "intensity"), [(np.uint8, [0, 255]), (np.uint16, {"mean", "deviation"})]
)
def test_absolute_brightness_is_kept_exactly_as_auto_keeps_it(dtype, intensity, tmp_path):
    write_aerial(tmp_path, 12, dtype)
    table = begun(tmp_path)
    assert table["model_options"]["normalization"] == "synchronized_batch"
    found = table["data_options"]["intensity"]
    assert found == intensity or set(found) == intensity
    run = describe_folder(str(tmp_path))
    # All training cases are few enough, so nothing is said of a sample.
    found = fingerprint(run.source, split_of(SplitKeys(), run.source).train)
    assert run.options["intensity"] == plan_rules.intensity(found)
    assert run.model_options["normalization"] == plan_rules.normalization(found, 8)


def test_of_many_cases_some_training_cases_are_read(tmp_path):
    write_aerial(tmp_path, 30)
    run = describe_folder(str(tmp_path))
    values, reasons = reasons_of(run)
    assert values == [[0, 255], "synchronized_batch"]
    for reason in reasons:
        assert reason.endswith(
            "Seen in 16 of 24 training cases. `tfunet auto` reads all training images."
        )
    # Held-out cases have no say: nothing changes where none can be read.
    train = split_of(SplitKeys(), run.source).train
    for index in set(range(30)) - set(train):
        (tmp_path / run.source.files[index]).write_bytes(b"II*\0")
    options, model_options = {}, {}
    add_measured({}, options, model_options, run.source, SplitKeys(), 8)
    assert options["intensity"][1] == reasons[0]


@pytest.mark.parametrize(
    ("limits", "intensity", "words"),
    [
        ({"numbers": 32 * 48 * 8}, [0, 255], "Seen in 8 of 10 training cases."),
        ({"seconds": 0.0}, "zscore", "Seen in 1 of 10 training cases."),
        ({"numbers": 32 * 48 - 1}, "zscore", "was not measured. The images are too large for a"),
    ],
)
def test_what_would_take_long_is_not_read(limits, intensity, words, tmp_path):
    source = describe_folder(str(write_aerial(tmp_path, 12))).source
    options, model_options = {}, {}
    add_measured({}, options, model_options, source, SplitKeys(), 8, **limits)
    value, reason = options["intensity"]
    assert value == intensity
    assert words in reason
    assert ("normalization" in model_options) == ("not measured" not in reason)


def test_a_case_that_cannot_be_read_is_left_to_the_check(tmp_path):
    write_aerial(tmp_path, 12)
    run = describe_folder(str(tmp_path))
    train = split_of(SplitKeys(), run.source).train
    for index in train[:2]:
        file = tmp_path / run.source.files[index]
        file.write_bytes(file.read_bytes()[:-1000])
    options, model_options = {}, {}
    add_measured({}, options, model_options, run.source, SplitKeys(), 8)
    assert "Seen in 8 of 10 training cases." in options["intensity"][1]
    assert options["intensity"][0] == [0, 255]


def test_ct_is_clipped_and_few_cases_are_too_few(tmp_path):
    for number in range(4):
        mask = square(*[1] * 6, shape=(32, 48, 16)[:2])[:, :, None].repeat(16, 2)
        image = np.where(mask, RNG.normal(60, 5, mask.shape), 0).astype(np.int16)
        save(tmp_path / f"imagesTr/liver_{number}_0000.nii.gz", image)
        save(tmp_path / f"labelsTr/liver_{number}.nii.gz", mask)
    description = {
        "channel_names": {"0": "CT"},
        "labels": {"background": 0, "liver": 1},
        "numTraining": 4,
        "file_ending": ".nii.gz",
    }
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    run = describe_folder(str(tmp_path))
    table = tomllib.loads(run.text([]))
    assert table["data_options"]["intensity"]["low"][0] == pytest.approx(47, abs=3)
    assert "dataset.json says CT" in run.options["intensity"][1]
    assert table["model_options"]["normalization"] == "instance"
    few = describe_folder(str(write_aerial(tmp_path / "few", 6)))
    values, reasons = reasons_of(few)
    assert values == ["zscore", "instance"]
    for reason in reasons:
        assert reason.endswith("5 cases are too few to go by: below 8, chance may be the reason.")


def test_flips_leave_out_the_axis_along_which_classes_lie_in_one_order(tmp_path):
    dice = np.random.default_rng(0)
    for number in range(15):
        mask = np.zeros((32, 32), np.uint8)
        for rows, value in ((slice(2, 8), 1), (slice(20, 28), 2)):  # Sky above the road.
            first = dice.integers(0, 20)
            mask[rows, first : first + 9] = value
        noise = dice.integers(0, 50, mask.shape)
        save(tmp_path / f"images/{number}.png", (mask * 90 + noise).astype(np.uint8))
        save(tmp_path / f"masks/{number}.png", mask)
    run = describe_folder(tmp_path)
    flips, reason = run.keys["augmentation"]
    assert flips == {"flips": [1]}
    assert "class_1 and 2 class_2 along axis 0" in reason
