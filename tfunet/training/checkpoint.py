"""Checkpoints: the chief writes one file and shares it by a sum over processes."""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.backend import Backend, Topology
from tfunet.files.arrays import each_array, load_arrays, shapes_in
from tfunet.files.typed import DAMAGED, RecordError, check_known_fields
from tfunet.record import RunFolder
from tfunet.training.held import Held

NAME = "checkpoint.npz"


def save(
    folder: RunFolder,
    values: Iterable[np.ndarray],
    arrays: dict[str, np.ndarray],
    facts: dict[str, Any],
) -> None:
    """Write the values of variables, `arrays` and the JSON of `facts` as one file, atomically.

    One value after the other is taken and written, so that they need not fit into memory together.
    """
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with folder.replacing(NAME) as path, zipfile.ZipFile(path, "w") as archive:

        def write(name: str, array: np.ndarray) -> None:
            # As numpy.savez does, which wants all of them at once.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)

        for name, array in {"facts": text, **arrays}.items():
            write(name, array)
        for index, value in enumerate(values):
            write(f"variable_{index:05d}", value)


def restore(
    folder: RunFolder,
    backend: Backend,
    topology: Topology,
    held: Held,
    kinds: Mapping[str, Any],
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Give every process the chief's checkpoint; called by all processes together.

    Returns (arrays, facts), or None if there is no checkpoint. Only the chief gets the arrays.
    `kinds` are the types of the facts. Raises ValueError if the checkpoint belongs to another
    model, or is damaged.
    """
    arrays: dict[str, np.ndarray] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    path = folder.path / NAME
    if topology.is_chief and exists(folder):
        with _explaining(path):
            shapes = shapes_in(path)
            others = {name for name in shapes if not name.startswith("variable_")}
            arrays = load_arrays(path, names=others)
            # A metric or a callback may hold NaN or infinity.
            check_known_fields(json.loads(arrays["facts"].tobytes()), kinds)
    names = sorted(shapes.keys() - arrays.keys())
    text = share_bytes(backend, topology, arrays.pop("facts", np.zeros(0, np.uint8)))
    if not text:
        return None
    if topology.is_chief and [shapes[name] for name in names] != held.shapes:
        raise ValueError(
            f"{path} holds the weights of another model or optimizer. Choose "
            "another folder, or delete that file to start anew."
        )
    held.restore(_each(path, names))
    return arrays, json.loads(text)


def _each(path: Path, names: Sequence[str]) -> Iterator[np.ndarray]:
    if names:
        with _explaining(path):
            yield from each_array(path, names)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, *DAMAGED) as error:
        why = f"{error or type(error).__name__}. Delete it to start anew, or choose another folder"
        raise RecordError(path, why) from error


def exists(folder: RunFolder) -> bool:
    """Whether the folder holds a run that can go on."""
    return folder.has_checkpoint()


def share_bytes(backend: Backend, topology: Topology, content: np.ndarray) -> bytes:
    """Return the chief's `content`, uint8, in every process; called by all together."""
    size = int(backend.sum(np.array([float(content.size)]))[0])
    wide = np.zeros(size)
    if topology.is_chief:
        wide[:] = content
    return backend.sum(wide).astype(np.uint8).tobytes() if size else b""
