"""Names of files and classes stand in pictures as they are."""

import html
import io

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_rgb

from tfunet.data.error_figure import DIFFERENCES, draw_cases, errors
from tfunet.data.overlay_figure import COLOURS, NO_DATA, Panel, draw
from tfunet.data.preprocess import normalise, statistics_for, unnormalised
from tfunet.data.shown_planes import ShownPlane, in_8_bits

# Formulas of matplotlib, what a formula gets wrong, and marks of HTML.
NAMES = ("a$b$c", "$x_1^2$", "x_1^2", "50%", "<b>", "a & b", r"$\frac{1$", "_border", "$")


def texts(figure):
    """Return a figure as SVG, in which text is text."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    return file.getvalue()


@pytest.mark.parametrize("kind", ["overlay", "errors"])
def test_names_stand_as_they_are(kind):
    image, mask = np.zeros((8, 8, 1)), np.ones((8, 8), np.uint8)
    labels = dict(enumerate((f"class {name}" for name in NAMES), 1)) | {20: "_border"}
    if kind == "overlay":
        panels = [Panel(name, image, mask) for name in NAMES]
        figure = draw(panels, title="all of a$b$c", labels=labels, in_pairs=False)
    else:
        plane = ShownPlane(title="", image=image[..., 0], mask=mask, labels=mask)
        figure = draw_cases({f"Best: {name}": [plane] for name in NAMES}, labels, width=6)
    svg = texts(figure)
    for name in NAMES:
        shown = name if kind == "overlay" else f"Best: {name}"
        assert f">{html.escape(shown, quote=False)}</text>" in svg
        assert f">class {html.escape(name, quote=False)}</text>" in svg
    assert ">_border</text>" in svg


# Red, green and blue are of unlike brightness, and infrared is brighter than all.
SCENE = np.random.default_rng(0).integers(0, 100, (20, 24, 4)) + np.array([900, 300, 60, 5000])
SCENE = SCENE.astype(np.float32)


def test_colours_of_a_picture_have_one_range_and_stay_true():
    mask = np.zeros((20, 24), np.uint8)
    panels = [Panel("a", SCENE, mask), Panel("darker", SCENE / 2, mask)]
    figure = draw(panels, title="", labels={}, in_pairs=False, in_colour=True)
    first, darker = (part.axes[0].images[0].get_array() for part in figure.subfigs)
    assert first.shape == (20, 24, 3)
    # Only brighter: each colour keeps its hue and its saturation.
    expected = np.minimum(SCENE[..., :3] / np.percentile(SCENE[..., :3], 99.5) * 255, 255)
    np.testing.assert_allclose(first, expected, atol=1)
    np.testing.assert_allclose(darker, expected / 2, atol=1.5)
    np.testing.assert_array_equal(in_8_bits([SCENE[..., :3]])[0], first)
    grey = draw(panels, title="", labels={}, in_pairs=False).subfigs[0].axes[0].images[0]
    np.testing.assert_array_equal(grey.get_array(), SCENE[..., 0])
    # Pixels without data are white, and change no others.
    gaps = SCENE[..., :3].copy()
    gaps[3, 4] = np.nan
    with_gaps = in_8_bits([gaps])[0]
    assert with_gaps[3, 4].tolist() == [255] * 3
    assert np.abs(with_gaps.astype(int) - first).max(-1).sum() < 255 + SCENE[..., 0].size


def test_a_plane_in_colour_is_drawn_beside_its_errors():
    (shades,) = in_8_bits([SCENE[..., :3]])
    mask = np.zeros((20, 24), np.uint8)
    plane = ShownPlane(title="", image=shades, mask=mask, labels=mask)
    figure = draw_cases({"a": [plane]}, {1: "1 cell"}, width=6)
    for axes in figure.subfigs[0].axes:
        np.testing.assert_array_equal(axes.images[0].get_array(), shades)


@pytest.mark.parametrize(
    "intensity",
    [
        "none",
        "zscore",
        "zscore_nonzero",
        (0.0, 6000.0),
        {"clip": (0.0, 100.0)},
        {"mean": (900.0, 300.0, 60.0, 9.0), "deviation": (40.0, 20.0, 5.0, 1.0)},
    ],
)
def test_normalised_pixels_have_their_intensities_again(intensity):
    image = SCENE.copy()
    image[:3] = 0
    statistics = statistics_for(intensity, [image])
    back = unnormalised(normalise(image, intensity), intensity, statistics)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, image, rtol=1e-3, atol=1e-2)


# What people with normal vision, protanopia and deuteranopia see, of linear red, green and blue
# (Machado et al. 2009, doi:10.1109/TVCG.2009.113).
VISIONS = np.array(
    [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    ]
)


def in_lab(colours, vision):
    """Return colours in CIELAB, in which distances are those that people see."""
    stored = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ vision.T, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = seen @ np.transpose(to_xyz) / (0.95047, 1, 1.08883)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def least_distance(colours, others, vision):
    first, second = in_lab(colours, vision), in_lab(others, vision)
    apart = np.linalg.norm(first[:, np.newaxis] - second, axis=-1)
    return apart[apart > 0].min()


def test_colours_of_classes_differ_from_each_other_and_from_those_of_errors():
    normal, *blind = VISIONS
    assert len(set(COLOURS)) == 15
    assert least_distance(COLOURS, [*COLOURS, NO_DATA], normal) > 25
    wrong = [colour for _, colour in DIFFERENCES.values()]
    for vision in blind:
        assert least_distance(COLOURS[:11], COLOURS[:11], vision) > 10
    for vision in VISIONS:
        # With more classes, errors have the colours of the classes.
        assert least_distance(COLOURS[:3], wrong, vision) > 20


# Four classes that cover all but a few pixels.
DENSE = np.repeat(np.arange(1, 5, dtype=np.uint8), 6)[:, np.newaxis] * np.ones((1, 20), np.uint8)
DENSE[:2, :2] = 0


def test_a_dense_map_of_labels_is_filled_beside_its_image():
    image = np.full((24, 20, 1), 7.0)
    labels = {label: f"{label}" for label in range(1, 6)}
    mask = np.where(DENSE == 4, 5, DENSE)
    figure = draw([Panel("a", image, DENSE)], title="", labels=labels, in_pairs=False)
    # The legend has the classes of the picture.
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1", "2", "3", "4"]
    (shown,), (filled,) = (axes.images for axes in figure.subfigs[0].axes)
    np.testing.assert_array_equal(shown.get_array(), image[..., 0])
    layer = filled.get_array()
    assert (layer[..., 3] == 1).all()
    for label in range(1, 5):
        np.testing.assert_allclose(layer[label == DENSE, :3].T[:, -1], to_rgb(COLOURS[label - 1]))
    assert (layer[:2, :2, :3] == 0).all()
    # Pixels without data have a colour of no class.
    pair = [Panel(name, image, mask) for name in "abcd"]
    figure = draw(
        [*pair, Panel("e", image, DENSE)] * 2, title="", labels=labels, in_pairs=True, ignored=5
    )
    layer = figure.subfigs[0].axes[1].images[0].get_array()
    np.testing.assert_allclose(layer[-1, 0, :3], to_rgb(NO_DATA))
    # Few labels stay outlines over the image.
    few = np.where(DENSE > 2, 1, DENSE)
    (axes,) = (
        draw([Panel("a", image, few)], title="", labels=labels, in_pairs=False).subfigs[0].axes
    )
    assert len(axes.images) == 2


def test_errors_of_many_classes_have_the_colours_of_the_prediction():
    predicted = DENSE.copy()
    predicted[20:, :5], predicted[20:, 5:9] = 1, 0
    layer = errors(DENSE, predicted, by_label=True)
    np.testing.assert_allclose(layer[22, 2], (*to_rgb(COLOURS[0]), 1))
    np.testing.assert_allclose(layer[22, 6], (1, 1, 1, 1))
    assert (layer[predicted == DENSE, 3] == 0).all()
    shades = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    plane = ShownPlane(title="", image=shades, mask=DENSE, labels=predicted)
    names = {label: f"{label}" for label in range(1, 9)}
    legend = draw_cases({"a": [plane]}, names, width=6).legends[0]
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["1", "2", "3", "4", "no class", "errors: in the mask, not predicted"]
    heading = "Worst: a, Dice " + ", ".join(f"class {number} 0.123" for number in range(12))
    figure = draw_cases({heading: [plane]}, {label: f"{label}" for label in range(1, 5)}, width=6)
    image, *_, wrong = figure.subfigs[0].axes
    assert image.images[0].get_array().ndim == 3
    assert wrong.images[0].get_array().ndim == 2
    assert wrong.get_title() == "errors, as predicted"
    # The whole heading is within the picture.
    title = figure.subfigs[0]._suptitle
    assert title.get_text().split() == heading.split()
    assert title.get_window_extent().x1 < figure.bbox.x1
