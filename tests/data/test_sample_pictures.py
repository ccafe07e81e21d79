"""`tfunet data show`: the samples that training sees, drawn into one whole file."""

import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from tfunet import cli
from tfunet.arguments import from_dict
from tfunet.config.augmentation import read_augmentation
from tfunet.data import sample_pictures
from tfunet.data.cache import build_cache
from tfunet.data.generated.phantoms import cells, tumours
from tfunet.data.overlay_figure import COLOURS, Panel, colour_of, draw, overlay, slices
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.source import open_source
from tfunet.data.split import split_cases

SMALL = {"data_options": {"num_cases": 6, "size": 32}, "seed": 4}


def config(**changed):
    return from_dict({**SMALL, "augmentation": {"rotation": 20, "noise": True}, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"patch": [24, 24], "patches_per_case": 3},
        {"patch": [40, 24]},  # larger than the images along one axis
        {"data": "tumours", "data_options": {"num_cases": 5, "size": 16, "channels": 2}},
    ],
)
def test_shown_samples_are_those_that_training_sees(changed, tmp_path):
    run = config(**changed)
    source = {"cells": cells, "tumours": tumours}[run.data](**run.data_options)
    train = split_cases(source, share=run.validation_share, seed=run.split_seed).train
    augmentation = read_augmentation(run.augmentation)
    first_step = -(-len(train) * run.patches_per_case // 3)
    pipeline = TrainingPipeline(
        cases=build_cache(source, tmp_path, patch=source.chosen_patch(run.patch)),
        train=train,
        patches_per_case=run.patches_per_case,
        replica_batch=3,
        first_step=first_step,
        last_step=first_step + 1,
        seed=run.seed,
        augmentation=augmentation,
    )
    epoch, step = divmod(pipeline.first_step, pipeline.steps_per_epoch)
    batch = next(pipeline(range(1)).as_numpy_iterator())
    samples = sample_pictures.first_samples(run, source, 3 * step + 3, epoch=epoch)[3 * step :]
    assert [sample.number for sample in samples] == batch["sample"].tolist()
    for index, sample in enumerate(samples):
        assert sample.case_id == source.case_ids[train[sample.number // run.patches_per_case]]
        image, mask = sample.changed(augmentation, seed=run.seed, epoch=epoch)
        np.testing.assert_allclose(image, batch["image"][0, index], atol=1e-4)
        np.testing.assert_array_equal(mask, batch["mask"][0, index])


@pytest.mark.parametrize("data", ["cells", "tumours"])
@pytest.mark.parametrize("each", [False, True])
def test_a_picture_is_written_whole(data, each, tmp_path):
    run = config(data=data)
    sample_pictures.show(run, tmp_path / "a.png", num_samples=2, each=each)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 150
        picture.load()
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def texts(figure):
    notes = [text.get_text() for text in figure.texts]
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    title = [figure.get_suptitle()] if figure.get_suptitle() else []
    return notes + labels + title + [text for part in figure.subfigs for text in texts(part)]


def drawn(run, monkeypatch, tmp_path, **options):
    """The panels and the texts of what `show` draws."""
    from tfunet.data import overlay_figure

    kept = {}

    def keep(panels, **given):
        kept["panels"], kept["figure"] = panels, draw(panels, **given)
        return kept["figure"]

    monkeypatch.setattr(overlay_figure, "draw", keep)
    sample_pictures.show(run, tmp_path / "a.svg", **options)
    return kept["panels"], texts(kept["figure"])


def test_each_augmentation_is_shown_alone_and_named(monkeypatch, tmp_path):
    panels, words = drawn(config(), monkeypatch, tmp_path, each=True)
    case_id = panels[0].title
    assert [panel.title for panel in panels] == [case_id, "flips", "rotation", "noise"]
    assert {case_id, "flips", "rotation", "noise", "1 cell"} <= set(words)
    original, flipped, turned, noisy = panels
    np.testing.assert_array_equal(np.sort(flipped.image.ravel()), np.sort(original.image.ravel()))
    assert (turned.mask != original.mask).any()
    np.testing.assert_array_equal(noisy.mask, original.mask)
    assert 0 < (noisy.image - original.image).std() < 0.2


def test_samples_are_shown_before_and_after_with_case_epoch_and_classes(monkeypatch, tmp_path):
    run = config(data="tumours", data_options={"num_cases": 5, "size": 16})
    panels, words = drawn(run, monkeypatch, tmp_path, num_samples=2, epoch=7)
    assert [panel.title.startswith("tumours-") for panel in panels] == [True, False] * 2
    assert "tumours, seed 4, epoch 7" in words
    # A label is named for the smallest of the nested regions that hold it.
    assert {"1 whole", "2 core", "3 enhancing"} <= set(words)
    others, _ = drawn(run, monkeypatch, tmp_path, num_samples=2, epoch=8)
    assert any((a.image != b.image).any() for a, b in zip(panels, others, strict=True))


@pytest.mark.parametrize("intensity", ["zscore", "none"])
@pytest.mark.parametrize("alpha", [None, "keep"])
def test_colours_are_those_of_the_files(intensity, alpha, monkeypatch, tmp_path):
    # Normalisation makes all channels alike.
    means = np.array([230, 120, 180, 255])
    for case in "abc":
        noise = np.random.default_rng(ord(case)).integers(-20, 20, (32, 32, 4))
        pixels = np.clip(means + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{case}.png")
        Image.fromarray((pixels[..., 0] > 240).astype(np.uint8)).save(tmp_path / f"{case}_mask.png")
    options = {
        "root": str(tmp_path),
        "images": "{case}.png",
        "masks": "{case}_mask.png",
        "intensity": intensity,
        "alpha": alpha or "drop",
    }
    run = from_dict({"data": "folder", "data_options": options, "patch": [32, 32]})
    panels, _ = drawn(run, monkeypatch, tmp_path, num_samples=1)
    assert open_source(run.data, run.data_options).in_colour
    stored = np.asarray(Image.open(tmp_path / f"{panels[0].title}.png"))
    shown = panels[0].image
    np.testing.assert_allclose(shown[..., :3], stored[..., :3], atol=0.1)
    colours = shown_figure(panels)[0]
    assert colours.shape == (32, 32, 3)
    red, green, blue = colours.reshape(-1, 3).mean(0)
    assert red > blue + 50 > green + 80


def shown_figure(panels):
    figure = draw(panels, title="", labels={}, in_pairs=True, in_colour=True)
    return [part.axes[0].images[0].get_array() for part in figure.subfigs]


def test_a_volume_is_seen_in_three_slices_through_its_foreground():
    mask = np.zeros((6, 7, 8), np.uint8)
    mask[4, 1, 6] = 1
    image = np.arange(6 * 7 * 8.0).reshape(6, 7, 8, 1)
    views = slices(Panel("", image, mask))
    expected = [image[4, :, :, 0], image[:, 1, :, 0], image[:, :, 6, 0]]
    for (grey, labels), expected_grey in zip(views, expected, strict=True):
        np.testing.assert_array_equal(grey, expected_grey)
        assert labels.sum() == 1
    empty = slices(Panel("", image, np.zeros_like(mask)))
    np.testing.assert_array_equal(empty[0][0], image[2, :, :, 0])


def test_labels_have_an_outline_a_tint_and_a_colour_of_their_own():
    mask = np.zeros((7, 7), np.uint8)
    mask[1:6, 1:6] = 2
    colours = overlay(mask)
    assert (colours[mask == 0, 3] == 0).all()
    assert (colours[1:6, 1, 3] == 1).all()
    assert 0 < colours[3, 3, 3] < 0.5
    assert tuple(np.round(colours[3, 3, :3] * 255)) == (0x94, 0x00, 0xE6)
    colours = np.array([to_rgb(colour_of(label)) for label in range(1, 31)])
    distances = np.linalg.norm(colours[:, np.newaxis] - colours, axis=-1) + np.eye(30)
    assert distances.min() > 0.05


def test_a_dense_label_map_hides_little_of_its_image():
    sparse, dense = np.zeros((2, 600, 600), np.uint8)
    sparse[100:200, 100:200] = dense[:300] = 1
    dense[300:] = 2
    tints = [overlay(mask)[150, 150, 3] for mask in (sparse, dense)]
    assert tints[0] > 2 * tints[1] > 0
    # Outlines of a large picture are wider than a pixel; both labels have one.
    assert (overlay(dense)[:, 300, 3] == 1).sum() == 4
    expected = [to_rgb(COLOURS[0])] * 2 + [to_rgb(COLOURS[1])] * 2
    np.testing.assert_allclose(overlay(dense)[298:302, 300, :3], expected, atol=1e-6)
    # A slice of one pixel has no neighbours.
    assert overlay(np.ones((1, 1), np.uint8)).shape == (1, 1, 4)


@pytest.mark.parametrize(("width", "solid"), [(3, 0), (5, 2), (9, 4), (40, 8)])
def test_outlines_leave_thin_structures_open(width, solid):
    """Membranes a few pixels wide in a large image, whose outlines would be four pixels wide."""
    mask = np.zeros((1000, 1000), np.uint8)
    mask[:, 500 : 500 + width] = 1
    alpha = overlay(mask)[500, :, 3]
    assert (alpha == 1).sum() == solid
    assert (alpha > 0).sum() == width  # What is no outline is tinted.


def test_many_names_stand_in_a_legend_of_several_lines():
    panel = Panel("", np.zeros((8, 8, 1)), np.ones((8, 8), np.uint8))
    names = {label: f"{label} a long name of a class" for label in range(1, 13)}
    figure = draw([panel], title="", labels=names, in_pairs=False)
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert 0 <= box.y0 < box.y1 <= figure.bbox.height / 2


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"path": "a.txt"}, r"'a.txt'. Give a name that ends in .png, .svg, .pdf"),
        ({}, {"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({}, {"epoch": -1}, "epoch must be at least 0, got -1"),
        ({"patch": [8, 8, 8]}, {}, "has 3 sizes; the images of cells have 2 dimensions"),
        ({"augmentation": {"flips": [2]}}, {}, "flips names axis 2"),
        ({"augmentation": {"flips": False}}, {"each": True}, "All augmentations are off"),
        ({"data": "cels"}, {}, "Did you mean 'cells'"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(
    changed, options, message, tmp_path
):
    path = tmp_path / options.pop("path", "a.png")
    with pytest.raises(ValueError, match=message):
        sample_pictures.show(config(**changed), path, **options)
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_said_with_what_to_type(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "tfunet.data.overlay_figure", raising=False)
    monkeypatch.delattr("tfunet.data.overlay_figure", raising=False)
    for name in [module for module in sys.modules if module.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'tfunet\[report\]'"):
        sample_pictures.show(config(), tmp_path / "a.png")


def test_command_takes_keys_of_the_run_as_train_does(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text('data = "cells"\n[data_options]\nnum_cases = 6\nsize = 32\n')
    out = tmp_path / "cells.svg"
    show_it = ["data", "show", str(file), "--out", str(out), "--num_samples", "1"]
    assert cli.main([*show_it, "--augmentation.rotation", "30", "--seed", "9"]) == 0
    assert capsys.readouterr().out == f"Picture: {out}\n"
    assert out.read_text().startswith("<?xml")
    assert cli.main([*show_it, "--augmentation.rotaton", "30"]) == 2
    assert "Did you mean 'rotation'" in capsys.readouterr().err
    assert cli.main([*show_it[:4], str(tmp_path / "none" / "a.png")]) == 5
