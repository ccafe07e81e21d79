"""What a section of the keys of a run is made of. Imports no TensorFlow."""

from dataclasses import dataclass, field
from typing import Any

from tfunet.config.typed_values import convert_fields

# Metadata of every key: whether an interrupted run may change it when it goes on. It may if the
# key does not change what is computed.
FIXED = {"may_change": False}
FREE = {"may_change": True}
# Metadata of the keys that tell apart the ways of training in a report.
IS_WAY = {"is_way": True}


def fixed(default: Any, **more: bool) -> Any:
    """Return the field of a key that an interrupted run keeps when it goes on."""
    return field(default=default, metadata=FIXED | more)


def free(default: Any, **more: bool) -> Any:
    """Return the field of a key that an interrupted run may change when it goes on."""
    return field(default=default, metadata=FREE | more)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Brings its values into their types, and runs the checks of all sections that it inherits."""

    def __post_init__(self) -> None:
        for name, value in convert_fields(type(self), vars(self)).items():
            self._set(name, value)
        for section in reversed(type(self).__mro__):
            check = vars(section).get("_check")
            if check is not None:
                check(self)

    def _at_least(self, bound: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name} must be at least {bound}, got {value}.")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
