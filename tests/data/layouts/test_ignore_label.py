"""Pixels that nobody labelled have a value of their own, and get the label that counts nowhere."""

import numpy as np
import pytest
from PIL import Image

from tfunet.data.check import check, report_text
from tfunet.data.source import open_source

VALUES = np.array([[0, 1, 2, 9], [9, 9, 1, 0], [2, 2, 0, 1], [0, 0, 0, 0]], np.uint8)

LAST = np.arange(16).reshape(4, 4) == 15


def opened(root, files, **options):
    """Open two cases with these mask files, by suffix."""
    for case in "ab":
        for suffix, pixels in files.items():
            Image.fromarray(pixels).save(root / f"{case}{suffix}.png")
        image = np.random.default_rng(0).integers(0, 200, VALUES.shape).astype(np.uint8)
        Image.fromarray(image).save(root / f"{case}.png")
    given = {"root": str(root), "images": "{case}.png", "exclude": ["*_*.png"], **options}
    return open_source("folder", given)


def colours(values):
    table = np.zeros((10, 3), np.uint8)
    table[1], table[2], table[9] = (255, 0, 0), (0, 255, 0), (255, 255, 0)
    return table[values]


@pytest.mark.parametrize(
    ("masks", "options", "expected"),
    [
        (
            {"_m": VALUES},
            {"masks": "{case}_m.png", "classes": {"a": 1, "b": 2}, "ignore_label": 9},
            np.where(VALUES == 9, 255, VALUES),
        ),
        (
            {"_m": colours(VALUES)},
            {
                "masks": "{case}_m.png",
                "classes": {"a": "#ff0000", "b": "#00ff00"},
                "ignore_label": "#ffff00",
            },
            np.where(VALUES == 9, 255, VALUES),
        ),
        (  # Two files, of which either may say that a pixel counts for nothing.
            {
                "_a": np.where(LAST, 7, VALUES == 1).astype(np.uint8),
                "_b": np.where(VALUES == 9, 7, VALUES == 2).astype(np.uint8),
            },
            {"masks": {"a": "{case}_a.png", "b": "{case}_b.png"}, "ignore_label": 7},
            np.where(LAST | (VALUES == 9), 255, VALUES),
        ),
        (
            {"_m": np.where(VALUES == 9, 255, VALUES * 100).astype(np.uint8)},
            {"masks": {"a": "{case}_m.png"}, "threshold": 150, "ignore_label": 255},
            np.where(VALUES == 9, 255, VALUES == 2),
        ),
    ],
)
def test_marked_pixels_count_for_nothing(masks, options, expected, tmp_path):
    source = opened(tmp_path, masks, **options)
    assert source.ignored == 255
    np.testing.assert_array_equal(source.read(0)[1], expected)
    assert check(source).defects == ()
    # Without it there are other labels, so they are decoded anew.
    without = opened(tmp_path, masks, **{**options, "ignore_label": None})
    assert without.fingerprint != source.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": {"a": 1, "b": 2}, "ignore_label": 2}, "is the value of a class"),
        ({"classes": {"a": 1}, "ignore_label": 0}, "or of the background"),
        ({"classes": {"a": 1}, "ignore_label": "#ff0000"}, "mixes values and colours"),
        ({"masks": {"a": "{case}_m.png"}, "ignore_label": 0}, "0 is the background"),
        ({"masks": {"a": "{case}_m.png"}, "ignore_label": "#ff0000"}, "such as 255"),
        (
            {"classes": {f"c{value}": value for value in range(1, 256)}, "ignore_label": 300},
            "allowed: 254 classes",
        ),
    ],
)
def test_a_label_that_means_something_else_is_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, {"_m": VALUES}, **{"masks": "{case}_m.png", **options})


def test_data_check_shows_the_share_of_ignored_pixels_or_that_there_are_none(tmp_path):
    options = {"masks": "{case}_m.png", "classes": {"a": 1, "b": 2}}
    report = check(opened(tmp_path, {"_m": VALUES}, **options, ignore_label=9))
    said = " ".join(report_text(report).split())
    assert "class background 53.85% of the pixels that count, in 2 cases" in said
    assert "ignored 18.75% of all pixels, in 2 cases" in said
    assert not any("ignore_label" in warning.what for warning in report.warnings)
    sound = np.where(VALUES == 9, 0, VALUES)
    report = check(opened(tmp_path, {"_m": sound}, **options, ignore_label=9))
    assert "ignored" not in report_text(report).split("warning")[0]
    assert any("no mask has the value of pixels to ign" in found.what for found in report.warnings)
    # Without data is no pixel here, and fill= may be there for others.
    report = check(opened(tmp_path, {"_m": sound}, **options, fill=0))
    assert not any("ignore_label" in warning.what for warning in report.warnings)
