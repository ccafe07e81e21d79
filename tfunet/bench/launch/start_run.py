"""Starts a run, for the command line and for Python, after all checks. No TensorFlow."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tfunet import exit_codes
from tfunet.arguments import check_names
from tfunet.backend import check_callbacks
from tfunet.bench.launch.launch_run import launch
from tfunet.bench.launch.processes_to_start import plan_processes
from tfunet.bench.launch.supervisor import RunOutcome
from tfunet.config.run import RunConfig
from tfunet.connection import own_place
from tfunet.data.early_checks import check_early
from tfunet.machine.cores import usable_cores
from tfunet.machine.doctor import check_installed
from tfunet.process.launcher_variables import Place
from tfunet.process.terminal import lines_of
from tfunet.record import RunFolder

RUNS = Path("logs") / "runs"


def new_folder(parent: Path = RUNS) -> Path:
    """Return the folder for the record of a run that names none."""
    return parent / time.strftime("%Y%m%d-%H%M%S")


def start_run(
    config: RunConfig, folder: Path, join: Callable[[Place], None], *, verbose: bool = False
) -> RunOutcome | str:
    """Run `config` in `folder`, and return how it ended, or in words that it was done before.

    Args:
        config: The run.
        folder: Folder of its record, which may hold a checkpoint, or the finished run.
        join: Does what is to be done where srun, mpirun or another launcher started several
            processes, of which this is one, at its place.
        verbose: Show the output of all processes.

    Raises ValueError, or DefectsError, for what keeps the run from starting here.
    """
    check_names(config)
    check_callbacks(config)
    if RunFolder(folder).has_done(config):
        is_fixed = config.steps is not None or config.learning_rate_schedule is not None
        return "Done already." + ("" if is_fixed else " To train it further, give more --epochs.")
    place = own_place()
    check_installed(config.backend)
    if place is None:
        plan_processes(config, usable_cores())  # Refuses what has no place, before data is read.
    check_early(config, goes_on=RunFolder(folder).has_checkpoint())
    if place is not None and place.count > 1:
        join(place)
    outcome = launch(config, folder, verbose=verbose)
    if outcome.exit_code == exit_codes.OK and not RunFolder(folder).is_done():
        reason = f"the processes ended without a result; see {folder}"
        print(lines_of(f"error: {reason}"), file=sys.stderr)
        return RunOutcome(exit_codes.PROCESS_DIED, reason)
    return outcome
