"""The message when a device runs out of memory. Imports no TensorFlow."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

OOM = re.compile(r"OOM when allocating tensor with shape(\S+) and type (\w+)")
OF_SUPPORT = "Large-model support: "
# Begins a note on an error of a network in stages: which stage failed.
OF_STAGE = "error: stage "
WITHOUT_SUPPORT = (
    "Try swap = 'auto', or with it a smaller share, swap = '0.5'; a smaller patch or replica_batch "
    "takes less too. split = [2, 1] shares each sample among two devices, stages = 2 the network."
)


def out_of_memory(error: BaseException) -> str | None:
    """Return the message for TensorFlow's error of full memory; None for any other error.

    A note of large-model support on the error says what helps.
    """
    # By name, because a process that fails early has not loaded TensorFlow.
    if type(error).__name__ != "ResourceExhaustedError":
        return None
    # The rest of TensorFlow's message is many lines of nodes and hints.
    if tensor := OOM.search(str(error)):
        what = f"no room for a tensor of {tensor[1]}, {tensor[2]}"
    elif "allocate memory" in str(error):
        what = "no room for a batch"
    else:
        return None
    notes = _notes_of_support(error)
    stages = [note for note in getattr(error, "__notes__", ()) if note.startswith(OF_STAGE)]
    if stages:
        what += f" in {stages[0].removeprefix('error: ').partition(' failed')[0]}"
    return f"out of memory: {what}. {notes[-1] if notes else WITHOUT_SUPPORT}"


@contextmanager
def noting(swap: str | None) -> Iterator[None]:
    """Add a note about large-model support with the budget `swap` to errors of full memory.

    Adds none if the failed step has added its own, or if `swap` is None: no support.
    """
    try:
        yield
    except BaseException as error:
        if swap is not None and out_of_memory(error) and not _notes_of_support(error):
            error.add_note(
                f"{OF_SUPPORT}swap = {swap!r} is on, but the memory ran out outside of the planned "
                "steps or before planning, for example while data is read. A smaller patch or "
                "replica_batch, fewer filters or precision = 'mixed_bfloat16' would help."
            )
        raise


def _notes_of_support(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if note.startswith(OF_SUPPORT)]
