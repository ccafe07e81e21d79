"""Runs an exported network on windows: python run_exported.py FORMAT FILE WINDOWS.npy LOGITS.npy

It needs TensorFlow or onnxruntime and NumPy. Nothing of tfunet can be imported here, so that what
runs here runs anywhere.
"""

import sys
from collections.abc import Callable

import numpy as np


def _saved_model(path: str) -> Callable[[np.ndarray], np.ndarray]:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    return lambda windows: loaded.serve(windows).numpy()


def _onnx(path: str) -> Callable[[np.ndarray], np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda windows: session.run(["logits"], {"image": windows})[0]


if __name__ == "__main__":
    # None makes Python refuse an import; the types know only modules.
    sys.modules["tfunet"] = None  # type: ignore[assignment]
    file_format, file, source, target = sys.argv[1:]
    run = {"savedmodel": _saved_model, "onnx": _onnx}[file_format](file)
    # One window at a time, as little memory as possible.
    np.save(target, np.concatenate([run(window[np.newaxis]) for window in np.load(source)]))
