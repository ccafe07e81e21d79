"""Imports at the start of a run's processes."""

import gc
import subprocess
import sys

from tfunet.process.start_up import imported_later, short_start

DRAWN_LATER = """
import sys
from tfunet.process.start_up import short_start

with short_start():
    import keras
assert "matplotlib" not in sys.modules and "IPython" not in sys.modules
figure = keras.visualization.plot_image_gallery(
    keras.ops.zeros((4, 8, 8, 3)), rows=2, cols=2, value_range=(0, 255)
)
assert "matplotlib.pyplot" in sys.modules
"""


def test_keras_loads_what_draws_only_to_draw():
    ended = subprocess.run([sys.executable, "-c", DRAWN_LATER], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_module_is_imported_when_it_is_used(tmp_path, monkeypatch):
    package = tmp_path / "drawn"
    package.mkdir()
    (package / "__init__.py").write_text("colour = 'red'\n")
    (package / "lines.py").write_text("width = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with imported_later({"drawn": ("lines",), "nowhere_to_be_found": ()}):
        import drawn
        import drawn.lines as lines

        assert "nowhere_to_be_found" not in sys.modules
    assert "drawn" not in sys.modules
    assert lines.width == 3
    assert drawn.colour == "red"
    assert sys.modules["drawn"] is not drawn


def test_what_is_made_at_the_start_is_not_collected_later():
    before = gc.get_freeze_count()
    with short_start():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
