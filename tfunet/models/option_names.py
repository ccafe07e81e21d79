"""The options of our models, with defaults, read from their source: importing it takes Keras."""

import ast
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfunet.config.option_types import types_in_source
from tfunet.config.refs import check_option
from tfunet.models import MODELS

# Where a model passes on the options that it does not name itself.
PASSED_ON = {
    **dict.fromkeys(("ronneberger2d", "cicek3d", "nnunet2d", "nnunet3d"), MODELS["unet"]),
    **dict.fromkeys(("summit_5_2", "summit_5_5", "summit_6_2", "summit_7_2"), MODELS["unet"]),
    "isensee_3dunetcnn": MODELS["isensee"],
    **dict.fromkeys(("cosmoflow2018", "cosmoflow2020"), "tfunet.models.cosmoflow:assemble"),
}
NOT_OPTIONS = ("image_shape", "num_classes")


def option_names(model: str) -> tuple[str, ...]:
    """Return the options of a model in MODELS."""
    places = [MODELS[model], *([PASSED_ON[model]] if model in PASSED_ON else [])]
    names = dict.fromkeys(name for place in places for name in _keywords(place))
    return tuple(name for name in names if name not in NOT_OPTIONS)


def option_defaults(model: str) -> dict[str, Any]:
    """Return the options that the builder of a model in MODELS names itself, with defaults."""
    return {
        name: value for name, value in _keywords(MODELS[model]).items() if name not in NOT_OPTIONS
    }


def option_types(model: str) -> dict[str, str]:
    """Return the options of a model in MODELS, with their types as annotations."""
    places = [*([PASSED_ON[model]] if model in PASSED_ON else []), MODELS[model]]
    return {name: type_ for place in places for name, type_ in types_in_source(place).items()}


def check_option_names(model: str, options: Iterable[str]) -> None:
    """Raise ValueError for an option that a model in MODELS does not have."""
    known = option_names(model)
    for option in options:
        check_option("model", model, option, known)


@functools.cache
def _keywords(place: str) -> dict[str, Any]:
    """Return the arguments that a function takes by name only, with their defaults or None.

    The function is named as "package.module:function".
    """
    module, _, function = place.partition(":")
    source = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return {
        argument.arg: None if default is None else ast.literal_eval(default)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == function
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    }
