"""Checks the options of our models before Keras is imported, as their builders do."""

from collections.abc import Callable, Mapping
from typing import Any

from tfunet.models import cosmoflow_plan, isensee_plan, unet_plan
from tfunet.models.option_names import check_option_names, option_defaults
from tfunet.models.options import Shape
from tfunet.models.preset_settings import settings_of

COSMOFLOW = ("cosmoflow", "cosmoflow2018", "cosmoflow2020")
PLANS: Mapping[str, Callable[..., object]] = {
    "unet": unet_plan.plan,
    "isensee": isensee_plan.plan,
}


def check_options(
    model: str, options: Mapping[str, Any], *, image_shape: Shape, num_classes: int
) -> None:
    """Raise ValueError for options that the builder of a model in MODELS would refuse.

    Only the layers of an encoder, and of the file with its weights, need Keras.
    """
    check_option_names(model, options)
    given = {**option_defaults(model), **options}
    shape: dict[str, Any] = {"image_shape": image_shape, "num_classes": num_classes}
    if model in COSMOFLOW:
        stages, settings = cosmoflow_plan.plan(model, image_shape, given)
        cosmoflow_plan.check(stages, **shape, **settings)
        return
    base, settings = settings_of(model, image_shape, given)
    PLANS[base](**shape, **{**option_defaults(base), **settings})
