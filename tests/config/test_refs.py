import re
import sys

import pytest

from tfunet.config import refs
from tfunet.config.own_code import explain
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
    if how == "syntax":
        raise SyntaxError
    if how == "eval":
        eval("1 +")
    if how == "assert":
        assert not how
    if how == "words":
        raise Wordless
    raise KeyError(how)


class Wordless(Exception):
    def __str__(self):
        return None
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
        ("syntax", "SyntaxError, in {}, line 26: raise SyntaxError"),
        ("eval", 'SyntaxError: invalid syntax, in {}, line 28: eval("1 +")'),
        ("assert", "AssertionError, in {}, line 30: assert not how"),
        ("words", "Wordless, in {}, line 32: raise Wordless"),
        ("other", "KeyError: 'other', in {}, line 33: raise KeyError(how)"),
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'raise RuntimeError("boom")\n',
            "RuntimeError: boom, in __init__.py, line 2: raise Runtime",
        ),
        ("raise SystemExit(0)\n", "SystemExit: 0, in __init__.py, line 2: raise SystemExit(0)"),
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all', in __init__.py, line 2"),
    ],
)
@pytest.mark.parametrize("module", ["mod", "inner.mod"])
def test_a_package_that_cannot_be_imported_is_imported_once(
    text, words, module, tmp_path, monkeypatch
):
    name = f"pk_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / name
    package = tmp_path.joinpath(name, *module.split(".")).parent
    package.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    counting = f"open({str(tmp_path / 'count')!r}, 'a').write('x'); "
    (package / "__init__.py").write_text(f"{counting}\n{text}")
    (package / "mod.py").write_text("def make(): pass\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    ref = f"{name}.{module}:make"
    message = f"The module '{name}.{module}' of the data set {ref!r} cannot be imported: "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}.*{re.escape(words)}"):
        refs.resolve("data set", ref, {})
    assert (tmp_path / "count").read_text() == "x"


def test_a_module_that_fails_to_give_a_name_says_so(tmp_path):
    (tmp_path / "lazy_net.py").write_text("def __getattr__(name):\n    return {}[name]\n")
    ref = f"{tmp_path}/lazy_net.py:build"
    words = "cannot be imported: KeyError: '.*', in lazy_net.py, line 2"
    with pytest.raises(ValueError, match=words):
        refs.resolve("model", ref, {})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SyntaxError(3), "SyntaxError: 3."),
        (SyntaxError("bad", (7, "x", None, None)), "SyntaxError: bad."),
        (SyntaxError("bad", ("no such file", 2, 1, "")), "SyntaxError: bad."),
        (SyntaxError("bad", (__file__, None, None, None)), "SyntaxError: bad, in test_refs.py."),
        (AssertionError(), "AssertionError."),
        (ValueError("\x1b[1;31mred\x1b[0m"), "ValueError: red."),
    ],
)
def test_whatever_an_error_holds_is_put_into_words(error, words):
    with pytest.raises(ValueError, match=f"^It raised {re.escape(words)}$"):
        explain(error, "It raised", "")


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


@pytest.mark.parametrize("kind", refs.OPTION_TABLES)
def test_an_option_of_another_thing_says_how_to_leave_it_out(kind):
    def build(*, width=8):
        return width

    table = refs.OPTION_TABLES[kind]
    with pytest.raises(ValueError, match=rf"Its options: width\. .*--{table} '\{{\}}' on the comm"):
        refs.call(kind, build, {"filters": 16})
    with pytest.raises(ValueError, match=r"Did you mean 'width'\? Its options: width\.$"):
        refs.call(kind, build, {"widht": 16})
