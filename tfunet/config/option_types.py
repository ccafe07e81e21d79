"""Types of options, checked against a function's annotations, or its defaults where it has none."""

import ast
import inspect
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tfunet

# Where the options of each kind of function stand in a configuration.
KEYS = {"loss": "loss_options", "model": "model_options", "data set": "data_options"}
SINGLE = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
SEVERAL = {"int": "whole numbers", "float": "numbers", "bool": "true or false", "str": "texts"}
LISTS, TABLES = ("Sequence", "list", "tuple", "Collection"), ("Mapping", "dict")
# Options of Keras's callbacks whose default is a text, and which may be a number.
TEXT_OR_NUMBER = ("save_freq", "update_freq", "verbose")
# A number, a text, or the first and the last batch.
OF_MANY_TYPES = ("profile_batch",)


def check_option_types(
    kind: str, name: str, options: Mapping[str, Any], types: Mapping[str, str]
) -> None:
    """Raise ValueError for an option that is not of its type, which is written as an annotation.

    Messages name the `kind` and `name` of what has the options; for "", the option alone.
    """
    for option, value in options.items():
        if option not in types:
            continue
        annotation = ast.parse(types[option], mode="eval").body
        if _fits(annotation, value):
            continue
        where = f"{KEYS[kind]}.{option}" if kind in KEYS else option
        if kind not in KEYS and kind:
            where = f"{option} of the {kind} {name!r}"
        words = " or ".join(dict.fromkeys(_words(annotation)))
        # On a command line, "0.5,2.0" is a text.
        hint = ""
        is_list = "a list of" in words and "tables" not in words
        if isinstance(value, str) and is_list and "a text" not in words:
            example = '["a", "b"]' if "texts" in words else "[1, 2]"
            hint = f" Write a list in brackets: {example}, on a command line '{example}'."
        raise ValueError(f"{where} must be {words}, got {value!r:.80}.{hint}")


def types_of(function: Any) -> dict[str, str]:
    """Return the types of the options of a function or class of tfunet's or Keras's.

    Functions of users may take more than they say, and have none.
    """
    root = (getattr(function, "__module__", None) or "").partition(".")[0]
    if root not in ("tfunet", "keras"):
        return {}
    parameters = inspect.signature(function).parameters.values()
    if root == "keras":
        by_default = {value.name: of_default(value.name, value.default) for value in parameters}
        return {name: type_ for name, type_ in by_default.items() if type_}
    place = f"{function.__module__}:{function.__qualname__}"
    return types_in_source(place) if "<" not in place else {}


def types_in_source(place: str) -> dict[str, str]:
    """Return the types of the options of "tfunet.module:attribute", which is not imported."""
    module, _, attribute = place.partition(":")
    path = Path(tfunet.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = {
        node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    return _types(attribute, nodes)


def _types(attribute: str, nodes: Mapping[str, ast.ClassDef | ast.FunctionDef]) -> dict[str, str]:
    node = nodes.get(attribute)
    if isinstance(node, ast.ClassDef):
        # What a class does not name itself, it passes on.
        types: dict[str, str] = {}
        for base in node.bases:
            types |= _types(ast.unparse(base), nodes)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                types |= _annotations(method)
        return types
    return {} if node is None else _annotations(node)


def _annotations(function: ast.FunctionDef) -> dict[str, str]:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    return {
        argument.arg: ast.unparse(argument.annotation)
        for argument in arguments
        if argument.annotation is not None
    }


def of_default(name: str, default: Any) -> str:
    """Return the type that a default speaks for; "" for one that does not tell."""
    if isinstance(default, bool):
        return "bool | int"
    if name in OF_MANY_TYPES:
        return ""
    if name in TEXT_OR_NUMBER:
        return "float | str"
    if isinstance(default, int | float):
        return "float"
    return "str | None" if isinstance(default, str) else ""


def _fits(annotation: ast.expr, value: Any) -> bool:
    if isinstance(annotation, ast.BinOp):
        return _fits(annotation.left, value) or _fits(annotation.right, value)
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return value is None
    if isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value)
        if outer in LISTS:
            inner = annotation.slice
            inner = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
            is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
            return is_list and all(_fits(inner, entry) for entry in value)
        if outer in TABLES and isinstance(annotation.slice, ast.Tuple):
            of_value = annotation.slice.elts[1]
            return isinstance(value, Mapping) and all(_fits(of_value, v) for v in value.values())
        return True
    return _is_one(ast.unparse(annotation), value)


def _is_one(name: str, value: Any) -> bool:
    if name == "bool":
        return isinstance(value, bool)
    if name == "str":
        return isinstance(value, str | os.PathLike)
    if name == "int":
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if name == "float":
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_number and not (isinstance(value, float) and math.isnan(value))
    return True  # Any, and types that are not spelt out.


def _words(annotation: ast.expr) -> list[str]:
    """Return in words what an annotation allows; None is what an option is by default."""
    if isinstance(annotation, ast.BinOp):
        return [*_words(annotation.left), *_words(annotation.right)]
    if isinstance(annotation, ast.Subscript):
        if ast.unparse(annotation.value) in TABLES:
            of_value = annotation.slice.elts[1] if isinstance(annotation.slice, ast.Tuple) else None
            words = [] if of_value is None else _words(of_value)
            return [f"a table, {{ key = {' or '.join(words) or 'value'} }}"]
        inner = annotation.slice
        inner = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
        if isinstance(inner, ast.Subscript):
            is_table = ast.unparse(inner.value) in TABLES
            return ["a list of tables" if is_table else "a list of lists"]
        entries = [
            SEVERAL[name]
            for name in map(str.strip, ast.unparse(inner).split("|"))
            if name in SEVERAL
        ]
        return [f"a list of {' or '.join(entries) or 'values'}"]
    name = ast.unparse(annotation)
    return [SINGLE[name]] if name in SINGLE else []
