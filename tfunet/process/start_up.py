"""Makes the imports of TensorFlow and Keras short, which every process of a run begins with."""

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Keras imports these for drawings that no run makes.
DRAWING = {"matplotlib": ("pyplot", "patches"), "IPython": ()}


@contextlib.contextmanager
def short_start() -> Iterator[None]:
    """Make imports in the block shorter, and the steps that are traced later.

    What only draws is imported when it is used. What the block makes lasts as long as the process,
    half a million objects, so the garbage collector leaves it alone from now on.
    """
    with uncollected():
        try:
            with imported_later(DRAWING):
                yield
        finally:
            gc.freeze()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from looking through all objects of TensorFlow in the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def imported_later(packages: dict[str, tuple[str, ...]]) -> Iterator[None]:
    """Have packages, and these modules of theirs, imported in the block only when they are used."""
    stand_ins: dict[str, ModuleType] = {}
    for package, modules in packages.items():
        if package in sys.modules or find_spec(package) is None:
            continue
        stand_ins[package] = _Later(package)
        for module in modules:
            stand_ins[f"{package}.{module}"] = _Later(f"{package}.{module}")
            setattr(stand_ins[package], module, stand_ins[f"{package}.{module}"])
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)


class _Later(ModuleType):
    """A module that is imported when one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's import system asks.
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
