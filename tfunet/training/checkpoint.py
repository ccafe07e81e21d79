"""Checkpoints: the chief writes one file and shares it by a sum over processes."""

import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfunet.backend import Backend, Topology
from tfunet.record import RunFolder
from tfunet.training.state import broadcast

NAME = "checkpoint.npz"


def save(
    folder: RunFolder,
    variables: Sequence[Any],
    arrays: dict[str, np.ndarray],
    facts: dict[str, Any],
) -> None:
    """Write the values of `variables`, `arrays` and the JSON of `facts` as one file, atomically."""
    values = {
        f"variable_{index:05d}": keras.ops.convert_to_numpy(variable.value)
        for index, variable in enumerate(variables)
    }
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with folder.replacing(NAME) as path, path.open("wb") as file:
        np.savez(file, facts=text, **arrays, **values)


def restore(
    folder: RunFolder, backend: Backend, topology: Topology, variables: Sequence[Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Give every process the chief's checkpoint; called by all processes together.

    Returns (arrays, facts), or None if there is no checkpoint. Only the chief gets the arrays.
    Raises ValueError if the checkpoint belongs to another model.
    """
    arrays: dict[str, np.ndarray] = {}
    values: list[np.ndarray] = []
    if topology.is_chief and exists(folder):
        with np.load(folder.path / NAME) as file:
            names = sorted(name for name in file.files if name.startswith("variable_"))
            values = [file[name] for name in names]
            arrays = {name: file[name] for name in file.files if name not in names}
    text = share_bytes(backend, topology, arrays.pop("facts", np.zeros(0, np.uint8)))
    if not text:
        return None
    if topology.is_chief:
        shapes = [tuple(variable.shape) for variable in variables]
        if [value.shape for value in values] != shapes:
            raise ValueError(
                f"{folder.path / NAME} holds the weights of another model or optimizer. Choose "
                "another folder, or delete that file to start anew."
            )
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    broadcast(backend, topology, variables)
    return arrays, json.loads(text)


def exists(folder: RunFolder) -> bool:
    """Whether the folder holds a run that can go on."""
    return (folder.path / NAME).is_file()


def share_bytes(backend: Backend, topology: Topology, content: np.ndarray) -> bytes:
    """Return the chief's `content`, uint8, in every process; called by all together."""
    size = int(backend.sum(np.array([float(content.size)]))[0])
    wide = np.zeros(size)
    if topology.is_chief:
        wide[:] = content
    return backend.sum(wide).astype(np.uint8).tobytes() if size else b""
