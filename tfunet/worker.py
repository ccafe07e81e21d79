"""One process of a run, started by the supervisor, srun or mpirun.

`python -m tfunet.worker FOLDER` runs what the folder's config.json describes. Under mpirun or srun,
`tfunet train` comes here too.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from tfunet import exit_codes
from tfunet.backend import BACKENDS, Backend, Launch, check_backend, facts_of
from tfunet.config import trust
from tfunet.config.refs import call, resolve
from tfunet.config.run import RunConfig
from tfunet.machine.cores import num_threads, pin_and_limit
from tfunet.machine.cpu_memory import cap_variables
from tfunet.machine.environment import DEFAULTS, code_hash
from tfunet.machine.gpu_memory import cap_gpus, check_shared
from tfunet.parallel.mesh import Mesh
from tfunet.process.full_memory import noting, out_of_memory
from tfunet.process.launcher_variables import Place, find_place
from tfunet.process.meeting import SIGNALS, Meeting
from tfunet.process.secret import forget, shared_secret
from tfunet.process.start_up import short_start
from tfunet.process.stop_request import stop_request
from tfunet.process.terminal import lines_of, show_messages_safely
from tfunet.process.watchdog import dump_stacks_when_asked, nobody_asks, pulse_to_supervisor
from tfunet.record import RunFolder

LAUNCH_VARIABLE = "TFUNET_LAUNCH"
OPEN_PORTS = (
    "warning: {backend} opens a port on all network interfaces of each host, without a password: "
    "whoever reaches it can read and write your files while this run lasts. See docs/security.md. "
    "On a single machine, TFUNET_PRIVATE_NETWORK=1 closes it to others."
)


def launch_from(environment: Mapping[str, str]) -> Launch:
    """Return what the supervisor told this process; without one, the launch of a single process."""
    values = json.loads(environment.get(LAUNCH_VARIABLE, "{}"))
    if "addresses" in values:
        values["addresses"] = tuple(values["addresses"])
    return Launch(**values)


def own_place() -> Place | None:
    """Return the place that srun, mpirun or a person gave this process; None under a supervisor."""
    return None if LAUNCH_VARIABLE in os.environ else find_place(os.environ)


def take_part(config: RunConfig, path: Path, place: Place) -> NoReturn:
    """Train with the processes that srun or mpirun started, then end this process.

    All processes call it with the same arguments. The chief locks the folder, as the supervisor
    would.
    """

    def record() -> None:
        if place.index != 0:
            work(config, path)
            return
        folder = RunFolder(path)
        folder.create()
        with folder.locked():
            folder.begin(config)
            try:
                work(config, path)
            except exit_codes.StoppedError:
                raise
            except BaseException as error:
                code = exit_codes.of_error(error) or exit_codes.PROCESS_DIED
                folder.write_failure(out_of_memory(error) or lines_of(error), code)
                raise
        print(lines_of(f"Record: {path}"))

    _end_with(record)


def _work_as_recorded() -> None:
    path = Path(sys.argv[1])
    config = RunFolder(path).read_config()
    if config is None:
        raise ValueError(f"{path} has no config.json. Start a run with `tfunet train --out`.")
    if LAUNCH_VARIABLE not in os.environ and find_place(os.environ) is None:
        RunFolder(path).check_programs(config, trust.KEYS)
    work(config, path)


def work(config: RunConfig, path: Path) -> None:
    """Train, alone or with the other processes of the run."""
    launch, meeting, pulse = launch_from(os.environ), None, pulse_to_supervisor()
    stops_after = _asked_by_supervisor(launch)
    place = own_place()
    if place is not None:
        meeting = _meet(place, path)
        pulse = meeting.watch(config.hang_seconds)
        stops_after = meeting.stops_after
        launch = Launch(
            process_index=place.index,
            process_count=place.count,
            num_replicas=config.num_devices,
            addresses=meeting.addresses,
        )
    # The supervisor puts its processes into a private network.
    is_private = meeting is None and os.environ.get("TFUNET_PRIVATE_NETWORK", "0") not in ("", "0")
    if facts_of(config.backend).is_open and launch.process_index == 0 and not is_private:
        print(OPEN_PORTS.format(backend=config.backend), file=sys.stderr, flush=True)
    mesh = Mesh(groups=config.num_replicas, split=config.split, stages=config.stages)
    launch = replace(
        launch,
        is_profiled=config.profile,
        pairs=tuple(mesh.pairs) if config.stages > 1 and mesh.is_split else (),
    )
    os.environ.update(cap_variables(config.cpu_memory))
    with short_start():
        from tfunet.loop import run

    backend = _made_backend(config, launch)
    begin = pulse.begin if pulse is not None else nobody_asks
    try:
        with noting(config.swap):
            run(config, backend, path, stops_after=stops_after, begin=begin)
    except exit_codes.StoppedError:
        # When a process ends with this exit code, SLURM kills the others. So only the chief ends
        # with it, after the others.
        if launch.process_index == 0:
            if meeting is not None:
                meeting.await_end()
            raise
    except Exception as error:
        # What TensorFlow and Horovod say of a lost process is long, and does not name it.
        if meeting is None or exit_codes.of_error(error) or out_of_memory(error):
            raise
        if lost := meeting.lost():
            raise ConnectionError(
                f"{lost} has ended, and a step needs all processes. Its output says why. The same "
                "command goes on from the last checkpoint."
            ) from None
        raise


def _made_backend(config: RunConfig, launch: Launch) -> Backend:
    """Bind TensorFlow to this process's cores and GPUs, and make the backend."""
    import tensorflow as tf

    # The variables of tfunet.machine.cores reach only a part of TensorFlow's pools.
    tf.config.threading.set_intra_op_parallelism_threads(num_threads(os.environ))
    tf.config.threading.set_inter_op_parallelism_threads(num_threads(os.environ))
    cap_gpus(config.gpu_memory)
    if LAUNCH_VARIABLE in os.environ:  # All processes of this host see the same GPUs.
        num_gpus = len(tf.config.list_physical_devices("GPU"))
        check_shared(config.gpu_memory, config.swap, launch, num_gpus)
    make = resolve("backend", config.backend, BACKENDS, has_arguments=True)
    made: Backend = call("backend", make, config.backend_options, ref=config.backend, launch=launch)
    check_backend(config.backend, made)
    return made


def _asked_by_supervisor(launch: Launch) -> Callable[[int], bool]:
    """Return what says after a step whether the supervisor asked the run to end there."""
    request = stop_request(os.environ)
    if request is None:
        return lambda step: False
    is_chief, is_alone = launch.process_index == 0, launch.process_count == 1
    return partial(request.stops_after, is_chief=is_chief, is_alone=is_alone)


def _meet(place: Place, folder: Path) -> Meeting:
    signals: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda received, _: signals.append(received))
    secret = shared_secret(folder, os.environ) if place.count > 1 else b""
    meeting = Meeting(place, code_hash(), signals, secret)
    if place.index == 0 and place.count > 1:
        forget(folder)
    return meeting


def _is_ours(error: BaseException) -> bool:
    """Whether this project, not a library, raised the error: its message is for the user."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return module.split(".")[0] in ("tfunet", "tf_native", "hvd")


def _end_with(work: Callable[[], None]) -> NoReturn:
    """Do the work, and end the process with a documented exit code."""
    show_messages_safely()
    dump_stacks_when_asked()
    pin_and_limit()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    code = exit_codes.OK
    try:
        work()
    except BaseException as error:  # Also SystemExit: a run that leaves early has no result.
        code = exit_codes.of_error(error) or exit_codes.PROCESS_DIED
        is_explained = _is_ours(error) and isinstance(error, ConnectionError)
        # The supervisor says it, and how to go on.
        is_told = code == exit_codes.STOPPED and LAUNCH_VARIABLE in os.environ
        memory_line = out_of_memory(error)
        is_unknown = code == exit_codes.PROCESS_DIED or not _is_ours(error)
        if is_unknown and not is_explained and not memory_line:
            print(lines_of(traceback.format_exc()), end="", file=sys.stderr)
        if memory_line:
            print(f"error: {memory_line}", file=sys.stderr)
        elif is_explained or (code != exit_codes.PROCESS_DIED and not is_told):
            print(f"error: {lines_of(error)}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: after an error the libraries' clean-up waits for processes that are gone.
    os._exit(code)


if __name__ == "__main__":
    _end_with(_work_as_recorded)
