"""The exit codes of tfunet commands. Imports no TensorFlow."""

import traceback

from tfunet.files.atomic import WriteError
from tfunet.files.server import RemoteError

OK = 0
BAD_INPUT = 2  # Usage, configuration or data.
PROCESS_DIED = 3
CHECK_FAILED = 4  # The run finished, but a check of its correctness did not hold.
NOT_WRITTEN = 5  # No permission to write, or a full disk.
SLOWER = 6  # tfunet compare: a cell of the second sweep is slower than the tolerance allows.
CANNOT_TELL = 7  # tfunet compare: none is slower, but a cell has too few repeats to tell.
# Not 1, the exit code of diff: Python ends with 1 after any unexpected error.
DIFFERENT = 8  # tfunet swap diff: the plans differ.
STOPPED = 75  # "Try again" in sysexits.h: SLURM stopped the run, which has a checkpoint.
INTERRUPTED = 130  # Ctrl-C.
TERMINATED = 143  # SIGTERM, or the terminal was closed.

# A process of a run that ends with another code has died.
ON_PURPOSE = (BAD_INPUT, CHECK_FAILED, NOT_WRITTEN)


class CheckFailedError(RuntimeError):
    """A run computed something wrong; its result must not be used."""


class StoppedError(RuntimeError):
    """A signal ended a run before its last step; it can go on from a checkpoint."""


CODES: dict[type[BaseException], int] = {
    WriteError: NOT_WRITTEN,
    CheckFailedError: CHECK_FAILED,
    StoppedError: STOPPED,
    ValueError: BAD_INPUT,
    RemoteError: BAD_INPUT,
    KeyboardInterrupt: INTERRUPTED,
}


def of_error(error: BaseException) -> int | None:
    """Return the exit code for an error; None for an unexpected one."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), None)


def is_ours(error: BaseException) -> bool:
    """Whether this project, not a library, raised the error: its message is for the user."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return module.split(".")[0] in ("tfunet", "tf_native", "hvd")
