"""Settings of a run under dotted keys, one key a value: "model_options.filters"."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from tfunet.config.run import RunConfig

KEYS = tuple(one.name for one in fields(RunConfig))
# Tables of a configuration whose entries a study may vary one by one: "model_options.filters".
OPTIONS = tuple(name for name in KEYS if name.endswith("_options") or name == "augmentation")


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted keys put into their tables."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        option, _, entry = key.partition(".")
        if entry:
            values[option] = {**values.get(option, {}), entry: value}
        elif isinstance(value, dict):
            values[option] = {**values.get(option, {}), **value}
        else:
            values[key] = value
    return values


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the entries of their tables under dotted keys."""
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if key in OPTIONS and isinstance(value, Mapping):
            settings.update({f"{key}.{entry}": one for entry, one in value.items()})
        else:
            settings[key] = value
    return settings


def defaults() -> dict[str, Any]:
    """Return the settings of a run for which nothing was given."""
    return {one.name: one.default for one in fields(RunConfig) if one.default is not MISSING}


def describe(settings: Mapping[str, Any]) -> str:
    """Return settings in one line: "backend=horovod num_replicas=2"."""
    return " ".join(f"{key}={show(value)}" for key, value in settings.items())


def show(value: Any) -> str:
    """Return a setting's value as a short text."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return "x".join(show(one) for one in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
