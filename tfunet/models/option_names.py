"""The names of the options of our models, read from their source: importing it takes Keras."""

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

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


def check_option_names(model: str, options: Iterable[str]) -> None:
    """Raise ValueError for an option that a model in MODELS does not have."""
    known = option_names(model)
    for option in options:
        check_option("model", model, option, known)


@functools.cache
def _keywords(place: str) -> tuple[str, ...]:
    """Return the arguments that a function "package.module:function" takes by name only."""
    module, _, function = place.partition(":")
    source = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    return tuple(
        argument.arg
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == function
        for argument in node.args.kwonlyargs
    )
