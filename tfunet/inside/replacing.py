"""Attributes of other packages' objects, replaced while a block runs."""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

NONE = object()


@contextlib.contextmanager
def replacing(place: Any, **values: Any) -> Iterator[None]:
    """Give an object, a class or a module other attributes in the block.

    Keras, which keeps track of the layers and variables that an object is given, sees nothing.
    """
    put = setattr if isinstance(place, (type, ModuleType)) else object.__setattr__
    take = delattr if isinstance(place, type) else object.__delattr__
    before = {name: vars(place).get(name, NONE) for name in values}
    for name, value in values.items():
        put(place, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is NONE:
                take(place, name)
            else:
                put(place, name, value)
