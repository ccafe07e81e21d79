"""Options of functions and classes, in the types that they declare, or that defaults have."""

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from tfunet.config.typed_values import convert

# Where the options of each kind of function stand in a configuration.
KEYS = {"loss": "loss_options", "data set": "data_options", "optimizer": "optimizer_options"}
# Options of Keras that have no default of their type, or may be of another type than it.
KERAS: Mapping[str, Any] = {
    **dict.fromkeys(("save_freq", "update_freq", "verbose"), float | str),
    # A number, a text, or the first and the last batch.
    "profile_batch": Any,
    # What all optimizers have.
    **dict.fromkeys(("weight_decay", "clipnorm", "clipvalue", "global_clipnorm"), float | None),
    **dict.fromkeys(("ema_overwrite_frequency", "gradient_accumulation_steps"), int | None),
    **dict.fromkeys(("loss_scale_factor", "rms_rate"), float | None),
}
# None switches them off, which TOML cannot write: false does so, too.
OFF = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "ema_overwrite_frequency")


def check_types(kind: str, name: str, function: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option of a function of tfunet or Keras that is of another type.

    Functions of users may take more than they say. Messages name the `kind` and `name`.
    """
    kinds = kinds_of_options(function)
    for option, value in options.items():
        if option not in kinds or (value is False and option in OFF):
            continue
        label = f"{KEYS[kind]}.{option}" if kind in KEYS else f"{option} of the {kind} {name!r}"
        with contextlib.suppress(TypeError):  # A type that msgspec cannot tell from others.
            convert(label, kinds[option], value)


def kinds_of_options(function: Any) -> dict[str, Any]:
    """Return the types of the options of a function or class of tfunet's or Keras's."""
    root = (getattr(function, "__module__", None) or "").partition(".")[0]
    if root == "keras":
        parameters = inspect.signature(function).parameters.values()
        known = {value.name: _of_default(value.name, value.default) for value in parameters}
        return {name: kind for name, kind in known.items() if kind is not Any}
    if root != "tfunet":
        return {}
    # What a class does not name itself, it passes on to those before it.
    owners = reversed(function.__mro__) if inspect.isclass(function) else (function,)
    makers = (vars(each).get("__init__") if inspect.isclass(each) else each for each in owners)
    kinds: dict[str, Any] = {}
    for made in filter(inspect.isfunction, makers):
        hints = get_type_hints(made)
        for name, value in inspect.signature(made).parameters.items():
            if value.kind is not inspect.Parameter.VAR_KEYWORD and name in hints:
                kinds[name] = hints[name]
    return kinds


def _of_default(name: str, default: Any) -> Any:
    """Return the type that a default of Keras's speaks for; Any for one that does not tell."""
    if name in KERAS:
        return KERAS[name]
    if isinstance(default, bool):
        return bool | int | None
    if isinstance(default, int | float):
        return float
    return str | None if isinstance(default, str) else Any
