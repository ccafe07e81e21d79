"""What a reference names is checked before it is called."""

import sys

import pytest

from tfunet.config import refs


class Thing:
    pass


OWN = """
import functools, os, subprocess
from os import system
from typing import Any, Protocol
import numpy
import test_kinds
from test_kinds import Thing

class Ours(Thing): pass
class Other: pass
class Shaped(Protocol):
    size: int
class Builder:
    def __call__(self, **options): return Thing()
def build(**options): return Thing()
def told() -> Thing: return Thing()
def late() -> "test_kinds.Thing": return Thing()
def wide() -> object: return Thing()
def anything() -> Any: return Thing()
def shaped() -> Shaped: return Thing()
def wrong() -> Other: return Other()
partly = functools.partial(build, width=2)
cached = functools.cache(build)
builder = Builder()
number = 3
shell = functools.partial(system, "true")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_kinds", sys.modules[__name__])
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: refs.resolve("thing", f"{tmp_path}/own.py:{name}", {}, Thing)


@pytest.mark.parametrize(
    "name",
    [
        *("Ours", "build", "told", "late", "wide", "anything", "shaped", "partly", "cached"),
        *("builder", "Thing"),
    ],
)
def test_functions_and_classes_of_the_kind_are_taken(own, name):
    assert isinstance(own(name)(), Thing)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("system", "'posix' is part of Python"),
        ("shell", "'posix' is part of Python"),
        ("os.system", "'posix' is part of Python"),
        ("subprocess.run", "'subprocess' is part of Python"),
        ("functools.partial", "'functools' is part of Python"),
        ("numpy.fromfile", "not a function or a class"),
        ("number", "not a function or a class|part of Python"),
        ("Other", r"must be a subclass of test_kinds\.Thing"),
        ("wrong", r"must return a test_kinds\.Thing, and it returns"),
        ("numpy.savetxt", "it does not say so"),
    ],
)
def test_what_is_of_another_kind_is_refused(own, name, message):
    with pytest.raises(ValueError, match=message):
        own(name)


@pytest.mark.parametrize(
    "ref",
    [
        *("os:system", "subprocess:run", "builtins:eval", "shutil:rmtree", "pathlib:Path.unlink"),
        *("importlib:import_module", "runpy:run_path", "code:interact"),
        "antigravity:webbrowser.open",
    ],
)
def test_pythons_own_modules_are_not_even_imported(ref):
    before = set(sys.modules)
    with pytest.raises(ValueError, match="is part of Python"):
        refs.resolve("data set", ref, {}, Thing)
    assert not {"antigravity", "code"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    "ref", ["numpy:savetxt", "tfunet.files.atomic:write_atomic", "tfunet.config.refs:reference"]
)
def test_functions_of_packages_that_are_of_no_kind_are_refused(ref):
    with pytest.raises(ValueError, match="must return a"):
        refs.resolve("data set", ref, {}, Thing)


def test_file_of_the_users_may_be_called_as_a_module_of_pythons(tmp_path):
    (tmp_path / "code.py").write_text("def build(): return 1\n")
    assert refs.resolve("thing", f"{tmp_path}/code.py:build", {}, Thing)() == 1


def test_data_set_that_is_none_is_refused_before_it_is_called(tmp_path):
    from tfunet.data.source import open_source

    marker = tmp_path / "marker"
    with pytest.raises(ValueError, match="'os' is part of Python"):
        open_source("os:system", {"command": f"touch {marker}"})
    assert not marker.exists()


def test_function_that_lacks_what_it_is_given_says_what_is_called_with_what(tmp_path):
    (tmp_path / "own.py").write_text(
        "def unet(pretrained_weights=None, input_size=(256, 256, 1)): pass\n"
        "def passes_on(**options): return unet(**options)\n"
    )
    for name in ("unet", "passes_on"):
        function = refs.resolve("model", f"{tmp_path}/own.py:{name}", {})
        with pytest.raises(ValueError, match=r"is called as \w+\(image_shape=\.\.\., num_classes="):
            refs.call("model", function, {}, ref=f"own.py:{name}", image_shape=(1,), num_classes=2)
    with pytest.raises(ValueError, match=r"it takes \(pretrained_weights=None, input_size=\(256"):
        refs.call("model", refs.resolve("model", f"{tmp_path}/own.py:unet", {}), {}, image_shape=1)
