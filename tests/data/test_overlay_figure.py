"""Names of files and classes stand in pictures as they are."""

import html
import io

import numpy as np
import pytest
from matplotlib import rc_context

from tfunet.data.error_figure import draw_cases
from tfunet.data.overlay_figure import Panel, draw
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
