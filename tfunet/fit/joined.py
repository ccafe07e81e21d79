"""Joins the process of a script with the others that `tfunet run` or a launcher started.

    tfunet run:  prepare()     join()                                   leave()
                   |             | meets the others, makes the backend    | waits for the others
    python:        |             v                                        v
      script.py    +-- imports --+-- fit, evaluate, own code, fit ... ----+

No TensorFlow before `join`.
"""

import contextlib
import hashlib
import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.backend import BACKENDS, Backend, Launch
from tfunet.config.refs import resolve
from tfunet.connection import (
    Connection,
    check_count,
    connect,
    launch_from,
    make_backend,
    own_place,
)
from tfunet.fit.placement import SCRIPTS, VARIABLE, Placement, from_text
from tfunet.machine.cores import pin_and_limit
from tfunet.machine.cpu_memory import cap_variables
from tfunet.process.launcher_variables import Place
from tfunet.process.watchdog import OWN_CODE, Pulse, nobody_asks, pulse_to_supervisor

TOO_LATE = (
    "TensorFlow has been used before this process joined the others of its run. Call "
    "tfunet.distribute() right after the imports of the script."
)


@final
@dataclass(frozen=True, kw_only=True)
class Joined:
    """A process that has joined the others of its script.

    Args:
        backend: Made and not yet started.
        launch: The place of the process.
        is_alone: Whether `python script.py` started it: one process, one device, and nothing of
            TensorFlow's settings is changed.
        begin: Says what the process does, as `Pulse.begin(doing, step)`. `step` counts all steps
            that the script has taken, and grows. A process may stay in `OWN_CODE`, which it is in
            before the first call, for as long as it likes. If it stays in anything else, or others
            wait in anything else, for hang_seconds, the process that is behind is said to hang, and
            all are ended.
    """

    backend: Backend
    launch: Launch
    is_alone: bool
    begin: Callable[..., None]


@final
class _Own:
    """What this process knows of its place."""

    def __init__(self) -> None:
        self.given: dict[str, Any] | None = None
        self.pulse: Pulse | None = None
        self.connection: Connection | None = None
        self.joined: Joined | None = None
        self.has_left = False


_OWN = _Own()


def prepare() -> None:
    """Take what the process was told, before its script and TensorFlow: the caps, the watch.

    What the script starts is not told it again. Raises ValueError.
    """
    if VARIABLE in os.environ:
        _OWN.given = from_text(os.environ.pop(VARIABLE))
        os.environ.update(cap_variables(Placement(**_OWN.given).cpu_memory))
    _OWN.pulse = _OWN.pulse or pulse_to_supervisor(OWN_CODE)


def join(backend: str | None = None, backend_options: Mapping[str, Any] | None = None) -> Joined:
    """Join the other processes of the script; return what was returned before if it has joined.

    A process that nobody started with others has one device, whatever `backend` is.

    Args:
        backend: What connects the processes that srun, mpirun or torchrun started, as the key of a
            run. `tfunet run --backend` says it, too.
        backend_options: Keyword arguments for the backend.

    Raises ValueError for what does not fit together, and ConnectionError if a process does not
    come.
    """
    if _OWN.joined is not None:
        return _OWN.joined
    prepare()
    # What multiprocessing starts with `spawn` runs the lines of the script once more.
    is_helper = multiprocessing.parent_process() is not None
    place = None if is_helper else own_place()
    is_under_launcher = place is not None and place.count > 1
    if (_OWN.given is None and not is_under_launcher) or is_helper:
        alone = Launch()
        device: Backend = resolve("backend", "single", BACKENDS)(alone)
        _OWN.joined = Joined(backend=device, launch=alone, is_alone=True, begin=nobody_asks)
        return _OWN.joined
    placement = _placement(_OWN.given or {}, backend, backend_options, place)
    if place is not None:
        check_count(placement, place.count)
        pin_and_limit()
    folder = SCRIPTS if place is None else _meeting_folder(place)
    own = connect(
        placement, placement.hang_seconds, folder, _OWN.pulse, is_saved=False, doing=OWN_CODE
    )
    if place is not None and place.index == 0:
        with contextlib.suppress(OSError):  # With TFUNET_SECRET nobody made it.
            folder.rmdir()
    _OWN.connection = own
    try:
        made = make_backend(placement, placement, own.launch)
    except RuntimeError as error:
        if "initializ" not in str(error):
            raise
        raise ValueError(TOO_LATE) from error
    _OWN.joined = Joined(backend=made, launch=own.launch, is_alone=False, begin=own.begin)
    return _OWN.joined


def is_joined() -> bool:
    """Whether `join` was called in this process."""
    return _OWN.joined is not None


def what_was_started() -> tuple[int, int]:
    """Return the numbers of processes and of replicas of the script, joined or not."""
    place = own_place()
    if place is not None and place.count > 1:
        return place.count, place.count
    launch = launch_from(os.environ)
    return launch.process_count, launch.num_replicas


def leave() -> None:
    """Wait until all processes have come to the end of the script, and stop the backend.

    For a script that went well, after `Backend.start`. Later calls do nothing.
    """
    joined = _OWN.joined
    if joined is None or _OWN.has_left:
        return
    _OWN.has_left = True
    joined.begin(OWN_CODE)  # Whoever is not yet here may take long, and nobody has to wait.
    joined.backend.sum(np.zeros(1))
    joined.backend.stop()


def lost() -> str:
    """Return what to say if another process has ended that a step needs; "" if all are there."""
    return "" if _OWN.connection is None else _OWN.connection.lost()


def _placement(
    given: Mapping[str, Any],
    backend: str | None,
    options: Mapping[str, Any] | None,
    place: Place | None,
) -> Placement:
    """Return what `tfunet run` was told; else what the script says of a launcher's processes."""
    if "backend" in given:
        if backend not in (None, given["backend"]):
            raise ValueError(
                f"tfunet run --backend {given['backend']} started this script, which asks for the "
                f"backend {backend!r}. Leave one of them out."
            )
        if backend is None or options is None:
            return Placement(**given)
        return Placement(**{"backend_options": dict(options), **given})
    if place is None or place.count == 1:
        return Placement(**given)
    if backend is None:
        raise ValueError(
            f"A launcher started {place.count} processes, and nothing says what connects them. "
            "Start them with `tfunet run --backend horovod script.py`, or write "
            'tfunet.distribute(backend="horovod").'
        )
    return Placement(backend=backend, backend_options=dict(options or {}), num_replicas=place.count)


def _meeting_folder(place: Place) -> Path:
    """Return the folder of the secret: all processes know it, and no other run has it."""
    return SCRIPTS / f".meeting-{hashlib.sha256(place.key.encode()).hexdigest()[:16]}"
