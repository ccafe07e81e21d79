"""What to say where a device has no memory left. Imports no TensorFlow."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

OOM = re.compile(r"OOM when allocating tensor with shape(\S+) and type (\w+)")
OF_SUPPORT = "Large-model support: "
WITHOUT_SUPPORT = (
    "Try swap = 'auto', or with it a smaller share, swap = '0.5'; a smaller patch or replica_batch "
    "takes less too."
)


def out_of_memory(error: BaseException) -> str | None:
    """Return what to say where TensorFlow's memory is full; None of any other error.

    Where large-model support has put a note on the error, it is that note which says what helps.
    """
    # By its name: a process that fails early has not loaded TensorFlow.
    if type(error).__name__ != "ResourceExhaustedError":
        return None
    # Of many lines of nodes and hints.
    if tensor := OOM.search(str(error)):
        what = f"no room for a tensor of {tensor[1]}, {tensor[2]}"
    elif "allocate memory" in str(error):
        what = "no room for a batch"
    else:
        return None
    notes = _notes_of_support(error)
    return f"out of memory: {what}. {notes[-1] if notes else WITHOUT_SUPPORT}"


@contextmanager
def noting(swap: str | None) -> Iterator[None]:
    """Note, on an error of full memory from inside, that there is support with the budget `swap`.

    Not where the step that failed has noted more; None is no support.
    """
    try:
        yield
    except BaseException as error:
        if swap is not None and out_of_memory(error) and not _notes_of_support(error):
            error.add_note(
                f"{OF_SUPPORT}swap = {swap!r} is on, and this was outside of the steps that it has "
                "planned, or before it had: while data is read, say. A smaller patch or "
                "replica_batch, fewer filters or precision = 'mixed_bfloat16' would help."
            )
        raise


def _notes_of_support(error: BaseException) -> list[str]:
    return [one for one in getattr(error, "__notes__", ()) if one.startswith(OF_SUPPORT)]
