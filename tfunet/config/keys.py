"""Settings of a run under dotted keys, one key a value: "model_options.filters"."""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from tfunet.config.run import RunConfig
from tfunet.config.words import near_match

KEYS = tuple(key.name for key in fields(RunConfig))
# What only the file of a study has.
STUDY = ("base", "grid", "case", "samples", "search", "repeats", "skip")
# What other tools call a key.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "base_lr", "initial_lr"), "learning_rate"),
    **dict.fromkeys(("batch_size", "bs", "batch"), "global_batch"),
    **dict.fromkeys(("gpus", "num_gpus", "devices", "world_size"), "num_replicas"),
    **dict.fromkeys(("num_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("max_steps", "num_steps", "iterations"), "steps"),
    **dict.fromkeys(("patch_size", "crop_size"), "patch"),
    **dict.fromkeys(("amp", "mixed_precision"), "precision"),
}


# What earlier versions had.
GONE = {
    "swap_compression": "swapped tensors keep their bits",
    "hopeless": "a sweep runs all repeats of a cell",
}


def unknown_key(key: str, where: str = "") -> str:
    """Return what to say of a key that no run has, `where` it stands."""
    if key in GONE:
        return f"{key}{where} was taken out of tfunet: {GONE[key]}. Delete it."
    known = OTHER_NAMES.get(key)
    advice = f" Did you mean {known!r}?" if known else near_match(key, KEYS)
    return f"Unknown key {key!r}{where}.{advice or ' tfunet train --help has all keys of a run.'}"


# Tables of a configuration whose entries a study may vary one by one: "model_options.filters".
OPTIONS = tuple(key.name for key in fields(RunConfig) if key.type == dict[str, Any])
# What an interrupted run may change when it goes on.
MAY_CHANGE = tuple(key.name for key in fields(RunConfig) if key.metadata["may_change"])
# What tells apart the ways of training that a report compares.
WAY = tuple(key.name for key in fields(RunConfig) if key.metadata.get("is_way"))
# Lists that are sizes, or parts of sizes.
SIZES = ("patch", "split", "tiling")


# Keys that say the same in other ways: one that is given replaces those of a file.
ALTERNATIVES = (
    ("replica_batch", "global_batch"),
    ("epochs", "steps"),
    ("validation_groups", "validation_share", "folds"),
)


def beside(file: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file, under dotted keys, that settings with `own` keys leave to it.

    Args:
        file: The keys of the file; tables may be nested.
        own: Dotted keys.
    """
    replaced = {*own, *(key for keys in ALTERNATIVES if {*own} & {*keys} for key in keys)}
    return {
        key: value
        for key, value in flat(file).items()
        if key not in replaced and key.partition(".")[0] not in replaced
    }


def keys_by_heading() -> dict[str, tuple[str, ...]]:
    """Return the keys of a run under the headings of docs/configuration.md, in their order."""
    headings = {}
    for section in reversed(RunConfig.__mro__):
        if own := vars(section).get("__annotations__"):
            heading = (section.__doc__ or "").partition("\n")[0].rstrip(".")
            headings[heading] = tuple(key for key in KEYS if key in own)
    return headings


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
            settings.update({f"{key}.{name}": entry for name, entry in value.items()})
        else:
            settings[key] = value
    return settings


def defaults() -> dict[str, Any]:
    """Return the settings of a run for which nothing was given."""
    return {key.name: key.default for key in fields(RunConfig) if key.default is not MISSING}


def describe(settings: Mapping[str, Any]) -> str:
    """Return settings in one line: "backend=horovod num_replicas=2"."""
    return " ".join(f"{key}={show_setting(key, value)}" for key, value in settings.items())


def show_setting(key: str, value: Any) -> str:
    """Return the value of a key as a short text: "64x64" for a size, "[0.5, 2]" for other lists."""
    if not isinstance(value, (list, tuple)) or not value or key.rpartition(".")[2] in SIZES:
        return show(value)
    return f"[{', '.join(show_setting(key, entry) for entry in value)}]"


def show(value: Any) -> str:
    """Return a setting's value as a short text without spaces, as names of trials have it."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return "x".join(map(show, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
