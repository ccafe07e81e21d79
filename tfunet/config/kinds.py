"""Checks that what a reference names is what it should be, before it is called."""

import functools
import importlib.util
import inspect
import sys
import sysconfig
from pathlib import Path
from typing import Any

# Where Python and installed packages are.
LIBRARY = sysconfig.get_path("stdlib")
INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
OURS = "tfunet"


def refuse_standard(kind: str, ref: str, module: str) -> None:
    """Raise ValueError for a module that is part of Python: os, subprocess and the like."""
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names and _is_pythons(root):
        raise ValueError(
            f"{ref!r} can be no {kind}: {root!r} is part of Python. Name your own "
            "'package.module:attribute' or 'file.py:attribute'."
        )


def check_kind(
    kind: str,
    ref: str,
    value: Any,
    base: type | tuple[type, ...] | None,
    *,
    has_arguments: bool,
) -> None:
    """Raise ValueError for an object that cannot be of its kind.

    It must be a function or a class that is written in Python. What is declared must fit: the
    class, or the type that a function returns.

    Args:
        kind: In words: "model", "data set".
        ref: What the user wrote.
        value: The object.
        base: The class that it must be, or return, or several of which the first is told; None if
            there is none.
        has_arguments: Whether it is called with arguments of ours, which tell it from others.
            Otherwise a function of an installed package must be of one that uses tfunet.
    """
    bases = base if isinstance(base, tuple) else (base,) if base is not None else ()
    function = _unwrapped(value)
    refuse_standard(kind, ref, _module_of(function))
    if inspect.isclass(function):
        if bases and not issubclass(function, bases):
            raise ValueError(
                f"The {kind} {ref!r} is the class {_full_name(function)}; it must be a subclass of "
                f"{_full_name(bases[0])}, or a function that returns one."
            )
        return
    if not (inspect.isfunction(function) or inspect.ismethod(function) or _is_callable(function)):
        raise ValueError(
            f"The {kind} {ref!r} is a {type(function).__name__}, not a function or a class."
        )
    if not bases:
        return
    returned = getattr(function, "__annotations__", {}).get("return")
    # Any is a class since Python 3.11; neither it nor a protocol says what is returned.
    if returned is Any or getattr(returned, "_is_protocol", False):
        returned = None
    if any(_declares(returned, one) for one in bases):
        return
    root = _module_of(function).partition(".")[0]
    is_installed = not has_arguments and _is_installed(root) and not _uses_us(root)
    if inspect.isclass(returned) or is_installed:
        says = f"returns {_full_name(returned)}" if inspect.isclass(returned) else "does not say so"
        raise ValueError(
            f"The {kind} {ref!r} must return a {_full_name(bases[0])}, and it {says}. Name a "
            "function that does, or write one in your own file."
        )


def _unwrapped(value: Any) -> Any:
    while isinstance(value, functools.partial):
        value = value.func
    return inspect.unwrap(value) if callable(value) else value


def _module_of(value: Any) -> str:
    return getattr(value, "__module__", None) or type(value).__module__


def _full_name(kind: type) -> str:
    exported = vars(kind).get("_api_export_path")  # Keras's public names.
    if exported:
        return str(exported if isinstance(exported, str) else exported[0])
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_callable(value: Any) -> bool:
    """Whether an object of a class with a __call__ that is written in Python."""
    return callable(value) and inspect.isfunction(type(value).__call__)


def _declares(returned: Any, base: type) -> bool:
    if isinstance(returned, str):  # Not evaluated, with `from __future__ import annotations`.
        return returned.rpartition(".")[2] == base.__name__
    # A wider class says nothing against it: a keras.Model is a keras.layers.Layer.
    return inspect.isclass(returned) and (issubclass(returned, base) or issubclass(base, returned))


def _is_pythons(root: str) -> bool:
    """Whether a module of this name is Python's own, not one of the user's with the same name."""
    loaded = sys.modules.get(root)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(root)
    origin = None if spec is None else spec.origin
    if origin in (None, "built-in", "frozen"):
        return True
    return Path(origin).is_relative_to(LIBRARY) and not _is_below(origin, INSTALLED)


def _is_installed(root: str) -> bool:
    origin = getattr(sys.modules.get(root), "__file__", None)
    return root == OURS or (origin is not None and _is_below(origin, INSTALLED))


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _uses_us(root: str) -> bool:
    """Whether a loaded package has anything of tfunet's."""
    return root != OURS and any(
        _module_of(value).partition(".")[0] == OURS or getattr(value, "__name__", "") == OURS
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == root
        for value in list(vars(module).values())
        if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value)
    )
