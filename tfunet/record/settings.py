"""Which other settings a run may go on with."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfunet.config.keys import MAY_CHANGE
from tfunet.config.run import RunConfig
from tfunet.record.columns import MODEL


def _as_json(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as JSON, where a tuple among a model's options is a list."""
    return json.loads(json.dumps(asdict(config)))


def differing_keys(config: RunConfig, before: RunConfig) -> list[str]:
    """Return the keys in which two configurations differ.

    A key that a record lacks is newer than it, and had its default.
    """
    ours, theirs = _as_json(config), _as_json(before)
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def keys_that_may_change(config: RunConfig) -> set[str]:
    """Return the keys that an unfinished run may change when it goes on."""
    # The number of replicas may change unless the learning rate depends on it.
    tied = {"num_replicas"} if config.scale_learning_rate else set()
    return set(MAY_CHANGE) - tied


def check_more_epochs(folder: Path, config: RunConfig, before: RunConfig) -> None:
    """Raise ValueError where a finished run cannot be trained for the epochs of `config`."""
    falls, steps = config.learning_rate_schedule is not None, before.steps
    is_more = config.steps is None and config.epochs > before.epochs
    if is_more and steps is None and not falls:
        return
    advice = "To train it further, give more epochs, or choose"
    if steps is not None:
        advice = (
            f"It ended after steps = {steps}, which may be in the middle of an epoch, so it cannot "
            "be trained further: only runs of epochs can. Choose"
        )
    elif falls:
        advice = (
            f"With learning_rate_schedule = {config.learning_rate_schedule!r} its learning rate "
            "fell to 0, so it cannot be trained further. Choose"
        )
    raise ValueError(
        f"{folder} holds a finished run. {advice} another folder with --out."
        f"{_from_its_weights(folder)}"
    )


def other_settings(folder: Path, config: RunConfig, before: RunConfig) -> str:
    """Return why a run with these settings cannot go on in a folder with others."""
    ours, theirs = _as_json(config), _as_json(before)
    differing = differing_keys(config, before)
    shown = [f"{name}={ours.get(name)!r} (there: {theirs.get(name)!r})" for name in differing]
    hint = ""
    if "num_replicas" in differing and "global_batch" in differing:
        hint = (
            f" To go on with num_replicas={config.num_replicas}, give "
            f"global_batch={theirs.get('global_batch')}."
        )
    return (
        f"{folder} holds a run with other settings: {', '.join(shown)}. Choose another folder with "
        f"--out.{hint}{_from_its_weights(folder)}"
    )


def _from_its_weights(folder: Path) -> str:
    """Return how a run with other settings begins with the weights of the one in a folder."""
    weights = folder / MODEL
    if not weights.is_file():
        return ""
    return f" To begin there with the weights of this run, also give --initial_weights {weights}"
