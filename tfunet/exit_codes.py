"""What the exit code of every tfunet command means. Imports no TensorFlow."""

from tfunet.files.atomic import WriteError

OK = 0
BAD_INPUT = 2  # Usage, configuration or data.
PROCESS_DIED = 3
CHECK_FAILED = 4  # The run finished, but a check of its correctness did not hold.
NOT_WRITTEN = 5  # No permission, or a full disk.
SLOWER = 6  # tfunet compare: a cell of the second sweep is slower, beyond the tolerance.
CANNOT_TELL = 7  # tfunet compare: none is, but a cell has too few good repeats for a verdict.
# Not 1, as of diff: with that Python ends where nobody foresaw an error.
DIFFERENT = 8  # tfunet swap diff: the plans do not do the same.
STOPPED = 75  # sysexits' "try again": a signal of SLURM's; the checkpoint has all that was done.
INTERRUPTED = 130  # Ctrl-C.
TERMINATED = 143  # SIGTERM, or the terminal went away.

# A process of a run ends with one of these on purpose; with anything else, it died.
ON_PURPOSE = (BAD_INPUT, CHECK_FAILED, NOT_WRITTEN)


class CheckFailedError(RuntimeError):
    """A run computed something else than it should have; its result must not be used."""


class StoppedError(RuntimeError):
    """A run ended before its last step, on a signal, with a checkpoint to go on from."""


def of_error(error: BaseException) -> int | None:
    """Return the exit code that an error stands for; None for one nobody foresaw."""
    if isinstance(error, WriteError):
        return NOT_WRITTEN
    if isinstance(error, CheckFailedError):
        return CHECK_FAILED
    if isinstance(error, StoppedError):
        return STOPPED
    if isinstance(error, ValueError):
        return BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return None
