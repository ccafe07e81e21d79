"""Names of Keras's optimizers, losses and callbacks, checked before Keras is loaded."""

import ast
import functools
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.refs import near_match


def unknown(kind: str, name: str, known: Collection[str]) -> ValueError:
    """Return the error for a name that neither we nor Keras know."""
    return ValueError(
        f"Unknown {kind} {name!r}.{near_match(name, known)} Known: {', '.join(known)}; or write "
        "'package.module:Class'."
    )


def name_of_callback(table: Mapping[str, Any]) -> str:
    """Return the name of a callback; ValueError for a table that has none, or one of no use."""
    name = table.get("name")
    if not isinstance(name, str):
        raise ValueError(
            f'A callback needs a name, such as {{ name = "EarlyStopping" }}, got {dict(table)}.'
        )
    if name == "BackupAndRestore":
        raise ValueError(
            "A run resumes by itself when it is started again. Leave BackupAndRestore out."
        )
    return name


def check_keras_names(
    optimizer: str, loss: str, callbacks: Sequence[Mapping[str, Any]], own_losses: Collection[str]
) -> None:
    """Raise ValueError for a name that Keras does not have; where it does, it may refuse it later.

    Args:
        optimizer: As in a configuration, like the others.
        loss: In the same way.
        callbacks: In the same way.
        own_losses: Names of our losses.
    """
    lower = sorted(name.lower() for name in classes("optimizers"))
    if ":" not in optimizer and lower and optimizer.lower() not in lower:
        raise unknown("optimizer", optimizer, lower)
    losses = classes("losses")
    if ":" not in loss and losses and loss not in (*own_losses, *losses):
        raise unknown("loss", loss, (*own_losses, *losses))
    known = classes("callbacks")
    for table in callbacks:
        name = name_of_callback(table)
        if ":" not in name and known and name not in known:
            raise unknown("callback", name, known)


@functools.cache
def classes(part: str) -> tuple[str, ...]:
    """Return the names of the classes in `keras.PART`, from its source; none if that is missing."""
    spec = importlib.util.find_spec("keras")
    folders = None if spec is None else spec.submodule_search_locations
    if not folders:
        return ()
    try:
        text = Path(folders[0], part, "__init__.py").read_text(encoding="utf-8")
    except OSError:
        return ()
    aliases = [
        alias
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    return tuple(name for alias in aliases if (name := alias.asname or alias.name)[0].isupper())
