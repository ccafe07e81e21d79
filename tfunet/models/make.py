"""Makes the model that a configuration names: ours, the user's function, or a .keras file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfunet.config.refs import call, resolve
from tfunet.models import MODELS


def make_model(
    name: str, *, image_shape: tuple[int, ...], num_classes: int, options: Mapping[str, Any]
) -> keras.Model:
    """Return the model, built.

    Args:
        name: A name in MODELS, 'package.module:build', 'file.py:build' or a path to a .keras
            file, which is loaded in Keras's safe mode (no code of the file's own runs).
        image_shape: (*spatial, channels).
        num_classes: Labels of the mask, with background.
        options: Keyword arguments of the builder.
    """
    if name.endswith(".keras"):
        return _load(Path(name), options)
    build = resolve("model", name, MODELS)
    model = call(
        "model", build, options, ref=name, image_shape=image_shape, num_classes=num_classes
    )
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"The model {name!r} returned {type(model).__name__}; it must return a keras.Model."
        )
    if not model.built:
        model.build((None, *image_shape))
    return model


def _load(path: Path, options: Mapping[str, Any]) -> keras.Model:
    if options:
        raise ValueError(
            f"A saved model has no options; {path} came with model_options {sorted(options)}."
        )
    if not path.is_file():
        raise ValueError(f"The model file {str(path)!r} does not exist.")
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(
            f"The model file {str(path)!r} cannot be loaded: {error}. A model with layers of your "
            "own needs 'file.py:build' instead, where the layers are defined."
        ) from error
