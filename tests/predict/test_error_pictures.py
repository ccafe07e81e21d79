"""Pictures of predictions and of their errors."""

import numpy as np
import pytest
from PIL import Image

from tfunet.data.lazy_image import LazyImage, open_image
from tfunet.data.shown_planes import shown_channels
from tfunet.prediction.overlay_picture import write_errors, write_overlay


@pytest.mark.parametrize("shape", [(900, 700), (12, 20, 16)])
def test_a_picture_shows_both_kinds_of_error_in_colours_of_their_own(shape, tmp_path):
    mask, labels = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    mask[tuple(slice(size // 4, size // 2) for size in shape)] = 1
    labels[tuple(slice(size // 3, size * 2 // 3) for size in shape)] = 1
    path = tmp_path / "a_errors.png"
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    write_errors(path, image, mask, labels, {1: "1 cell"}, title="a")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    # The legend is below.
    height, width, _ = pixels.shape
    drawn, right = pixels[: height * 4 // 5], 3 * width // 4
    for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        is_near = np.abs(drawn - np.array(colour)).sum(-1) < 120
        assert is_near[:, right:].sum() > 100
        assert not is_near[:, : width // 4].any()  # The image.


def test_pictures_show_a_colour_file_in_colour(tmp_path):
    colours = np.full((40, 60, 4), (200, 20, 20, 250), np.float32)
    colours[:20] = (20, 20, 200, 250)
    Image.fromarray(colours[..., :3].astype(np.uint8)).save(tmp_path / "a.png")
    mask = np.zeros((40, 60), np.uint8)
    infrared = LazyImage(
        shape=(40, 60),
        channels=4,
        read=lambda start, stop: colours[start[0] : stop[0], start[1] : stop[1]],
        by_parts=True,
        in_colour=True,
    )
    path = tmp_path / "picture.png"
    pictures = [
        (write_overlay, (open_image(tmp_path / "a.png"), lambda first, last: mask[first:last])),
        (write_overlay, (infrared, lambda first, last: mask[first:last])),
        (write_errors, (shown_channels(colours, in_colour=True), mask, mask)),
    ]
    for write, arguments in pictures:
        write(path, *arguments, {1: "1 cell"}, title="")
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        for colour in ((255, 25, 25), (25, 25, 255)):
            assert (pixels == colour).all(-1).sum() > 5000


def black(shape):
    return LazyImage(
        shape=shape,
        channels=1,
        read=lambda start, stop: np.zeros((*np.subtract(stop, start), 1), np.float32),
        by_parts=True,
    )


@pytest.mark.parametrize("shape", [(1700, 40), (24, 40, 32)])
def test_an_overlay_shows_the_labels_where_they_are(shape, tmp_path):
    """In the picture the label's colour is where the label is, in any part that was read."""
    labels = np.zeros(shape, np.uint8)
    labels[tuple(slice(size // 2, size * 3 // 4) for size in shape)] = 1
    image = black(shape)
    path = tmp_path / "overlay.png"
    write_overlay(path, image, lambda first, last: labels[first:last], {1: "1 cell"}, title="x")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    green = np.abs(pixels - (0, 0xDC, 0xB5)).sum(-1) < 20
    # Outlines in the upper part of the picture; the legend is at its end.
    assert green[: len(green) * 9 // 10].any()


@pytest.mark.parametrize(
    ("shape", "in_dots"),
    [
        ((250, 512), (1620 * 250 / 512, 1620)),
        ((512, 250), (1620, 1620 * 250 / 512)),
        # Larger than the usual width: a dot for each pixel.
        ((1000, 2048), (1000, 2048)),
    ],
)
def test_a_picture_has_the_shape_of_its_image(shape, in_dots, tmp_path):
    image = black(shape)
    path = tmp_path / "overlay.png"
    write_overlay(path, image, lambda *_: np.zeros(shape, np.uint8), {1: "1"}, title="x")
    with Image.open(path) as picture:
        is_black = np.asarray(picture.convert("L")) < 10
    # Titles are small; the image is the rest that is black.
    rows, columns = (is_black.mean(1 - axis) > 0.3 for axis in (0, 1))
    assert (rows.sum(), columns.sum()) == pytest.approx(in_dots, rel=0.1)
    assert rows.mean() > 0.75
