"""Takes a process to its place: it meets the others, is watched, and makes the backend.

A run of `tfunet train` and a script of `tfunet run` do it here. No TensorFlow before
`make_backend`.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from tfunet.backend import BACKENDS, Backend, Launch, check_backend, facts_of, num_processes
from tfunet.config.memory_keys import MemoryKeys
from tfunet.config.placement_keys import PlacementKeys
from tfunet.config.refs import call, resolve
from tfunet.machine.cores import num_threads
from tfunet.machine.environment import code_hash
from tfunet.machine.gpu_memory import cap_gpus, check_shared
from tfunet.process.launcher_variables import Place, find_place
from tfunet.process.meeting import SIGNALS, Meeting
from tfunet.process.secret import forget, shared_secret
from tfunet.process.stop_request import stop_request
from tfunet.process.watchdog import Pulse, nobody_asks

LAUNCH_VARIABLE = "TFUNET_LAUNCH"
OPEN_PORTS = (
    "warning: {backend} opens a port on all network interfaces of each host, without a password: "
    "whoever reaches it can read and write your files while this run lasts. See docs/security.md. "
    "On a single machine, TFUNET_PRIVATE_NETWORK=1 closes it to others."
)


@final
@dataclass(frozen=True, kw_only=True)
class Connection:
    """A process in its place, with the others of its run.

    Args:
        meeting: Its connections, if a launcher started the processes; None under the supervisor.
        begin: As `Pulse.begin`.
        stops_after: Whether all processes stop after a step, because one was asked to.
    """

    launch: Launch
    meeting: Meeting | None
    begin: Callable[..., None]
    stops_after: Callable[[int], bool]

    def lost(self) -> str:
        """Return what to say if a process has ended that the others need; "" if all are there."""
        lost = self.meeting.lost() if self.meeting is not None else ""
        return lost and f"{lost} has ended, and a step needs all processes. Its output says why."


def launch_from(environment: Mapping[str, str]) -> Launch:
    """Return what the supervisor told this process; without one, the launch of a single process."""
    values = json.loads(environment.get(LAUNCH_VARIABLE, "{}"))
    if "addresses" in values:
        values["addresses"] = tuple(values["addresses"])
    return Launch(**values)


def own_place() -> Place | None:
    """Return the place that srun, mpirun or a person gave this process; None under a supervisor."""
    return None if LAUNCH_VARIABLE in os.environ else find_place(os.environ)


def check_count(keys: PlacementKeys, count: int) -> None:
    """Raise ValueError unless a launcher started as many processes, `count`, as are needed."""
    needed, of_replica = num_processes(keys), keys.num_devices // keys.num_replicas
    if count == needed:
        return
    fitting, rest = divmod(count, of_replica)
    if rest:
        advice = f"choose parts or stages that share {count} processes"
    else:
        advice = f"give num_replicas={fitting} with the backend horovod or multiworker"
    each = f", {of_replica} for each replica" if 1 < of_replica < needed else ""
    raise ValueError(
        f"The run takes {needed} process{'es' if needed > 1 else ''}{each}, and its launcher "
        f"started {count}. Start {needed}, or {advice}."
    )


def connect(
    keys: PlacementKeys,
    hang_seconds: float,
    folder: Path,
    pulse: Pulse | None,
    *,
    is_saved: bool,
    doing: str = "start",
) -> Connection:
    """Connect this process with the others of its run, which the supervisor or a launcher started.

    Args:
        hang_seconds: As the key of a run.
        folder: Where processes that a launcher started find the secret of their run.
        pulse: What the supervisor hears; None without one.
        is_saved: Whether SIGTERM and SIGUSR1 make `stops_after` true. Otherwise they end the
            process.
        doing: What the process does until it says `begin`.

    Raises ValueError for what does not fit together, and ConnectionError if a process does not
    come.
    """
    place = own_place()
    meeting = None
    if place is None:
        launch = launch_from(os.environ)
        stops_after = _asked_by_supervisor(launch)
    else:
        meeting = _meet(place, folder, is_saved=is_saved)
        pulse, stops_after = meeting.watch(hang_seconds, doing), meeting.stops_after
        launch = Launch(
            process_index=place.index,
            process_count=place.count,
            num_replicas=keys.num_devices,
            addresses=meeting.addresses,
        )
    # The supervisor puts its processes into a private network.
    is_private = meeting is None and os.environ.get("TFUNET_PRIVATE_NETWORK", "0") not in ("", "0")
    if facts_of(keys.backend).is_open and launch.process_index == 0 and not is_private:
        print(OPEN_PORTS.format(backend=keys.backend), file=sys.stderr, flush=True)
    begin = pulse.begin if pulse is not None else nobody_asks
    return Connection(launch=launch, meeting=meeting, begin=begin, stops_after=stops_after)


def make_backend(keys: PlacementKeys, memory: MemoryKeys, launch: Launch) -> Backend:
    """Bind TensorFlow to this process's cores and GPUs, and make the backend."""
    import tensorflow as tf

    # The variables of tfunet.machine.cores reach only a part of TensorFlow's pools.
    threads = num_threads(os.environ)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # A plan of large-model support has one op at a time: side by side they need more memory.
    in_turn = memory.swap is not None and not tf.config.list_physical_devices("GPU")
    tf.config.threading.set_inter_op_parallelism_threads(1 if in_turn else threads)
    cap_gpus(memory.gpu_memory)
    if LAUNCH_VARIABLE in os.environ:  # All processes of this host see the same GPUs.
        num_gpus = len(tf.config.list_physical_devices("GPU"))
        check_shared(memory.gpu_memory, memory.swap, launch, num_gpus)
    make = resolve("backend", keys.backend, BACKENDS, has_arguments=True)
    made: Backend = call("backend", make, keys.backend_options, ref=keys.backend, launch=launch)
    check_backend(keys.backend, made)
    return made


def _asked_by_supervisor(launch: Launch) -> Callable[[int], bool]:
    """Return what says after a step whether the supervisor asked the run to end there."""
    request = stop_request(os.environ)
    if request is None:
        return lambda step: False
    is_chief, is_alone = launch.process_index == 0, launch.process_count == 1
    return partial(request.stops_after, is_chief=is_chief, is_alone=is_alone)


def _meet(place: Place, folder: Path, *, is_saved: bool) -> Meeting:
    signals: list[int] = []
    for number in SIGNALS if is_saved else ():
        signal.signal(number, lambda received, _: signals.append(received))
    secret = shared_secret(folder, os.environ) if place.count > 1 else b""
    meeting = Meeting(place, code_hash(), signals, secret)
    if place.index == 0 and place.count > 1:
        forget(folder)
    return meeting
