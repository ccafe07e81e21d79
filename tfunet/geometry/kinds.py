"""Whose code a layer or model runs: Keras's, which is known here, or the user's own."""

from typing import Any

# What a class may define without computing anything else than its base.
HARMLESS = frozenset(
    (
        *("__init__", "get_config", "from_config", "__module__", "__doc__", "__qualname__"),
        *("__dict__", "__weakref__", "__annotations__", "__abstractmethods__", "_abc_impl"),
        *("__static_attributes__", "__firstlineno__", "__orig_bases__", "__parameters__"),
    )
)


def kind_of(op: Any) -> type:
    """Return the class of Keras whose computation a layer or operation does; `object` if it may do
    another: of a class of the user's that overrides something, or with a method set on it."""
    own = type(op)
    base = next((kind for kind in own.__mro__ if _is_keras(kind.__module__)), object)
    for kind in own.__mro__[: own.__mro__.index(base)]:
        for name, value in vars(kind).items():
            if name not in HARMLESS and (hasattr(base, name) or isinstance(value, property)):
                return object
    is_replaced = any(callable(getattr(base, name, None)) and is_own(op, name) for name in vars(op))
    return object if is_replaced else base


def is_own(owner: Any, name: str) -> bool:
    """Whether a method of a layer or model is the user's own: of its class, or set on it."""
    kind = next((kind for kind in type(owner).__mro__ if name in vars(kind)), object)
    if not _is_keras(kind.__module__):
        return True
    if name not in vars(owner):
        return False
    # Keras wraps methods of each layer, and tfunet replaces some for a while.
    given = vars(owner)[name]
    module = getattr(getattr(given, "func", given), "__module__", None) or ""
    return not _is_keras(module) and module.partition(".")[0] != "tfunet"


def is_older(owner: Any, name: str, other: str) -> bool:
    """Whether a method was written before another, which a class below its own overrides."""

    def age(name: str) -> int:
        kinds = (vars(kind) for kind in type(owner).__mro__)
        return next(at for at, names in enumerate((vars(owner), *kinds)) if name in names)

    return age(name) > age(other)


def _is_keras(module: str) -> bool:
    return module.partition(".")[0] == "keras"
