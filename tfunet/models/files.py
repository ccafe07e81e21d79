"""Which files can be a model, in words for those that cannot. Imports no TensorFlow."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tfunet.files.typed import DAMAGED

KERAS = ".keras"
# Bytes of metadata.json that are read; a larger one was made to fill the memory.
MOST_BYTES = 2**20
CONVERT = "Load it where it was made, and save it with model.save('net.keras') in Keras 3."
OTHERS = {
    ".weights.h5": "holds weights without the model. Name the function that builds the model; its "
    "weights can be loaded in there",
    ".h5": f"is in Keras's old format. {CONVERT} Keras 3 can load many of these files",
    ".hdf5": f"is in Keras's old format. {CONVERT} Keras 3 can load many of these files",
    ".pb": f"is a graph of TensorFlow without layers, which cannot be trained here. {CONVERT}",
    ".tflite": f"is a model for inference only. {CONVERT}",
    ".onnx": "is a model of ONNX; tfunet trains models of Keras 3",
    ".pt": "is a model of PyTorch; tfunet trains models of Keras 3",
    ".pth": "is a model of PyTorch; tfunet trains models of Keras 3",
}
WEIGHTS = (".h5", ".hdf5", ".keras")


def check_weights(path: object) -> None:
    """Raise ValueError for what is no file with the weights of an encoder."""
    if not isinstance(path, str) or not Path(path).is_file() or not path.endswith(WEIGHTS):
        raise ValueError(
            f"encoder_weights={path!r} is no file of weights ({', '.join(WEIGHTS)}). Where there "
            "is a network, keras.applications.NAME(include_top=False).save_weights("
            "'NAME.weights.h5') writes one."
        )


def check_initial_weights(path: str) -> None:
    """Raise ValueError for what is no file of a model whose weights another one can begin with."""
    if path.endswith(KERAS) and Path(path).is_file():
        try:
            _check_keras(path)
        except ValueError as error:
            raise ValueError(f"initial_weights: {error}") from error
        return
    kept = Path(path) / "model.keras"
    advice = (
        f"In this folder there is one: {kept}."
        if kept.is_file()
        else "A run keeps one as model.keras in its folder."
    )
    raise ValueError(
        f"initial_weights={path!r} is no {KERAS} file of a network that Keras 3 saved. {advice}"
    )


def check_no_options(name: str, options: Mapping[str, object]) -> None:
    """Raise ValueError for options of a model that is in a file."""
    if options:
        raise ValueError(
            f"A saved model has no options; {name} came with model_options {sorted(options)}. "
            "Leave them out, also with --model_options '{}' on the command line."
        )


def is_file(name: str) -> bool:
    """Whether a model is named by its file; raises ValueError for a file that cannot be one."""
    if name.endswith(KERAS):
        _check_keras(name)
        return True
    for suffix, words in OTHERS.items():
        if name.lower().endswith(suffix):
            raise ValueError(f"The model file {name!r} {words}.".replace("..", "."))
    if (Path(name) / "saved_model.pb").is_file():
        raise ValueError(
            f"The folder {name!r} is a SavedModel: a graph without layers, which Keras 3 cannot "
            f"train. {CONVERT}"
        )
    return False


def _check_keras(name: str) -> None:
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"The model file {name!r} does not exist.")
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"The model file {name!r} is not a .keras file: those are ZIP archives. It is cut "
            f"short, or in another format under that name. {CONVERT}"
        )
    try:
        with zipfile.ZipFile(path) as archive, archive.open("metadata.json") as file:
            version = str(json.loads(file.read(MOST_BYTES))["keras_version"])
    except DAMAGED as error:
        raise ValueError(
            f"The model file {name!r} is not what Keras 3 saves: {error}. {CONVERT}"
        ) from error
    if version.startswith(("1.", "2.")):
        raise ValueError(
            f"The model file {name!r} was saved by Keras {version} (tf_keras, or tf.keras before "
            "TensorFlow 2.16), whose models Keras 3 cannot train. Build the model in Keras 3, load "
            "its weights there, and save that."
        )
