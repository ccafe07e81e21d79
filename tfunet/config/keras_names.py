"""Names of Keras's optimizers, losses and callbacks, checked before Keras is loaded."""

import ast
import functools
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.case_metrics import PLAIN, TOLERANT, keras_metrics
from tfunet.config.option_types import check_option_types, of_default
from tfunet.config.refs import check_option
from tfunet.config.words import near_match


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


def unknown_metric(name: str, known: Collection[str]) -> ValueError:
    """Return the error for a metric that neither we nor Keras know."""
    return ValueError(
        f"Unknown metric {name!r}.{near_match(name, (*PLAIN, TOLERANT, *known))} Name a metric of "
        "whole cases, such as 'dice' or 'hd95', or one of keras.metrics."
    )


def check_keras_names(
    optimizer: str,
    loss: str,
    callbacks: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    own_losses: Collection[str],
) -> None:
    """Raise ValueError for a name that Keras does not have; where it does, it may refuse it later.

    Also for an option that a callback of Keras does not have.

    Args:
        optimizer: As in a configuration, like the others.
        loss: In the same way.
        callbacks: In the same way.
        metrics: In the same way.
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
        types = {} if ":" in name else options_of_callback(name)
        options = {key: value for key, value in table.items() if key not in ("name", "chief_only")}
        for option in options if types else ():
            check_option("callback", name, option, types)
        given = {option: type_ for option, type_ in types.items() if type_}
        check_option_types("callback", name, options, given)
    forms = _metric_forms()
    for name in keras_metrics(metrics):
        if forms and _form(name) not in forms:
            raise unknown_metric(name, classes("metrics"))


def _form(name: str) -> str:
    """Return what is common to the names that Keras takes for one metric."""
    return name.lower().replace("_", "")


@functools.cache
def _metric_forms() -> frozenset[str]:
    """Return the forms of all metrics that Keras knows by a name, and of some other words."""
    tree = _source("keras", "src", "metrics", "__init__.py")
    names = [alias.name for node in _imports(tree) for alias in node.names]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    names += [text for text in texts if isinstance(text, str)]
    return frozenset(map(_form, (*names, "acc"))) if names else frozenset()


@functools.cache
def options_of_callback(name: str) -> dict[str, str]:
    """Return the options of a callback of Keras and their types, as `check_option_types` has them.

    "" for a type that the default does not tell; nothing for one that takes any option.
    """
    for node in _imports(_source("keras", "callbacks", "__init__.py")):
        if node.module and name in [alias.asname or alias.name for alias in node.names]:
            *folders, file = node.module.split(".")
            for inner in _source(*folders, f"{file}.py").body:
                if isinstance(inner, ast.ClassDef) and inner.name == name:
                    return _options(inner)
    return {}


def _options(node: ast.ClassDef) -> dict[str, str]:
    (*_, init) = (None, *(inner for inner in node.body if getattr(inner, "name", "") == "__init__"))
    if not isinstance(init, ast.FunctionDef) or init.args.kwarg is not None:
        return {}
    names = [argument.arg for argument in init.args.args[1:]]
    defaults = [
        default.value for default in init.args.defaults if isinstance(default, ast.Constant)
    ]
    if len(defaults) != len(init.args.defaults) or init.args.kwonlyargs:
        return dict.fromkeys([*names, *(argument.arg for argument in init.args.kwonlyargs)], "")
    required = names[: len(names) - len(defaults)]
    by_default = zip(names[len(required) :], defaults, strict=True)
    return dict.fromkeys(required, "") | {
        name: of_default(name, value) for name, value in by_default
    }


def _imports(tree: ast.Module) -> list[ast.ImportFrom]:
    return [node for node in tree.body if isinstance(node, ast.ImportFrom)]


def _source(package: str, *parts: str) -> ast.Module:
    """Return a file of a package, which is not imported; an empty one if it is missing."""
    spec = importlib.util.find_spec(package)
    folders = None if spec is None else spec.submodule_search_locations
    try:
        return ast.parse(Path((folders or [""])[0], *parts).read_text(encoding="utf-8"))
    except OSError:
        return ast.Module(body=[], type_ignores=[])


@functools.cache
def classes(part: str) -> tuple[str, ...]:
    """Return the names of the classes in `keras.PART`, from its source; none if that is missing."""
    tree = _source("keras", part, "__init__.py")
    aliases = [alias for node in _imports(tree) for alias in node.names]
    return tuple(name for alias in aliases if (name := alias.asname or alias.name)[0].isupper())
