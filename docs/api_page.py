"""Writes docs/api.md from the docstrings of the public functions and classes, without importing
them: python docs/api_page.py
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docstring_parser import parse

PAGE = Path(__file__).parent / "api.md"
ROOT = PAGE.parent.parent
HEAD = """# Python API

`docs/api_page.py` writes this page from the code. What the command line does can be done from \
Python, too; the keys of a run are in [configuration.md](configuration.md). Names that are not \
here may change without notice.
"""
# Heading to (what to import, where it is defined).
PUBLIC = {
    "Comparing and training": {
        "tfunet.train": "tfunet/bench/one_run.py",
        "tfunet.bench.one_run.TrainedRun": "tfunet/bench/one_run.py",
        "tfunet.compare": "tfunet/bench/compare_backends.py",
        "tfunet.RunConfig": "tfunet/config/run.py",
        "tfunet.bench.study.study_file.study_from_dict": "tfunet/bench/study/study_file.py",
        "tfunet.bench.launch.local_sweep.run_sweep": "tfunet/bench/launch/local_sweep.py",
        "tfunet.bench.report.sweep_report.write_report": "tfunet/bench/report/sweep_report.py",
        "tfunet.bench.records.sweep_record.read_sweep": "tfunet/bench/records/sweep_record.py",
    },
    "Your own fit script": {
        "tfunet.distribute": "tfunet/fit/distribute.py",
        "tfunet.fit.distribute.Distribution": "tfunet/fit/distribute.py",
    },
    "Models": {
        "tfunet.models.unet.build": "tfunet/models/unet.py",
        "tfunet.models.unet_plan.UnetOptions": "tfunet/models/unet_plan.py",
        "tfunet.models.isensee.build": "tfunet/models/isensee.py",
        "tfunet.models.isensee_plan.IsenseeOptions": "tfunet/models/isensee_plan.py",
        "tfunet.models.describe.describe": "tfunet/models/describe.py",
    },
    "Memory": {"tfunet.swap.LargeModelSupport": "tfunet/swap/callback.py"},
    "Data": {
        "tfunet.data.source.DataSource": "tfunet/data/source.py",
        "tfunet.data.source.open_source": "tfunet/data/source.py",
    },
    "Prediction": {
        "tfunet.predict": "tfunet/bench/one_run.py",
        "tfunet.evaluate": "tfunet/bench/one_run.py",
        "tfunet.prediction.options.Options": "tfunet/prediction/options.py",
    },
    "Backends": {"tfunet.backend.Backend": "tfunet/backend.py"},
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for heading, names in PUBLIC.items():
        parts.append(f"## {heading}\n")
        for name, file in names.items():
            parts += _described(name, _definition(name.rpartition(".")[2], file))
    return "\n".join(parts)


def _definition(name: str, file: str) -> ast.ClassDef | ast.FunctionDef:
    tree = ast.parse((ROOT / file).read_text())
    (found,) = (
        node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name
    )
    return found


def _described(name: str, node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yield the parts of the page on a function or class."""
    yield f"### {name}\n"
    function = node if isinstance(node, ast.FunctionDef) else _method(node, "__init__")
    if function is not None:
        yield f"```python\n{_signature(name.rpartition('.')[2], function)}\n```\n"
    yield from _text(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        rows = [
            f"| `{_signature(inner.name, inner, short=True)}` | {_cell(ast.get_docstring(inner))} |"
            for inner in node.body
            if isinstance(inner, FUNCTIONS) and inner.name[0] != "_" and ast.get_docstring(inner)
        ]
        if rows:
            yield "\n".join(["| method, property | |", "|---|---|", *rows]) + "\n"


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next(
        (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == name), None
    )


def _signature(name: str, node: ast.FunctionDef, *, short: bool = False) -> str:
    decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        return name
    arguments = list(_arguments(node.args, with_types=not short))
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and name[0].islower() else ""
    flat = f"{name}({', '.join(arguments)})"
    if short or len(flat + returns) <= 90:
        return flat if short else flat + returns
    return "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f"){returns}"])


def _arguments(given: ast.arguments, *, with_types: bool) -> Iterator[str]:
    def shown(argument: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        typed = with_types and argument.annotation is not None
        text = stars + (ast.unparse(argument) if typed else argument.arg)
        equals = " = " if typed else "="
        return text if default is None else f"{text}{equals}{ast.unparse(default)}"

    plain = [one for one in given.args if one.arg not in ("self", "cls")]
    missing = [None] * (len(plain) - len(given.defaults))
    for argument, default in zip(plain, [*missing, *given.defaults], strict=True):
        yield shown(argument, default)
    if given.vararg:
        yield shown(given.vararg, None, "*")
    elif given.kwonlyargs:
        yield "*"
    for argument, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield shown(argument, value)
    if given.kwarg:
        yield shown(given.kwarg, None, "**")


def _text(docstring: str) -> Iterator[str]:
    """Yield what a docstring says, and a table of its arguments."""
    text = parse(docstring)
    between = "\n\n" if text.blank_after_short_description else "\n"
    told = between.join(filter(None, (text.short_description, text.long_description)))
    yield f"{_escaped(told)}\n"
    if text.params:
        rows = [f"| `{one.arg_name}` | {_cell(one.description)} |" for one in text.params]
        yield "\n".join(["| argument | |", "|---|---|", *rows]) + "\n"
    if text.returns and text.returns.description:
        yield f"Returns {_joined(text.returns.description)}\n"
    if text.raises:
        for one in text.raises:
            yield f"Raises {one.type_name or ''}: {_joined(one.description)}\n"


def _joined(text: str | None) -> str:
    return _escaped(" ".join((text or "").split()))


def _escaped(text: str) -> str:
    """Return a text in which stars are stars, outside of code."""
    parts = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("`") else part.replace("*", "\\*") for part in parts)


def _cell(text: str | None) -> str:
    return _joined(text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
