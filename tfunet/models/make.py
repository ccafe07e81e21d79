"""Makes the model that a configuration names: ours, the user's function, or a .keras file."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfunet.config.refs import call, resolve
from tfunet.inside.of_keras import all_layers
from tfunet.models import MODELS
from tfunet.models.files import check_no_options, is_file
from tfunet.models.keras_errors import cause_line


def make_model(
    name: str,
    *,
    image_shape: tuple[int, ...],
    num_classes: int,
    options: Mapping[str, Any],
    is_free: bool = False,
) -> keras.Model:
    """Return the model, built.

    Args:
        name: A name in MODELS, 'package.module:build', 'file.py:build' or a path to a .keras
            file, which is loaded in Keras's safe mode (no code of the file's own runs).
        image_shape: (*spatial, channels).
        num_classes: Labels of the mask, with background.
        options: Keyword arguments of the builder.
        is_free: Whether a builder of the user's own need not take shape and number of classes.
    """
    if is_file(name):
        return _load(Path(name), options)
    build = resolve("model", name, MODELS, keras.Model, has_arguments=True)
    fixed: dict[str, Any] = {"image_shape": image_shape, "num_classes": num_classes}
    if is_free:
        taken = inspect.signature(build).parameters
        fixed = {key: value for key, value in fixed.items() if key in taken and key not in options}
    model = call("model", build, options, ref=name, **fixed)
    if not isinstance(model, keras.Model):
        kind = type(model)
        raise ValueError(
            f"The model {name!r} returned {kind.__module__}.{kind.__qualname__}; it must return a "
            "keras.Model of Keras 3 (import keras; not tf_keras, nor tf.keras with "
            "TF_USE_LEGACY_KERAS)."
        )
    _give_weights(model, name, image_shape)
    return model


def _give_weights(model: keras.Model, name: str, image_shape: tuple[int, ...]) -> None:
    """Call the model on shapes alone where a layer has no weights, as those of subclasses."""
    if all(layer.built for layer in all_layers(model)):
        return
    images = keras.KerasTensor((None, *image_shape))
    try:
        model(images)
    except Exception as error:
        raise ValueError(
            f"The model {name!r} got its weights by a call on images of shape {images.shape}, and "
            f"that failed: {cause_line(error).rstrip('.')}. Check its call, or call it on "
            "images in the function that builds it."
        ) from error


def _load(path: Path, options: Mapping[str, Any]) -> keras.Model:
    check_no_options(str(path), options)
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(
            f"The model file {str(path)!r} cannot be loaded: {error}. A model with layers of your "
            "own needs 'file.py:build' instead, where the layers are defined."
        ) from error
