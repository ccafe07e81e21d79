import re
import sys

import pytest

from tfunet.config import refs
from tfunet.files.atomic import WriteError

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
    with pytest.raises(ValueError, match="No module named 'surely_not_installed'"):
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


OWN = """
import os


def helper(width):
    return [1, 2][width]


def build(*, image_shape, how):
    if how == "index":
        helper(5)
    if how == "type":
        return 3 + "a"
    if how == "value":
        raise ValueError("width must be even.")
    if how == "beside":
        import beside
        return beside.layers(image_shape)
    if how == "library":
        return os.path.join(3, 4)
    if how == "import":
        import surely_not_installed
    if how == "exit":
        raise SystemExit("no GPU")
    raise KeyError(how)
"""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("index", "IndexError: list index out of range, in {}, line 6: return [1, 2][width]"),
        ("type", "TypeError: unsupported operand type(s) for +: 'int' and 'str', in {}, line 13"),
        ("value", "ValueError: width must be even, in {}, line 15: raise ValueError"),
        ("beside", "ZeroDivisionError: division by zero, in beside.py, line 2: return 1 / 0"),
        (
            "library",
            "TypeError: expected str, bytes or os.PathLike object, not int, in {}, line 20",
        ),
        ("import", "ModuleNotFoundError: No module named 'surely_not_installed', in {}, line 22"),
        ("exit", "SystemExit: no GPU, in {}, line 24: raise SystemExit"),
        ("other", "KeyError: 'other', in {}, line 25: raise KeyError(how)"),
    ],
)
@pytest.mark.parametrize("kind", ["model", "loss", "data set"])
def test_an_error_in_a_users_function_names_it_and_its_line(
    kind, how, words, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    file = tmp_path / "own_net.py"
    file.write_text(OWN)
    (tmp_path / "beside.py").write_text("def layers(shape):\n    return 1 / 0\n")
    ref = f"{file}:build"
    function = refs.resolve(kind, ref, {})
    message = (
        f"The {kind} {ref!r} cannot be made: build(image_shape=(64, 64, 1), how={how!r}) raised "
        f"{words.format('own_net.py')}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        refs.call(kind, function, {"how": how}, ref=ref, image_shape=(64, 64, 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def build(:\n", "SyntaxError: invalid syntax, in broken_net.py, line 1: def build(:"),
        ("\nx = width\n", "NameError: name 'width' is not defined, in broken_net.py, line 2: x = "),
        # A script that reads its command line.
        ("import sys\nsys.exit(3)\n", "SystemExit: 3, in broken_net.py, line 2: sys.exit(3)"),
        ("import surely_not_installed\n", "No module named 'surely_not_installed', in broken_net"),
    ],
)
@pytest.mark.parametrize("as_module", [False, True])
def test_a_users_file_that_cannot_be_loaded_names_its_line(
    text, words, as_module, tmp_path, monkeypatch
):
    (tmp_path / "broken_net.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    ref = "broken_net:build" if as_module else f"{tmp_path}/broken_net.py:build"
    with pytest.raises(ValueError, match=re.escape(words)):
        refs.resolve("model", ref, {})


def test_errors_with_a_meaning_stay_what_they_are(tmp_path):
    class ResourceExhaustedError(Exception):
        pass

    ref = f"{tmp_path}/own.py:build"
    for kind, error in (
        ("model", MemoryError("full")),
        ("model", ResourceExhaustedError("OOM")),
        ("model", WriteError(tmp_path, OSError(28, "full"))),
        ("model", KeyboardInterrupt()),
        ("backend", ConnectionError("a process is gone")),
    ):

        def fail(error=error):
            raise error

        with pytest.raises(type(error)):
            refs.call(kind, fail, {}, ref=ref)
