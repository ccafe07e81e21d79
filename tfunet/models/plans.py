"""What each of our models comes to with given options, or why they are refused. Imports no Keras.

The functions that build models call this, too: what is refused early is what they would refuse.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tfunet.models import cosmoflow_plan, isensee_plan, unet_plan
from tfunet.models.options import Shape, check_shape, typed_options
from tfunet.models.preset_settings import base_of, settings_of

# The dataclass that declares the options of a model, and the function that plans it.
PLANS: Mapping[str, tuple[type, Callable[..., Any]]] = {
    "unet": (unet_plan.UnetOptions, unet_plan.plan),
    "isensee": (isensee_plan.IsenseeOptions, isensee_plan.plan),
    "cosmoflow": (cosmoflow_plan.CosmoflowOptions, cosmoflow_plan.plan),
    "cosmoflow2018": (cosmoflow_plan.PublishedOptions, cosmoflow_plan.plan_2018),
    "cosmoflow2020": (cosmoflow_plan.PublishedOptions, cosmoflow_plan.plan_2020),
}


def check_options(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model in MODELS in their types.

    Raises ValueError for an option that it does not have, or of another type.
    """
    return typed_options(model, PLANS[base_of(model)][0], options)


def plan_model(
    model: str, options: Mapping[str, Any], *, image_shape: Shape, num_classes: int
) -> Any:
    """Return the plan of a model in MODELS for images of this shape, (*spatial, channels).

    Raises ValueError for options that the model does not have, that are of another type, or that do
    not fit together or the images. Only the layers of an encoder, and of the file with its weights,
    need Keras.
    """
    check_shape(image_shape, num_classes)
    settings = settings_of(model, image_shape, check_options(model, options))
    declared, plan = PLANS[base_of(model)]
    return plan(declared(**settings), image_shape, num_classes)
