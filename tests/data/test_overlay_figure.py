"""Names of files and classes stand in pictures as they are."""

import html
import io

import numpy as np
import pytest
from matplotlib import rc_context

from tfunet.data.error_figure import draw_cases
from tfunet.data.overlay_figure import Panel, draw
from tfunet.data.shown_planes import ShownPlane

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
