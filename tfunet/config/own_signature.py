"""What a program of a user's own takes, read from its source: to run it may need TensorFlow."""

import ast
import re
from collections.abc import Collection
from pathlib import Path

from tfunet.config.own_code import explain
from tfunet.config.refs import check_option
from tfunet.config.words import near_match
from tfunet.files.regular import read_bytes

# What may bind names that the source does not show.
HIDDEN = re.compile(
    r"\b(?:globals|locals|vars|exec|setattr|__getattr__|__dict__|sys\.modules|match|import\s*\*)"
)


def check_source(kind: str, ref: str, options: Collection[str], fixed: Collection[str]) -> None:
    """Raise ValueError for a 'file.py:NAME' that does not exist, or has not all of the options.

    Also for a file that is not Python. What the source does not show is left to the call.

    Args:
        kind: In words: "model", "data set".
        ref: What the user wrote.
        options: The keyword arguments that the user gives.
        fixed: The keyword arguments that tfunet gives.
    """
    file, is_in_file, name = ref.rpartition(".py:")
    if not is_in_file or not name.isidentifier():
        return
    path = Path(f"{file}.py")
    try:
        source = read_bytes(path)  # Python finds out the encoding.
        tree = ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        explain(error, f"The file {str(path)!r} of the {kind} cannot be loaded:", str(path))
        raise
    except (OSError, RecursionError, MemoryError):
        return  # Loading it says what is wrong.
    text = source.decode(errors="replace")
    if HIDDEN.search(text):
        return
    bound = _bound(tree)
    if name not in bound:
        known = sorted(known for known in bound if not known.startswith("_"))
        raise ValueError(
            f"The {kind} {ref!r} does not exist: {f'{file}.py'!r} has no {name!r}."
            f"{near_match(name, known)}"
        )
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if len(functions) != 1 or bound.count(name) > 1 or functions[0].decorator_list:
        return
    arguments = functions[0].args
    if arguments.kwarg is None:
        named = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
        if set(fixed) <= set(named):
            allowed = [argument for argument in named if argument not in fixed]
            for option in options:
                check_option(kind, ref, option, allowed)


def _bound(tree: ast.Module) -> list[str]:
    """Return the names that a module gives to something, anywhere in it."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    return names
