"""Weights of classes in the loss: as numbers, by name, and balanced over the training cases."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cached_cases import EXTENTS, decode, source_of
from PIL import Image

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.data.cache import build_cache
from tfunet.data.class_weights import class_weights, training_pixels, weights_line
from tfunet.data.early_checks import check_early
from tfunet.files.table import read_rows
from tfunet.loop import run
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice

# Labels 1 to 3 as in the BraTS challenge, and a name for each label.
REGIONS = {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
NAMES = ("edema", "necrosis", "active tumour")


def tumours(**changes):
    source = replace(source_of(), num_classes=4, regions=REGIONS, class_names=NAMES)
    return replace(source, **changes)


def weighted(given):
    return RunConfig(loss_options={"class_weights": given})


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        ({}, ()),
        ({"background": 0.5}, (0.5, 1, 1, 1)),
        ({"active tumour": 3}, (1, 1, 1, 3)),
        ({"core": 2.0}, (1, 1, 2, 2)),
        # The smallest region that has a class decides, whatever comes first.
        ({"enhancing": 5.0, "whole": 2.0}, (1, 2, 2, 5)),
        ({"necrosis": 0.0, "core": 4.0}, (1, 1, 0, 4)),
        ([0, 1, 2, 3], (0, 1, 2, 3)),
    ],
)
def test_a_name_gives_its_classes_their_weight(given, weights):
    assert class_weights(weighted(given), tumours()) == weights


@pytest.mark.parametrize(
    ("given", "source", "message"),
    [
        ({"edma": 2.0}, {}, "'edma'. Did you mean 'edema'. Known: background, whole, core"),
        (
            {"a": 2.0, "b": 3.0},
            {"regions": {"a": (1, 2), "b": (2, 3)}},
            r"the class 2 necrosis the weights 2 \(a\) and 3 \(b\). Name the class",
        ),
        ([1.0, 2.0], {}, r"2 numbers.*4 classes.* Or give names: .*\{ \"active tumour\" = 2.0 \}"),
        ("balance", {}, "Did you mean 'balanced'"),
        ({"edema": "2"}, {}, r"must be a list of numbers .*'\{\"NAME\": 2\}'"),
        ({"edema": -1.0}, {}, "not negative"),
        ([True, 1.0, 1.0, 1.0], {}, "must be a list of numbers"),
        (3, {}, "must be a list of numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(given, source, message):
    with pytest.raises(ValueError, match=message):
        class_weights(weighted(given), tumours(**source))


def test_balanced_weights_are_those_of_scikit_learn():
    # compute_class_weight("balanced"): n_samples / (n_classes * count), here of 60 pixels.
    weights = class_weights(weighted("balanced"), tumours(), (30, 15, 5, 10))
    assert weights == (60 / (4 * 30), 60 / (4 * 15), 60 / (4 * 5), 60 / (4 * 10))
    # All classes together weigh as much as without weights.
    assert np.dot(weights, (30, 15, 5, 10)) == pytest.approx(60)
    line = weights_line(weighted("balanced"), tumours(), weights)
    assert line == (
        "class_weights, balanced over the training cases: 0 background 0.5, 1 edema 1, "
        "2 necrosis 3, 3 active tumour 1.5."
    )


def test_a_background_that_no_pixel_has_is_no_class():
    source = tumours(has_background=False)
    assert class_weights(weighted("balanced"), source, (0, 10, 10, 20)) == pytest.approx(
        (0, 40 / 30, 40 / 30, 40 / 60)
    )


@pytest.mark.parametrize(
    ("pixels", "absent"), [((0, 9, 9, 9), "0 background"), ((9, 9, 0, 0), "2 necrosis, 3 active")]
)
def test_a_class_without_a_pixel_in_training_has_no_balanced_weight(pixels, absent):
    with pytest.raises(ValueError, match=f"none has one of {absent}.*Give names and numbers"):
        class_weights(weighted("balanced"), tumours(), pixels)


def test_pixels_to_ignore_and_padding_are_not_counted(tmp_path):
    def read(index):
        image, mask = decode(index)
        mask[0, 0] = 255
        return image, mask

    source = replace(source_of(read), ignored=255)
    for patch in ((4, 5), (9, 9)):
        cases = build_cache(source, tmp_path, patch=patch)
        for train in ((0,), (0, 2)):
            masks = np.concatenate([read(index)[1].ravel() for index in train])
            wanted = tuple((masks == label).sum() for label in range(3))
            assert training_pixels(cases, train) == wanted
            assert sum(wanted) == sum(np.prod(EXTENTS[index]) - 1 for index in train)


@pytest.mark.parametrize("ignored", [None, 255])
def test_what_is_around_a_small_image_is_ignored_if_anything_is(ignored, tmp_path):
    source = replace(source_of(decode), ignored=ignored)
    cases = build_cache(source, tmp_path, patch=(9, 9))
    for index, extent in enumerate(EXTENTS):
        image, mask = cases.read(index, (0, 0), (9, 9))
        is_around = (image == 0).all(-1)
        assert is_around.sum() == 81 - np.prod(extent)
        assert set(mask[is_around]) == {0 if ignored is None else ignored}
        np.testing.assert_array_equal(mask[~is_around], decode(index)[1].ravel())


@pytest.fixture
def config(tmp_path):
    """A function that gives the configuration of a run on 6 masks, each with other shares."""
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16)).astype(np.uint8)
        mask = np.select([pixels < 20 + 10 * number, pixels < 160], [2, 1], 0).astype(np.uint8)
        mask[0, :3] = 9
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        Image.fromarray(mask).save(tmp_path / f"{number}_m.png")

    def made(given, **settings):
        return from_dict(
            {
                "data": "folder",
                "data_options": {
                    "root": str(tmp_path),
                    "images": "{case}.png",
                    "masks": "{case}_m.png",
                    "classes": {"cell": 1, "nucleus": 2},
                    "ignore_label": 9,
                },
                "model_options": {"filters": 2, "levels": 1, "convolutions": 1},
                "loss": "crossentropy",
                "loss_options": {"class_weights": given},
                "cache_dir": str(tmp_path / "cache"),
                "global_batch": 2,
                "deterministic": True,
                **settings,
            }
        )

    return made


def recorded(folder):
    return json.loads((folder / "data.json").read_text())["class_weights"]


def last_hash(folder):
    return read_rows(folder / "epochs.csv")[-1]["weights_hash"]


def balance(tmp_path, cases):
    """The weights by hand."""
    masks = np.stack([np.asarray(Image.open(tmp_path / f"{case}_m.png")) for case in cases])
    counts = np.array([(masks == label).sum() for label in range(3)])
    return (counts.sum() / (3 * counts)).tolist()


def test_a_balanced_run_is_that_of_its_numbers_and_keeps_them(config, tmp_path, capsys):
    settings = {"folds": 3, "fold": 1}
    folder = tmp_path / "balanced"
    run(config("balanced", epochs=1, **settings), SingleDevice(Launch()), folder)
    weights = recorded(folder)
    train = json.loads((folder / "split.json").read_text())["train"]
    assert weights == pytest.approx(balance(tmp_path, train), rel=1e-12)
    assert weights != pytest.approx(balance(tmp_path, range(6)), rel=1e-3)
    said = capsys.readouterr().out
    assert "class_weights, balanced over the training cases: 0 background 0.8" in said
    numbers = tmp_path / "numbers"
    run(config(weights, epochs=1, **settings), SingleDevice(Launch()), numbers)
    assert last_hash(folder) == last_hash(numbers)
    # Somebody paints a mask over. The run goes on with the weights that it began with.
    Image.fromarray(np.full((16, 16), 1, np.uint8)).save(tmp_path / f"{train[0]}_m.png")
    longer = config("balanced", epochs=2, **settings)
    RunFolder(folder).begin(longer)
    run(longer, SingleDevice(Launch()), folder)
    assert recorded(folder) == weights != pytest.approx(balance(tmp_path, train), rel=1e-3)


def test_names_are_checked_before_tensorflow_is_imported(config):
    with pytest.raises(ValueError, match=r"'nucleos'\. Did you mean 'nucleus'"):
        check_early(config({"nucleos": 2.0}))
    check_early(config({"nucleus": 2.0, "background": 0.5}))
    check_early(config("balanced"))
