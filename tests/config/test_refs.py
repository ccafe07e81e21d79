import sys

import pytest

from tfunet.config import refs

TABLE = {"horovod": "hvd.backend:HorovodBackend", "single": "tfunet.single_device:SingleDevice"}


def test_near_match_is_named_with_all_that_is_known():
    with pytest.raises(
        ValueError, match=r"'horovd'\. Did you mean 'horovod'.*Known: horovod, single"
    ):
        refs.expand("backend", "horovd", TABLE)


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("no_such_module:build", "no_such_module"),
        ("tfunet.config.refs:resolv", "Did you mean 'resolve'"),
        ("missing.py:build", "does not exist"),
    ],
)
def test_reference_that_leads_nowhere_says_where_it_ended(ref, message):
    with pytest.raises(ValueError, match=message):
        refs.resolve("model", ref, {})


def test_missing_import_inside_the_users_module_is_not_mistaken_for_a_missing_module(tmp_path):
    (tmp_path / "net.py").write_text("import surely_not_installed\n")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        refs.resolve("model", f"{tmp_path}/net.py:build", {})


def test_file_imports_what_lies_beside_it_but_hides_no_library(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "blocks_beside.py").write_text("SIZE = 3\n")
    (tmp_path / "json.py").write_text("raise ImportError\n")
    (tmp_path / "net.py").write_text(
        "from blocks_beside import SIZE\nimport json\nWHOLE = json.dumps(SIZE)\n"
        "class Net:\n    size = SIZE\n"
    )
    assert refs.resolve("model", f"{tmp_path}/net.py:Net", {}).size == 3


def test_file_reference_is_loaded_once(tmp_path):
    (tmp_path / "net.py").write_text("class Net: pass\n")
    ref = f"{tmp_path}/net.py:Net"
    assert refs.resolve("model", ref, {}) is refs.resolve("model", ref, {})


def test_reference_finds_the_function_again():
    assert refs.resolve("x", refs.reference(refs.near_match), {}) is refs.near_match
    with pytest.raises(ValueError, match="another process"):
        refs.reference(lambda: None)


def build(*, image_shape, filters=8):
    return image_shape, filters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": 4}, "no option 'filter'. Did you mean 'filters'"),
        ({"image_shape": 3}, "no option 'image_shape'"),  # tfunet gives this one
    ],
)
def test_unknown_option_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        refs.call("model", build, options, image_shape=(1,))


def test_missing_option_is_named():
    with pytest.raises(ValueError, match="needs the option image_shape"):
        refs.call("model", build, {})
    assert refs.call("model", build, {"filters": 2}, image_shape=1) == (1, 2)
