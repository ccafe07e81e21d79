"""Proves before the first step of a run that its way to take a step gives the step of one device.

A small copy of the network takes one step on few real samples: by all processes, through their own
exchanges, and once more by the chief on one device. What differs ends the run.

    samples --> [the run's way, all processes] --> loss, gradients, states --+
       |                                                                     +--> compared
       +------> [one device, the chief] ---------> loss, gradients, states --+
"""

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tfunet.config.run import RunConfig
from tfunet.exit_codes import CheckFailedError
from tfunet.models.keras_errors import cause_line
from tfunet.proof import small
from tfunet.proof.differences import Difference, worst
from tfunet.proof.left_out import in_words
from tfunet.proof.naming import first_layer, message
from tfunet.proof.step import in_precision
from tfunet.proof.trial import Trial, finite
from tfunet.training import checkpoint
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network
from tfunet.training.run_data import RunData

# A difference that is larger is none of rounding.
BOUNDS = {"float64": 1e-6, "float32": 1e-4}
# Layers that exist in float32 only.
NOT_IN_FLOAT64 = ("MaxPooling3D",)


def ways_of(config: RunConfig) -> list[str]:
    """Return the keys of a configuration that change how a step is computed."""
    changed = {
        "num_replicas": config.num_replicas > 1,
        "split": config.num_devices > config.num_replicas * config.stages,
        "stages": config.stages > 1,
        "tiling": config.num_tiles > 1,
        "accumulation": config.accumulation > 1,
    }
    return [key for key, is_changed in changed.items() if is_changed]


def prove(attempt: Attempt, data: RunData, network: Network) -> dict[str, Any] | None:
    """Return what result.json says of the proof; None for a run that steps as one device does.

    Called by all processes together. Raises CheckFailedError, which names what differs.
    """
    config = attempt.config
    ways = ways_of(config)
    if not ways:
        return None
    attempt.begin("proving the step")
    since = time.perf_counter()
    why_not = _reason_against(config)
    if why_not is None:
        with _own_random_numbers():
            found = _tried(attempt, data, network, ways)
        if isinstance(found, dict):
            return {**found, "seconds": time.perf_counter() - since}
        why_not = found
    attempt.say(f"warning: The step is not proved to be that of one device, because {why_not}.")
    return {"is_proved": False, "ways": ways, "why_not": why_not}


def _reason_against(config: RunConfig) -> str | None:
    if not config.prove:
        return "prove = false"
    for option in ("compression", "adasum"):
        if config.backend_options.get(option, "none") not in ("none", False):
            return f"backend_options.{option} changes the average of gradients"
    return None


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Draw the same numbers in all processes in the block, and go on afterwards as before it."""
    state, of_numpy = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(of_numpy)


def _tried(
    attempt: Attempt, data: RunData, network: Network, ways: Sequence[str]
) -> dict[str, Any] | str:
    """Return the record of the first proof that can be made, or why none can be.

    Raises CheckFailedError for a step that differs.
    """
    why_not = "no sample is small enough"
    for dtype in _precisions(network):
        with in_precision(dtype):
            trial = _small_trial(attempt, data, network, dtype)
            table = _compared(trial)
            if "why_not" in table:
                why_not = table["why_not"]
                continue
            found = [Difference(**row) for row in table["differences"]]
            different = [one for one in found if not one.share <= BOUNDS[dtype]]
            if different:
                layer = first_layer(trial, BOUNDS[dtype])
                raise CheckFailedError(message(trial, ways, different, layer))
        return {
            "is_proved": True,
            "ways": list(ways),
            "patch": list(trial.data.task.patch),
            "samples": trial.attempt.config.global_samples,
            "precision": dtype,
            "differences": worst(found),
            "left_out": in_words(network.model, trial.left_out),
        }
    return why_not


def _precisions(network: Network) -> list[str]:
    layers = network.model._flatten_layers()
    is_possible = not any(type(layer).__name__ in NOT_IN_FLOAT64 for layer in layers)
    return ["float64", "float32"] if is_possible else ["float32"]


def _small_trial(attempt: Attempt, data: RunData, network: Network, dtype: str) -> Trial:
    config, patch = attempt.config, data.task.patch
    steps = small.pooling_steps(network.model, len(patch))
    tiles = None if data.tiles is None else small.small_tiles(data.tiles, patch, steps)
    sizes = (
        small.small_patch(patch, steps, config.split or (1,) * len(patch))
        if tiles is None
        else tiles.grid.image
    )
    own = small.small_config(config, sizes, tiles)
    task = replace(data.task, config=own, patch=sizes)
    return Trial(
        replace(attempt, config=own, support=None, spans=None, is_quiet=True),
        replace(data, task=task, tiles=tiles),
        network,
        dtype,
    )


def _compared(trial: Trial) -> dict[str, Any]:
    """Return how far the steps differ, or why they cannot be taken; all processes together."""
    backend, topology = trial.attempt.backend, trial.attempt.topology
    before, parts, failed = [], None, ""
    try:
        network = trial.in_parts()
        before = trial.values(network)
        parts = trial.take_in_parts(network)
        del network
    except Exception as error:
        import traceback

        traceback.print_exc()
        failed = cause_line(error).rstrip(".")
    # What cannot be computed fails in all processes alike, before they wait for one another.
    if backend.sum(np.array([float(parts is None)]))[0]:
        return {"why_not": failed or "another process cannot compute it"}
    table: dict[str, Any] = {}
    if topology.is_chief and parts is not None:
        try:
            alone = trial.whole(before)
            whole = trial.take_whole(alone, parts)
            table = (
                {
                    "differences": [
                        asdict(one) for one in trial.differences(alone, before, parts, whole)
                    ]
                }
                if finite(whole.losses)
                else {"why_not": "the loss of small samples is not finite"}
            )
        except Exception as error:
            table = {"why_not": cause_line(error).rstrip(".")}
    text = json.dumps(table).encode() if topology.is_chief else b""
    content = np.frombuffer(text, np.uint8)
    shared: dict[str, Any] = json.loads(checkpoint.share_bytes(backend, topology, content))
    return shared
