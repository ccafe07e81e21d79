"""What is checked before a run starts, from the command line and from Python. No TensorFlow."""

import time
from pathlib import Path

from tfunet.arguments import check_names
from tfunet.backend import check_callbacks
from tfunet.bench.launch.processes_to_start import plan_processes
from tfunet.config.run import RunConfig
from tfunet.data.early_checks import check_early
from tfunet.machine.cores import usable_cores
from tfunet.machine.doctor import check_installed
from tfunet.record import RunFolder

RUNS = Path("logs") / "runs"


def new_folder() -> Path:
    """Return the folder for the record of a run that names none."""
    return RUNS / time.strftime("%Y%m%d-%H%M%S")


def done_already(config: RunConfig, folder: Path | None) -> str:
    """Return that the folder holds exactly this run, finished, and what then; "" if it does not.

    Raises ValueError for names in the configuration that do not exist.
    """
    check_names(config)
    check_callbacks(config)
    if folder is None or not RunFolder(folder).has_done(config):
        return ""
    is_fixed = config.steps is not None or config.learning_rate_schedule is not None
    return "Done already." + ("" if is_fixed else " To train it further, give more --epochs.")


def check_start(config: RunConfig, folder: Path | None, *, is_placed: bool) -> None:
    """Raise ValueError, or DefectsError, for what keeps the run from starting here.

    Args:
        config: The run.
        folder: Folder of its record, which may hold a checkpoint.
        is_placed: Whether a launcher has given this process its place already.
    """
    check_installed(config.backend)
    if not is_placed:
        plan_processes(config, usable_cores())  # Refuses what has no place, before data is read.
    goes_on = folder is not None and RunFolder(folder).has_checkpoint()
    check_early(config, goes_on=goes_on)
