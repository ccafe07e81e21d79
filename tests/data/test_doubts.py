"""What may be a mistake: training says what `tfunet data check` says, from the cache too."""

import json
import string
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tfunet.data.cache import build_cache
from tfunet.data.cache_eviction import INDEX
from tfunet.data.check import check, report_text
from tfunet.data.defects import Defect, lines_by_cause
from tfunet.data.doubts import check_classes, lines_of_doubt
from tfunet.data.source import open_source
from tfunet.data.split import Split

SPLIT = Split(train=(0, 1, 2, 3), validation=(4, 5))
RNG = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path):
    """Six images of 40x48 with a mask each; of each a third is white."""
    for name in "abcdef":
        mask = np.zeros((40, 48), np.uint8)
        mask[:, :16] = 255
        Image.fromarray(RNG.integers(0, 256, mask.shape).astype(np.uint8)).save(
            tmp_path / f"{name}.png"
        )
        Image.fromarray(mask).save(tmp_path / f"{name}_m.png")
    return tmp_path


def opened(folder, **options):
    patterns = {"images": "{case}.png", "masks": {"cell": "{case}_m.png"}, "threshold": 127}
    return open_source("folder", {"root": str(folder), "name": "set", **patterns, **options})


def empty(folder):
    Image.new("L", (48, 40)).save(folder / "b_m.png")


def none_in_validation(folder):
    for name in "ef":
        Image.new("L", (48, 40)).save(folder / f"{name}_m.png")


def constant(folder):
    Image.new("L", (48, 40), 7).save(folder / "b.png")


def copy(folder):
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes())


def leak(folder):
    (folder / "e.png").write_bytes((folder / "a.png").read_bytes())


def translucent(folder):
    pixels = RNG.integers(0, 256, (40, 48, 2)).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "b.png")


def transparent_colour(folder):
    image = Image.fromarray(RNG.integers(0, 256, (40, 48)).astype(np.uint8))
    image.save(folder / "b.png", transparency=7)


def transparent_entry(folder):
    image = Image.fromarray(RNG.integers(0, 3, (40, 48)).astype(np.uint8), "P")
    image.putpalette([0, 9, 0, 200, 10, 20, 30, 200, 40])
    image.save(folder / "b.png", transparency=bytes([0, 255, 255]))


def upper_case(folder):
    for name in ("b.png", "b_m.png"):
        (folder / name.replace("b", "g").replace("png", "PNG")).write_bytes(
            (folder / name).read_bytes()
        )


def below_the_threshold(folder):
    Image.new("L", (48, 40), 100).save(folder / "b_m.png")


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda folder: None, {}, []),
        (empty, {}, ["b.png: its mask is empty"]),
        (
            none_in_validation,
            {},
            [
                "e.png: its mask is empty",
                "f.png: its mask is empty",
                "set: no case of validation has the class 1 cell",
            ],
        ),
        (constant, {}, ["b.png: every pixel of channel 0 "]),
        (copy, {}, ["b.png: has the same pixels as a.png, which then counts twice"]),
        (leak, {}, ["e.png: has the same pixels as a.png, and they are on both sides"]),
        (translucent, {}, ["b.png: its channel 2 is tagged alpha"]),
        (transparent_colour, {}, ["b.png: its channel 2 is tagged alpha"]),
        (transparent_entry, {"grey": True}, ["b.png: its channel 4 is tagged alpha"]),
        (upper_case, {}, ["g.PNG: is left out: it matches '{case}.png' only if"]),
        (lambda folder: None, {"threshold": -1}, 6 * ["threshold = -1 is below all of its"]),
        (below_the_threshold, {}, ["b_m.png: its values reach 100, and", "b.png: its mask is em"]),
        (lambda folder: None, {"intensity": [0, 3]}, 6 * ["of its values lie outside"]),
    ],
)
def test_training_says_what_data_check_says(folder, tmp_path_factory, spoil, options, words):
    spoil(folder)
    source = opened(folder, **options)
    report = check(source, SPLIT)
    checked = [str(line) for line in (*report.defects, *report.warnings)]
    assert [word in line for word, line in zip(words, checked, strict=True)] == [True] * len(words)
    cache = tmp_path_factory.mktemp("cache")
    decoded = build_cache(source, cache, patch=(32, 32))
    # A channel is known to be constant, but its value is the normalised one.
    problems = [*report.defects, *report.warnings]
    expected = [line.replace(" is 7", " has the same value") for line in lines_by_cause(problems)]
    assert lines_of_doubt(source, decoded, SPLIT) == expected
    again = opened(folder, **options)
    assert lines_of_doubt(again, build_cache(again, cache, patch=(32, 32)), SPLIT) == expected
    (index,) = cache.glob(f"*/{INDEX}")
    kept = json.loads(index.read_text())
    index.write_text(json.dumps({**kept, "signs": "lost"}))
    assert lines_of_doubt(source, build_cache(source, cache, patch=(32, 32)), SPLIT) == expected


def test_unlike_pixel_sizes_are_said(folder, tmp_path_factory):
    sizes = tuple((1.0 + number, 1.0) for number in range(6))
    source = replace(opened(folder), spacings=sizes)
    decoded = build_cache(source, tmp_path_factory.mktemp("cache"), patch=(32, 32))
    (line,) = lines_of_doubt(source, decoded, SPLIT)
    assert line == "set: pixel sizes from 1 x 1 to 6 x 1; target_pixel_size= resamples them to one"


def test_many_doubts_are_counted_and_not_all_shown(tmp_path):
    # Each has words of its own.
    doubtful = [
        Defect(file=f"{name}.png", what=f"is {name * 3}") for name in string.ascii_lowercase
    ]
    Image.new("L", (8, 8), 3).save(tmp_path / "x.png")
    Image.fromarray(np.eye(8, dtype=np.uint8) * 255).save(tmp_path / "x_m.png")
    source = opened(tmp_path)
    decoded = build_cache(source, tmp_path / "cache", patch=(8, 8))
    facts = decoded.store.log.facts
    facts[0] = replace(facts[0], signs=replace(facts[0].signs, notes=tuple(doubtful)))
    lines = lines_of_doubt(source, decoded, Split(train=(0,), validation=()))
    assert len(lines) == 21
    assert lines[-1].endswith("more: 'tfunet data check' lists all")


def test_equal_doubts_are_one_line(tmp_path):
    for number in range(25):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
        Image.new("L", (8, 8), 0).save(tmp_path / f"{number}_m.png")
    source = opened(tmp_path)
    report = check(source)
    assert [str(defect) for defect in report.defects] == [
        "set: no case has a pixel of the class 1 cell: nothing can be learnt or scored. Correct "
        "its value, colour or threshold, or leave the class out. For a first try with some of the "
        "images, add one with this class, or leave the class out until then."
    ]
    assert len(report.warnings) == 50
    text = report_text(report)
    assert "0.png: its mask is empty (24 more like it: 1.png, 10.png, " in text
    # Ten of them are named.
    assert sum(text.count(f" {number}.png") for number in range(25)) == 2 * 10
    decoded = build_cache(source, tmp_path / "cache", patch=(8, 8))
    split = Split(train=tuple(range(20)), validation=tuple(range(20, 25)))
    lines = lines_of_doubt(source, decoded, split)
    assert "0.png: its mask is empty (24 more like it: 1.png, 10.png, 11.png, ...)" in lines
    assert sum("no case has a pixel" in line for line in lines) == 1
    assert len(lines) < 6
    with pytest.raises(ValueError, match="'set' has a defect: no case has a pixel of the class 1"):
        check_classes(source, decoded, split)


def test_a_class_in_any_case_can_be_trained(folder, tmp_path):
    none_in_validation(folder)
    source = opened(folder)
    check_classes(source, build_cache(source, tmp_path / "cache", patch=(32, 32)), SPLIT)


@pytest.mark.parametrize(
    ("names", "images", "words"),
    [
        ("patient1_a patient1_b patient2_a patient2_b", "{case}.png", ""),
        ("patient1_a patient2_a patient1_b patient3_b", "{case}.png", "patient1_a (train) and pat"),
        ("sub-01_x sub-02_x sub-01_y sub-03_x", "{case}.png", "sub-01_x (train) and sub-01_y (val"),
        ("patient1_a patient2_a patient1_b patient3_b", "{group}_{case}.png", ""),
        ("patient1 patient2 patient3 patient4", "{case}.png", ""),
        ("cell1_a cell2_a cell1_b cell2_b", "{case}.png", ""),
    ],
)
def test_a_patient_on_both_sides_is_said(tmp_path, names, images, words):
    for name in names.split():
        Image.fromarray(RNG.integers(0, 256, (8, 8)).astype(np.uint8)).save(
            tmp_path / f"{name}.png"
        )
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / f"{name}-m.png")
    options = {"images": images, "masks": {"cell": images.replace(".png", "-m.png")}}
    source = open_source("folder", {"root": str(tmp_path), "exclude": ["*-m.png"], **options})
    order = [source.files.index(f"{name}.png") for name in names.split()]
    sides = dict(zip(order, ("train", "train", "validation", "validation"), strict=True))
    split = Split(
        **{side: tuple(at for at in sides if sides[at] == side) for side in ("train", "validation")}
    )
    said = [str(warning) for warning in check(source, split).warnings]
    assert len(said) == bool(words)
    assert all(words in line for line in said)


INVERTED = "classes = { NAME = 0, background = 255 }"


def most_are_white(folder):
    for name in "abcdef":
        mask = np.full((160, 48), 255, np.uint8)
        mask[:40] = 0
        Image.fromarray(mask).save(folder / f"{name}_m.png")
        image = RNG.integers(0, 256, mask.shape).astype(np.uint8)
        Image.fromarray(image).save(folder / f"{name}.png")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"masks": "{case}_m.png", "classes": {"cell": 255}}, f"[data_options]: {INVERTED}"),
        ({"masks": "{case}_m.png", "classes": {"cell": 0, "background": [255]}}, ""),
        (
            {"masks": "{case}_m.png", "classes": {"cell": [1, 255], "background": [0, 7]}},
            "classes = { NAME = [0, 7], background = [1, 255] }",
        ),
        (
            {"masks": "{case}_m.png", "classes": {"cell": "#ffffff"}},
            'classes = { NAME = "#000000", background = "#ffffff" }',
        ),
        ({"threshold": 0}, ""),  # Objects.
        ({"threshold": 127}, f'masks = "{{case}}_m.png" and {INVERTED}'),
        ({"masks": "{case}_m.png", "classes": {"a": 0, "b": 255, "background": []}}, ""),
    ],
)
def test_a_class_that_is_most_of_the_image_may_be_the_background(
    folder, tmp_path_factory, options, words
):
    most_are_white(folder)
    source = opened(folder, **{"threshold": None, **options})
    said = [str(warning) for warning in check(source, SPLIT).warnings]
    decoded = build_cache(source, tmp_path_factory.mktemp("cache"), patch=(64, 64))
    assert lines_of_doubt(source, decoded, SPLIT) == said
    assert len(said) == bool(words)
    # Three quarters of each case are the class.
    text = "cell has 75% of all pixels: a network that predicts it everywhere has a Dice of 0.857"
    assert all(line.endswith(words) and text in line for line in said)


def test_the_line_for_the_other_pixels_is_right(folder):
    most_are_white(folder)
    classes = {"NAME": 0, "background": 255}
    source = opened(folder, masks="{case}_m.png", classes=classes, threshold=None)
    (rest,) = {float((source.read(index)[1] == 1).mean()) for index in range(6)}
    assert rest == 0.25
