"""One process of a run, started by the supervisor, srun or mpirun.

`python -m tfunet.worker FOLDER` runs what the folder's config.json describes. Under mpirun or srun,
`tfunet train` comes here too.
"""

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tfunet import exit_codes
from tfunet.config import trust
from tfunet.config.run import RunConfig
from tfunet.connection import LAUNCH_VARIABLE, connect, make_backend
from tfunet.data.read_failure import raise_read_failure
from tfunet.machine.cores import pin_and_limit
from tfunet.machine.cpu_memory import cap_variables
from tfunet.machine.environment import DEFAULTS
from tfunet.parallel.mesh import Mesh
from tfunet.process.full_memory import noting, out_of_memory
from tfunet.process.launcher_variables import Place, find_place
from tfunet.process.start_up import short_start
from tfunet.process.terminal import lines_of, show_messages_safely
from tfunet.process.watchdog import dump_stacks_when_asked, pulse_to_supervisor
from tfunet.record import RunFolder


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
    own = connect(config, config.hang_seconds, path, pulse_to_supervisor(), is_saved=True)
    mesh = Mesh(groups=config.num_replicas, split=config.split, stages=config.stages)
    launch = replace(
        own.launch,
        is_profiled=config.profile,
        pairs=tuple(mesh.pairs) if config.stages > 1 and mesh.is_split else (),
    )
    os.environ.update(cap_variables(config.cpu_memory))
    with short_start():
        from tfunet.loop import run

    backend = make_backend(config, config, launch)
    try:
        with noting(config.swap):
            run(config, backend, path, stops_after=own.stops_after, begin=own.begin)
    except exit_codes.StoppedError:
        # When a process ends with this exit code, SLURM kills the others. So only the chief ends
        # with it, after the others.
        if launch.process_index == 0:
            if own.meeting is not None:
                own.meeting.await_end()
            raise
    except Exception as error:
        raise_read_failure(error)
        # What TensorFlow and Horovod say of a lost process is long, and does not name it.
        if exit_codes.of_error(error) or out_of_memory(error) or not (lost := own.lost()):
            raise
        raise ConnectionError(
            f"{lost} The same command goes on from the last checkpoint."
        ) from None


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
        is_explained = exit_codes.is_ours(error) and isinstance(error, ConnectionError)
        # The supervisor says it, and how to go on.
        is_told = code == exit_codes.STOPPED and LAUNCH_VARIABLE in os.environ
        memory_line = out_of_memory(error)
        is_unknown = code == exit_codes.PROCESS_DIED or not exit_codes.is_ours(error)
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
