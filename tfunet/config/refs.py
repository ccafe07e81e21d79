"""Turns a string ("name", "package.module:attribute" or "file.py:attribute") into an object."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tfunet.config.keys import KEYS
from tfunet.config.kinds import check_kind, refuse_standard
from tfunet.config.option_types import check_types, kinds_of_options
from tfunet.config.own_code import call_text, explain
from tfunet.config.words import check_reference, near_match


def not_an_option(option: str) -> str:
    """Return what to do with a key of the run that stands among options; "" for another word."""
    if option not in KEYS:
        return ""
    return (
        f" {option} is a key of the run. Put it above the first [heading]: in TOML, a key belongs "
        "to the heading before it."
    )


# What is named to the table of its options.
OPTION_TABLES = {
    "model": "model_options",
    "data set": "data_options",
    "loss": "loss_options",
    "optimizer": "optimizer_options",
    "backend": "backend_options",
}


def of_another(kind: str) -> str:
    """Return what to do where options are those of another model, loss and so on."""
    table = OPTION_TABLES.get(kind)
    if table is None:
        return ""
    return (
        f" If a file gives it for another {kind}: --{table} '{{}}' on the command line leaves out "
        f"the options of the file, and --{table}.NAME after it adds yours; or change [{table}]."
    )


def check_option(kind: str, name: str, option: str, allowed: Collection[str]) -> None:
    """Raise ValueError, with the near match, for an option that is not among the allowed ones."""
    if option not in allowed:
        advice = not_an_option(option) or near_match(option, allowed)
        raise ValueError(
            f"The {kind} {name!r} has no option {option!r}.{advice} "
            f"Its options: {', '.join(allowed) or 'none'}.{'' if advice else of_another(kind)}"
        )


def unknown(kind: str, name: str, known: Collection[str]) -> ValueError:
    """Return the error for a name that neither we nor Keras know."""
    return ValueError(
        f"Unknown {kind} {name!r}.{near_match(name, known)} Known: {', '.join(known)}; or write "
        "'package.module:Class'."
    )


def expand(kind: str, ref: str, table: Mapping[str, str]) -> str:
    """Return the "package.module:attribute" that `ref` stands for. Imports nothing.

    Raises ValueError for a name that is neither in `table` nor of that form. The message names
    the `kind` of object: "model", "backend".
    """
    if ref in table:
        return table[ref]
    if ":" in ref:
        check_reference(kind, ref)
        return ref
    raise ValueError(
        f"Unknown {kind} {ref!r}.{near_match(ref, table)} Known: {', '.join(sorted(table))}. "
        "To use your own, write 'package.module:attribute' or 'file.py:attribute'."
    )


def resolve(
    kind: str,
    ref: str,
    table: Mapping[str, str],
    base: type | tuple[type, ...] | None = None,
    *,
    has_arguments: bool = False,
) -> Any:
    """Return the function or class that `ref` names, importing its module.

    Raises ValueError if it cannot be of its kind; see `tfunet.config.kinds.check_kind`; and if
    the user's own module cannot be imported, for whatever reason.
    """
    target = expand(kind, ref, table)
    module_name, _, attribute = target.rpartition(":")
    if not module_name.endswith(".py"):
        refuse_standard(kind, ref, module_name)
    module = _load_file(kind, module_name) if module_name.endswith(".py") else None
    if module is None:
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is not None and f"{module_name}.".startswith(f"{missing}."):
                raise ValueError(
                    f"The module {module_name!r} of the {kind} {ref!r} cannot be found ({error}). "
                    "Install it, or start tfunet in the folder that holds it."
                ) from error
            if ref not in table:
                what = f"The module {module_name!r} of the {kind} {ref!r} cannot be imported:"
                explain(error, what, _file_of(module_name))
            raise
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            known = [name for name in vars(value) if not name.startswith("_")]
            raise ValueError(
                f"The {kind} {ref!r} does not exist: {module_name!r} has no {part!r}."
                f"{near_match(part, known)}"
            ) from error
        except (Exception, SystemExit) as error:  # A module may have a __getattr__ of its own.
            if ref not in table:
                explain(error, f"The {kind} {ref!r} cannot be imported:", _file_of(module.__name__))
            raise
    if ref not in table:
        check_kind(kind, ref, value, base, has_arguments=has_arguments)
    return value


def reference(function: Any) -> str:
    """Return the string by which another process can import `function`.

    Raises ValueError if it cannot be imported: a lambda, a function inside a function, or a
    function that was typed into a notebook.
    """
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    if not name or "<" in name:
        raise ValueError(
            f"{function!r} cannot be imported by another process. Define it at the top level of "
            "a file and pass it, or pass 'file.py:function'."
        )
    if module != "__main__":
        return f"{module}:{name}"
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise ValueError(
            f"{name} is defined in a notebook or an interactive session, from which the "
            "processes of a run cannot import it. Put it into a file and pass 'file.py:function'."
        )
    return f"{Path(path).resolve()}:{name}"


def _load_file(kind: str, path: str) -> Any:
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"The file {path!r} of the {kind} does not exist.")
    name = f"tfunet_user_{file.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"The file {path!r} of the {kind} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    # Registered before it runs, so that Keras can serialise the classes that it defines.
    sys.modules[name] = module
    # It may import files beside it, as a script does. Last, so that none hides a library.
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            explain(error, f"The file {path!r} of the {kind} cannot be loaded:", str(file))
        raise
    return module


def _file_of(module: str) -> str:
    """Return the file of a module, imported or not; "" where it has none. Runs no code of it.

    It is that of the package if this could not be imported.
    """
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None) or ""
    package = module.rpartition(".")[0]
    if package and package not in sys.modules:  # To find the module would import it again.
        return _file_of(package)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    return (spec and spec.origin) or ""


def call(
    kind: str, function: Any, options: Mapping[str, Any], *, ref: str = "", **fixed: Any
) -> Any:
    """Call `function(**fixed, **options)`.

    Raises ValueError for unknown and missing options, for options of a wrong type where the
    function is of tfunet or Keras, for a function that does not take what is
    `fixed`, and for whatever error a function of the user's own raises. Errors of a backend have
    meanings, and stay. The message names the `kind` of object and the `ref` that the user gave.
    """
    name = ref or getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # Some built-in classes have no signature.
        return function(**fixed, **options)
    named = {key: value for key, value in parameters.items() if value.kind in _NAMED}
    called = ", ".join([*(f"{key}=..." for key in fixed), "**options"])
    explained = (
        f"The {kind} {name!r} is called as {name.rpartition(':')[2]}({called}), and it takes "
        f"({', '.join(map(str, parameters.values()))}). Name a function that takes "
        f"{' and '.join(fixed)} by name, and calls this one."
    )
    if not any(value.kind is inspect.Parameter.VAR_KEYWORD for value in parameters.values()):
        if any(key not in named for key in fixed):
            raise ValueError(explained)
        for option in options:
            if option not in named or option in fixed:
                allowed = [key for key in named if key not in fixed and key != "self"]
                check_option(kind, name, option, allowed)
    missing = [
        key
        for key, value in named.items()
        if value.default is inspect.Parameter.empty and key not in fixed and key not in options
    ]
    if missing:
        raise ValueError(f"The {kind} {name!r} needs the option {', '.join(missing)}.")
    check_types(kind, name, function, options)
    try:
        return function(**fixed, **options)
    except (Exception, SystemExit) as error:
        # A function that takes any keyword may call another that does not know it.
        pattern = r"(?:unexpected|values for) keyword argument '(\w+)'"
        keyword = re.search(pattern, str(error)) if isinstance(error, TypeError) else None
        if keyword is not None and keyword[1] in fixed:
            raise ValueError(f"{explained} ({error})") from error
        if keyword is not None and keyword[1] in options:
            known = [*(kinds_of_options(function) or named)]
            check_option(kind, name, keyword[1], [each for each in known if each not in fixed])
        if (getattr(function, "__module__", None) or "").startswith("keras."):
            what = f"The {kind} {name!r} cannot be made: {call_text(name, options)} raised"
            try:
                explain(error, what, "")
            except ValueError as explained:
                raise ValueError(f"{explained}{of_another(kind)}") from error
        if ":" in ref and kind != "backend":
            call_words = call_text(name.rpartition(":")[2], {**fixed, **options})
            what = f"The {kind} {name!r} cannot be made: {call_words} raised"
            explain(error, what, _file_of(getattr(function, "__module__", None) or ""))
        raise


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
