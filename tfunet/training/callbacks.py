"""The Keras callbacks of a run: those of its configuration, of its caller and of its own."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import keras

from tfunet.backend import check_callbacks
from tfunet.config.monitors import with_mode
from tfunet.config.refs import call, resolve, unknown
from tfunet.swap import LargeModelSupport
from tfunet.timing.profiling import Profile
from tfunet.training import checkpoint
from tfunet.training.attempt import Attempt

# They write files, so only the chief may have them.
WRITERS = ("CSVLogger", "TensorBoard", "ModelCheckpoint", "OrbaxCheckpoint")


@final
class Callbacks:
    """The Keras callbacks of this process, in the order in which a checkpoint keeps their states.

    First come the configuration's, then those that the caller of the run has given.
    """

    def __init__(self, attempt: Attempt, given: Sequence[keras.callbacks.Callback]) -> None:
        topology, folder = attempt.topology, attempt.folder
        check_callbacks(attempt.config)
        self.all = [*_configured(attempt), *given]
        if attempt.support is not None:
            self.all.append(attempt.support)
        self.supports = [
            callback for callback in self.all if isinstance(callback, LargeModelSupport)
        ]
        for support in self.supports:
            support.note = support.note or attempt.note
        self._fresh: dict[int, dict[str, Any]] = {}
        self._profile = None
        # Only the chief: in other processes TensorFlow 2.21 often aborts when a profile ends.
        if attempt.config.profile and attempt.note is not None and topology.is_chief:
            path = folder.profile_path(topology.process_index)
            self._profile = Profile(path, attempt.backend.profile, attempt.note)
            self.all.append(self._profile)

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the plain numbers and texts that changed in each callback, by its place."""
        return {
            str(place): changed(state_of(callback), self._fresh.get(place, {}))
            for place, callback in enumerate(self.all)
        }

    def restore(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the callbacks, whose training has just begun, what `states` returned."""
        self._fresh = {place: state_of(callback) for place, callback in enumerate(self.all)}
        for place, values in states.items():
            if int(place) < len(self.all):
                restore_state(self.all[int(place)], values)

    def end_profile(self) -> None:
        """End the profile, if one is being taken."""
        if self._profile is not None:
            self._profile.stop()


def _configured(attempt: Attempt) -> list[keras.callbacks.Callback]:
    """Return this process's callbacks of the configuration.

    Each table has `name` ('package.module:Class' or a name in keras.callbacks), keyword arguments,
    and optionally `chief_only`, for a callback that writes files. "{folder}" in a text argument
    stands for the run's folder.
    """
    callbacks: list[keras.callbacks.Callback] = []
    everywhere, topology = [], attempt.topology
    for table in map(with_mode, attempt.config.callbacks):
        options = {key: value for key, value in table.items() if key not in ("name", "chief_only")}
        for key, value in options.items():
            if isinstance(value, str):
                options[key] = value.replace("{folder}", str(attempt.folder.path))
        kind = class_of(table["name"])
        if kind is keras.callbacks.CSVLogger:  # A run that goes on keeps its rows.
            options.setdefault("append", checkpoint.exists(attempt.folder))
        if "chief_only" not in table and ":" in table["name"] and topology.process_count > 1:
            everywhere.append(table["name"])
        if topology.is_chief or not table.get("chief_only", kind.__name__ in WRITERS):
            callback = call("callback", kind, options, ref=table["name"])
            if not isinstance(callback, keras.callbacks.Callback):
                raise ValueError(
                    f"The callback {table['name']!r} is a {type(callback).__name__}; it must be a "
                    "keras.callbacks.Callback."
                )
            callback.is_chief = topology.is_chief
            callbacks.append(callback)
    if everywhere:
        attempt.say(
            told_of_all(
                everywhere, topology.process_count, "give chief_only = true in its table, or "
            )
        )
    return callbacks


def told_of_all(names: Sequence[str], process_count: int, keys: str = "") -> str:
    """Return what to say of callbacks that each process has; `keys` is what may be given, too."""
    return (
        f"{', '.join(names)}: runs in each of the {process_count} processes, as what stops a run "
        "or changes its learning rate must. For a callback that writes files or sends messages "
        f"{keys}let it ask self.is_chief."
    )


def restore_state(callback: keras.callbacks.Callback, state: Mapping[str, Any]) -> None:
    """Give a callback what `state_of` returned of an earlier one."""
    # Keras turns the sign of min_delta when it first needs it, and would turn it twice.
    vars(callback).update({key: value for key, value in state.items() if key != "min_delta"})


def changed(state: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from a callback whose training has just begun.

    The rest are settings. A run that goes on may have others: its folder may have moved.
    """
    return {key: value for key, value in state.items() if key not in fresh or fresh[key] != value}


def state_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the plain numbers and texts that a callback holds."""
    plain = {}
    for key, value in vars(callback).items():
        value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
        if isinstance(value, bool | int | float | str) or value is None:
            plain[key] = value
    return plain


def class_of(name: str) -> Any:
    """Return the class of a callback: of keras.callbacks, or the user's."""
    if ":" in name:
        return resolve("callback", name, {}, keras.callbacks.Callback)
    known = [word for word in vars(keras.callbacks) if word[0].isupper()]
    if name not in known:
        raise unknown("callback", name, known)
    return getattr(keras.callbacks, name)
