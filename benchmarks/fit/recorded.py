"""Records what a script has computed, one file a process, for benchmarks/check_fit.py."""

import argparse
import json
import os
from pathlib import Path

import numpy as np


def arguments(**more):
    """Return the options of a script: --out, and those of `more` with their choices."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder for all that is written")
    for name, choices in more.items():
        parser.add_argument(f"--{name}", choices=choices, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def process_index():
    """Return which process of a launch this is, 0 without one."""
    return json.loads(os.environ.get("TFUNET_LAUNCH", "{}")).get("process_index", 0)


def record(out, model, *, history, evaluate=None, predict=None):
    """Write the numbers of `fit`, `evaluate`, `predict`, and all weights.

    Args:
        out: the folder.
        model: a Keras model.
        history: the values of each epoch, by name.
        evaluate: what `evaluate(..., return_dict=True)` has returned.
        predict: an array, or a dictionary of arrays.
    """
    found = {f"history/{name}": np.asarray(values) for name, values in history.items()}
    for name, value in (evaluate or {}).items():
        found[f"evaluate/{name}"] = np.asarray(value)
    if predict is not None:
        named = predict if isinstance(predict, dict) else {"output": predict}
        found.update({f"predict/{name}": np.asarray(value) for name, value in named.items()})
    for number, weight in enumerate(model.weights):
        found[f"weights/{number:03} {weight.path}"] = np.asarray(weight)
    np.savez(out / f"result-{process_index()}.npz", **found)
