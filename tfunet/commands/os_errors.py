"""Words for errors of the operating system that nothing else explains. No TensorFlow."""

import errno
import os

from tfunet import exit_codes
from tfunet.files.atomic import TOO_LARGE

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def of_os_error(error: OSError) -> tuple[int | None, str]:
    """Return the exit code and the words for an error; None and "" for one that tells nothing."""
    if not has_working_folder():
        return (
            exit_codes.BAD_INPUT,
            "The folder in which tfunet was started is no longer there. Change to another one.",
        )
    reason = error.strerror or str(error)
    if error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
        if error.errno in FULL:
            advice = TOO_LARGE if error.errno == errno.EFBIG else "Free space there."
            return exit_codes.NOT_WRITTEN, f"Cannot write {name}: {reason}. {advice}"
        return (
            exit_codes.BAD_INPUT,
            f"Cannot use {name!r:.300}: {reason}. Check the name, and the permission to use it.",
        )
    if error.errno in FULL:
        advice = "Free space there, or send the output elsewhere."
        if error.errno == errno.EFBIG:
            advice = TOO_LARGE
        return exit_codes.NOT_WRITTEN, f"Cannot write the output: {reason}. {advice}"
    return None, ""


def has_working_folder() -> bool:
    """Whether the folder in which the command was started is still there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
