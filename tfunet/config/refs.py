"""Turns a string ("name", "package.module:attribute" or "file.py:attribute") into an object."""

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def near_match(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest known word, or an empty string."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_known(kind: str, given: str, known: Iterable[str]) -> None:
    """Raise ValueError, with the near match, for a word that is not among the known ones."""
    known = list(known)
    if given not in known:
        raise ValueError(
            f"Unknown {kind} {given!r}.{near_match(given, known)} Known: {', '.join(known)}."
        )


def expand(kind: str, ref: str, table: Mapping[str, str]) -> str:
    """Return the "package.module:attribute" that `ref` stands for; nothing is imported.

    Raises ValueError for a name that is neither in `table` nor of that form; `kind` ("model",
    "backend") words the message.
    """
    if ref in table:
        return table[ref]
    if ":" in ref:
        return ref
    raise ValueError(
        f"Unknown {kind} {ref!r}.{near_match(ref, table)} Known: {', '.join(sorted(table))}. "
        "To use your own, write 'package.module:attribute' or 'file.py:attribute'."
    )


def resolve(kind: str, ref: str, table: Mapping[str, str]) -> Any:
    """Return the object that `ref` names, importing its module."""
    target = expand(kind, ref, table)
    module_name, _, attribute = target.rpartition(":")
    module = _load_file(kind, module_name) if module_name.endswith(".py") else None
    if module is None:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ValueError(
                f"The {kind} {ref!r} names module {module_name!r}, which cannot be found "
                f"({error}). Install it, or run from the folder that holds it."
            ) from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            known = [name for name in vars(value) if not name.startswith("_")]
            raise ValueError(
                f"The {kind} {ref!r}: {module_name!r} has no {part!r}.{near_match(part, known)}"
            )
        value = getattr(value, part)
    return value


def reference(function: Any) -> str:
    """Return the string by which another process finds `function` again.

    Raises ValueError for one that no other process can import: a lambda, a function inside a
    function, or one typed into a notebook.
    """
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    if not name or "<" in name:
        raise ValueError(
            f"{function!r} cannot be found by another process. Put it at the top of a file and "
            "pass it, or pass 'file.py:function'."
        )
    if module != "__main__":
        return f"{module}:{name}"
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise ValueError(
            f"{name} is defined in a notebook or an interactive session, where the processes of "
            "a run cannot find it. Put it into a file and pass 'file.py:function'."
        )
    return f"{Path(path).resolve()}:{name}"


def _load_file(kind: str, path: str) -> Any:
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"The {kind} names the file {path!r}, which does not exist.")
    name = f"tfunet_user_{file.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"The {kind} names {path!r}, which is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, so that classes defined in it can be serialised by Keras.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def call(
    kind: str, function: Any, options: Mapping[str, Any], *, ref: str = "", **fixed: Any
) -> Any:
    """Call `function(**fixed, **options)`; unknown or missing options are a clear ValueError.

    `kind` and `ref`, the name by which the user asked for it, word the message.
    """
    name = ref or getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # Some built-in classes have no signature.
        return function(**fixed, **options)
    names = [one.name for one in parameters.values() if one.kind in _NAMED]
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        for option in options:
            if option not in names or option in fixed:
                allowed = [one for one in names if one not in fixed and one != "self"]
                raise ValueError(
                    f"The {kind} {name!r} has no option {option!r}.{near_match(option, allowed)} "
                    f"Its options: {', '.join(allowed) or 'none'}."
                )
    missing = [
        one.name
        for one in parameters.values()
        if one.kind in _NAMED
        and one.default is inspect.Parameter.empty
        and one.name not in fixed
        and one.name not in options
    ]
    if missing:
        raise ValueError(f"The {kind} {name!r} needs the option {', '.join(missing)}.")
    try:
        return function(**fixed, **options)
    except TypeError as error:
        # It takes any keyword, and passed one on to something that does not, or has it already.
        found = re.search(r"(?:unexpected|values for) keyword argument '(\w+)'", str(error))
        if found is None or found[1] not in options:
            raise
        raise ValueError(
            f"The {kind} {name!r} has no option {found[1]!r}.{near_match(found[1], names)}"
        ) from error


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
