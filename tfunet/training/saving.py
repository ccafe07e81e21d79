"""How a run keeps its model: proved before the first step, since many steps are lost after."""

import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfunet.files.atomic import PARTIAL
from tfunet.inside.of_fit import saving_through_file
from tfunet.inside.of_keras import all_layers
from tfunet.inside.replacing import replacing
from tfunet.record import MODEL, WEIGHTS, RunFolder

# Models and layers of these packages are known to be saved whole.
PROVED = ("keras", "tfunet")
# Keras puts the file of a model together in memory, which then has the weights up to three times.
MOST_IN_MEMORY = 2**28


def file_of(model: keras.Model, folder: RunFolder) -> str:
    """Return the name of the file in which a run keeps its model; called by the chief.

    A model that cannot be described, such as one of the user's own class without `get_config`, is
    kept as weights. For classes of the user's own it is proved that all weights come back: they
    are saved, changed, loaded and compared.

    Raises ValueError for a model whose weights would be lost.
    """
    if any(type(part).__module__.split(".")[0] not in PROVED for part in all_layers(model)):
        _prove(model, folder)
    try:
        json.dumps(keras.saving.serialize_keras_object(model))
    except Exception:
        return WEIGHTS
    return MODEL


def save(model: keras.Model, folder: RunFolder, name: str) -> None:
    """Write the model, or its weights, into the run's folder; without the state of its optimizer.

    The checkpoint has that state, and in stages a process has only a part of it.
    """
    with folder.replacing(name) as path, replacing(model, optimizer=None):
        if name == MODEL:
            with saving_through_file(MOST_IN_MEMORY, PARTIAL):
                model.save(path)
        else:
            model.save_weights(path)


def _prove(model: keras.Model, folder: RunFolder) -> None:
    variables = model.weights  # Without the states of random numbers, which predict nothing.
    values = [keras.ops.convert_to_numpy(variable.value) for variable in variables]
    trial = f"trial-{WEIGHTS}"
    save(model, folder, trial)
    path = folder.path / trial
    try:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(_another(value))
        with replacing(model, optimizer=None):
            model.load_weights(path)
        lost = _differing(variables, values)
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"The weights of the model were saved, and cannot be loaded again: {error} Keep each "
            "layer as an attribute of the model, or in a list."
        ) from error
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        path.unlink()
    if lost:
        raise ValueError(
            f"{len(lost)} of the model's {len(variables)} weights would be lost, since Keras does "
            f"not save them: {', '.join(lost[:5])}. Keep each layer as an attribute of the model, "
            "or in a list."
        )


def _another(value: np.ndarray) -> np.ndarray:
    return ~value if value.dtype == bool else (value + 1).astype(value.dtype)


def _differing(variables: Sequence[Any], values: Sequence[np.ndarray]) -> list[str]:
    return [
        variable.path
        for variable, value in zip(variables, values, strict=True)
        if not np.array_equal(keras.ops.convert_to_numpy(variable.value), value, equal_nan=False)
    ]
