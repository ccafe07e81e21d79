"""Makes the Keras callbacks that a configuration names."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tfunet.config.refs import call, near_match, resolve

# They write files, so that only the chief may have them.
WRITERS = ("CSVLogger", "TensorBoard", "ModelCheckpoint")


def make(
    tables: Sequence[Mapping[str, Any]], *, is_chief: bool, folder: Path
) -> list[keras.callbacks.Callback]:
    """Return this process's callbacks.

    Args:
        tables: Each has `name` ('package.module:Class' or a name in keras.callbacks), keyword
            arguments, and optionally `chief_only`, for one that writes files. "{folder}" in a
            text argument stands for the run's folder.
        is_chief: Whether this process writes files.
        folder: The run's folder.
    """
    made = []
    for table in tables:
        options = {key: value for key, value in table.items() if key not in ("name", "chief_only")}
        for key, value in options.items():
            if isinstance(value, str):
                options[key] = value.replace("{folder}", str(folder))
        kind = _class(table)
        if is_chief or not table.get("chief_only", kind.__name__ in WRITERS):
            made.append(call("callback", kind, options))
    return made


def state(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the plain numbers and texts that a callback holds, to be kept in a checkpoint."""
    plain = {}
    for key, value in vars(callback).items():
        value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
        if isinstance(value, bool | int | float | str) or value is None:
            plain[key] = value
    return plain


def _class(table: Mapping[str, Any]) -> Any:
    name = table.get("name")
    if not isinstance(name, str):
        raise ValueError(f"A callback needs a name, got {dict(table)}.")
    if ":" in name:
        return resolve("callback", name, {})
    if name == "BackupAndRestore":
        raise ValueError(
            "A run resumes by itself when it is started again; leave BackupAndRestore out."
        )
    known = [one for one in vars(keras.callbacks) if one[0].isupper()]
    if name not in known:
        raise ValueError(
            f"Unknown callback {name!r}.{near_match(name, known)} Known: {', '.join(known)}; or "
            "write 'package.module:Class'."
        )
    return getattr(keras.callbacks, name)
