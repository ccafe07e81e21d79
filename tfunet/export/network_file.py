"""Writes a run's network as a SavedModel or in ONNX, and proves that the file predicts the same."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfunet import __version__
from tfunet.data.source import open_source
from tfunet.exit_codes import CheckFailedError
from tfunet.export.onnx_file import correct, frozen, unsupported_ops
from tfunet.files.atomic import write_atomic, writing
from tfunet.graph.traced import traced
from tfunet.inside.of_keras import all_layers
from tfunet.learning.outputs import Outputs
from tfunet.models.keras_errors import cause_line
from tfunet.prediction.inputs import find_images, parts_of
from tfunet.prediction.network import TrainedNetwork, load_network
from tfunet.prediction.prepare import preparation
from tfunet.record import RunFolder

FILES = {"savedmodel": "saved_model", "onnx": "model.onnx"}
FACTS = "network.json"
# A share of the largest logit. An instance normalisation of a volume sums 150,000 voxels in
# float32: on MRI, onnxruntime was 1.9e-3 and TensorFlow itself 5e-4 away from float64 (largest
# logit 3.4).
TOLERANCE = 1e-3
NUM_WINDOWS = 3
SECONDS = 600
# What runs Python code is in no file.
PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A network in a file.

    Args:
        path: The file; of a SavedModel the folder.
        names: The images on which it was compared with the network of the run.
        difference: Largest difference of a logit.
        bound: The largest that is accepted.
        element: "pixel" or "voxel".
        num_voxels: Voxels that were compared.
        num_other_labels: Voxels among them with another label.
    """

    path: Path
    names: tuple[str, ...]
    difference: float
    bound: float
    element: str
    num_voxels: int
    num_other_labels: int

    def summary(self) -> str:
        """Return what was proved."""
        return (
            f"{self.path}: run in a process of its own on {', '.join(self.names)}, it gives the "
            f"logits of the run to {self.difference:.1e} (at most {self.bound:.1e} is accepted); "
            f"{self.num_other_labels} of {self.num_voxels} {self.element}s have another label."
        )


def export_network(
    run: Path,
    file_format: str,
    out: Path,
    *,
    images: Sequence[str] = (),
    window: tuple[int, ...] | None = None,
    weights: str | None = None,
) -> Exported:
    """Write the network of a finished run, and compare the file with it on real images.

    Args:
        run: Folder of the run.
        file_format: One of FILES.
        out: Folder to write to.
        images: Images to compare on; by default validation cases of the run.
        window: Spatial shape of the input; by default the patch of the training.
        weights: A file of weights in the run's folder; by default those that it ended with.

    Raises ValueError for a network that cannot be exported, which names the layer, and
    CheckFailedError for a file that predicts something else.
    """
    if file_format == "onnx":
        _check_installed()
    network = load_network(RunFolder(run), weights)
    size = network.patch if window is None else window
    if len(size) != len(network.patch):
        raise ValueError(
            f"--window {','.join(map(str, size))} has {len(size)} sizes; this network takes "
            f"{len(network.patch)}."
        )
    model = network.model(size, "float32")
    _check_ops(model, (None, *size, network.channels))
    names, windows = _windows(network, RunFolder(run), images, size)
    expected = np.concatenate(
        [model(image[np.newaxis], training=False).numpy() for image in windows]
    )
    with _folder(out), tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as folder:
        path = Path(folder) / FILES[file_format]
        _write(model, file_format, path, windows.shape[1:])
        logits = _run_apart(file_format, path, windows, Path(folder))
        exported = _compared(out / path.name, names, network.outputs, expected, logits)
        _replace(path, exported.path)
    facts = _facts(network, file_format, size, exported, num_logits=expected.shape[-1])
    write_atomic(out / FACTS, json.dumps({"run": str(run), **facts}, indent=1) + "\n")
    return exported


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder; remove it again if it is left empty."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            with suppress(OSError):
                path.rmdir()


def _check_installed() -> None:
    missing = [
        name
        for name in ("onnx", "onnxruntime", "tf2onnx")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}: pip install 'tfunet[onnx]', or export "
            "--to savedmodel."
        )


def _windows(
    network: TrainedNetwork, folder: RunFolder, images: Sequence[str], size: tuple[int, ...]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return names of images, and the window in the middle of each, prepared as in training."""
    arrays = dict(_of_files(network, images) if images else _of_validation_cases(network, folder))
    for name, array in arrays.items():
        if array.ndim != len(size) + 1 or array.shape[-1] != network.channels:
            raise ValueError(
                f"{name}: an image of shape {array.shape}; the network was trained on "
                f"{len(size)}D images with {network.channels} channels."
            )
    return tuple(arrays), np.stack([_middle(array, size) for array in arrays.values()])


def _of_files(network: TrainedNetwork, images: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    prepare = preparation(network.preparation)
    for given in find_images(images, prepare.num_files)[:NUM_WINDOWS]:
        files = [Path(part) for part in parts_of(given)]
        network.check_files(files)
        image = prepare.open(files)
        whole = prepare.normalised(image, prepare.statistics(image))
        yield given, whole.read([0] * len(image.shape), list(image.shape))


def _of_validation_cases(
    network: TrainedNetwork, folder: RunFolder
) -> Iterator[tuple[str, np.ndarray]]:
    config = network.config
    folder.check_programs(config, ["data"])
    try:
        source = open_source(config.data, config.data_options, skip_bad=config.skips_bad)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"The data of this run cannot be opened: {error} Name images to compare on with "
            "--images."
        ) from error
    cases = (folder.read_split() or {}).get("validation", [])
    index_of = {case_id: index for index, case_id in enumerate(source.case_ids)}
    chosen = [case_id for case_id in cases if case_id in index_of][:NUM_WINDOWS]
    if not chosen:
        raise ValueError(
            f"The data set {source.name!r} has none of the run's validation cases any more. Name "
            "images to compare on with --images."
        )
    for case_id in chosen:
        yield case_id, source.read_case(index_of[case_id])[0]


def _middle(image: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return the middle of an image, padded with 0 where it is smaller."""
    lengths = [min(whole, wanted) for whole, wanted in zip(image.shape, size, strict=False)]
    first = [(whole - length) // 2 for whole, length in zip(image.shape, lengths, strict=False)]
    window = np.zeros((*size, image.shape[-1]), np.float32)
    window[tuple(slice(length) for length in lengths)] = image[
        tuple(slice(start, start + length) for start, length in zip(first, lengths, strict=True))
    ]
    return window


def _check_ops(model: keras.Model, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError for layers that run Python code: no file holds it."""
    logits = traced(lambda images: model(images, training=False))
    graph = logits.get_concrete_function(tf.TensorSpec(shape, tf.float32)).graph.as_graph_def()
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    ops = [(node.name, node.op) for node in nodes if node.op in PYTHON_OPS]
    if ops:
        raise ValueError(
            f"{_layers_in_words(model, ops)}: Python code, such as that of tf.numpy_function, is "
            "in no file. Write it with keras.ops or TensorFlow's operations."
        )


def _layers_in_words(model: keras.Model, ops: Sequence[tuple[str, str]]) -> str:
    """Return "The layer 'a' (MyLayer) uses Igamma" for (name, type) of ops of its graph."""
    layers = {layer.name: layer for layer in all_layers(model, include_self=False)}
    lines: dict[str, list[str]] = {}
    for name, kind in ops:
        # A scope is called as its layer; if the layer was called before, with a number.
        scopes = [
            re.sub(r"_\d+$", "", scope) if scope not in layers else scope
            for scope in name.split("/")
        ]
        layer = next((layers[scope] for scope in reversed(scopes) if scope in layers), None)
        owner = (
            f"The operation {name!r}"
            if layer is None
            else f"The layer {layer.name!r} ({type(layer).__name__})"
        )
        lines.setdefault(owner, []).append(kind)
    return "; ".join(
        f"{owner} uses {', '.join(dict.fromkeys(kinds))}" for owner, kinds in lines.items()
    )


def _write(model: keras.Model, file_format: str, path: Path, shape: tuple[int, ...]) -> None:
    signature = [keras.InputSpec(dtype="float32", shape=(None, *shape), name="image")]
    # Keras exports a call without `training`, and layers such as Resizing would then begin to
    # train those after them.
    image = keras.Input(shape, name="image")
    if file_format == "onnx":
        predicting, tables = frozen(model, image)
        _refuse(model, [(name, "a lookup table") for name in tables])
    else:
        predicting = keras.Model(image, model(image, training=False))
    kind = {"savedmodel": "tf_saved_model", "onnx": "onnx"}[file_format]
    with unsupported_ops() as unsupported, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Keras asks NumPy for an old name.
        try:
            predicting.export(str(path), format=kind, verbose=False, input_signature=signature)
        except Exception as error:
            if not unsupported:
                raise ValueError(
                    f"The network cannot be written as {file_format}: "
                    f"{cause_line(error).rstrip('.')}."
                ) from error
    _refuse(model, unsupported)
    if file_format == "onnx":
        correct(path)


def _refuse(model: keras.Model, ops: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError for (name, type) of ops that ONNX does not have."""
    if ops:
        raise ValueError(
            f"{_layers_in_words(model, ops)}: tf2onnx cannot write it in ONNX. Use other "
            "operations, or export --to savedmodel."
        )


def _run_apart(file_format: str, path: Path, windows: np.ndarray, folder: Path) -> np.ndarray:
    """Return the logits that the file gives in a process of its own, on the CPU."""
    source, target = folder / "windows.npy", folder / "logits.npy"
    np.save(source, windows)
    script = Path(__file__).with_name("run_exported.py")
    try:
        ended = subprocess.run(
            # -P: not the folder of the script, whose modules have names of packages.
            [sys.executable, "-P", script, file_format, path, source, target],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailedError(f"The exported file did not answer in {SECONDS} s.") from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CheckFailedError(f"The exported file does not run in a process of its own: {last}")
    return np.load(target)


def _compared(
    path: Path,
    names: tuple[str, ...],
    outputs: Outputs,
    expected: np.ndarray,
    logits: np.ndarray,
) -> Exported:
    """Return what was proved; CheckFailedError where the two differ by more than rounding."""
    bound = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if logits.shape != expected.shape:
        raise CheckFailedError(
            f"The exported file gives logits of shape {logits.shape}, and the network of the run "
            f"{expected.shape}. It is not kept."
        )
    difference = float(np.abs(logits - expected).max())
    if not difference <= bound:  # Also where it is NaN.
        raise CheckFailedError(
            f"The exported file and the network of the run differ by {difference:.1e} on "
            f"{', '.join(names)}, and at most {bound:.1e} is rounding. The file is not kept."
        )
    ours, theirs = outputs.labels(expected).numpy(), outputs.labels(logits).numpy()
    return Exported(
        path=path,
        names=names,
        difference=difference,
        bound=bound,
        element="voxel" if ours.ndim > 3 else "pixel",
        num_voxels=ours.size,
        num_other_labels=int((ours != theirs).sum()),
    )


def _replace(path: Path, target: Path) -> None:
    """Put a finished file, or folder, in the place of an earlier one."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    path.replace(target)


def _facts(
    network: TrainedNetwork,
    file_format: str,
    window: tuple[int, ...],
    exported: Exported,
    *,
    num_logits: int,
) -> dict[str, Any]:
    """Return what one must know to use the file: its input, its output, its images."""
    return {
        "tfunet": __version__,
        "format": file_format,
        "file": exported.path.name,
        "input": {
            "name": "image",
            "dtype": "float32",
            "shape": [None, *window, network.channels],
        },
        "output": {
            "name": "logits" if file_format == "onnx" else "output_0",
            "dtype": "float32",
            "shape": [None, *window, num_logits],
            "probabilities": "sigmoid" if num_logits == 1 else network.outputs.function,
        },
        "labels": {label: entry["name"] for label, entry in network.classes().items()},
        **network.outputs.as_json(),
        "preparation": network.preparation,
        **network.channels_as_json(),
        "compared": {
            "images": list(exported.names),
            "largest_difference": exported.difference,
            "bound": exported.bound,
            "voxels": exported.num_voxels,
            "voxels_with_another_label": exported.num_other_labels,
        },
    }
