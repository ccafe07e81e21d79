"""The message when a device runs out of memory. Imports no TensorFlow."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

OOM = re.compile(r"OOM when allocating tensor with shape(\S+) and type (\w+)")
NODE = re.compile(r"\{\{node (\S+?)\}\}")
OF_SUPPORT = "Large-model support: "
OF_WEIGHTS = "The weights "
# Begins a note on an error of a network in stages: which stage failed.
OF_STAGE = "error: stage "
WITHOUT_SUPPORT = (
    "Try swap = 'auto', or with it a smaller share, swap = '0.5'; a smaller patch or replica_batch "
    "takes less too. stages = 2 shares the network among two devices; split shares each sample, as "
    "[2, 1] for images and [2, 1, 1] for volumes."
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
    if stages := _notes(error, OF_STAGE):
        what += f" in {stages[0].removeprefix('error: ').partition(' failed')[0]}"
    elif node := NODE.search(str(error)):
        what += f", at {node[1]}"
    advice = _notes(error, OF_WEIGHTS) or _notes(error, OF_SUPPORT)
    return f"out of memory: {what}. {advice[-1] if advice else WITHOUT_SUPPORT}"


@contextmanager
def weighing(
    weight_bytes: int | None, optimizer: str = "", limit: int | None = None
) -> Iterator[None]:
    """Add a note to errors of full memory where the weights alone do not fit.

    Args:
        weight_bytes: The weights, without their gradients and what the optimizer keeps of them;
            None while they are made.
        optimizer: Its name.
        limit: The memory of the device; None if it is not known.
    """
    try:
        yield
    except BaseException as error:
        words = "alone do not fit"
        if weight_bytes is not None:
            # Gradients are as large, and most optimizers keep two numbers of each weight.
            whole = weight_bytes * (2 if optimizer == "sgd" else 4)
            words = (
                ""
                if limit is None or whole <= limit
                else (
                    f"take {weight_bytes / 2**20:,.0f} MiB, with their gradients and what the "
                    f"optimizer {optimizer!r} keeps {whole / 2**20:,.0f} MiB, and there are "
                    f"{limit / 2**20:,.0f} MiB"
                )
            )
        if words and out_of_memory(error):
            error.add_note(
                f"{OF_WEIGHTS}{words}, whatever the patch and the batch. stages = 2 shares them "
                "among two devices; a smaller network has fewer, and optimizer = 'sgd' keeps less."
            )
        raise


@contextmanager
def noting(swap: str | None) -> Iterator[None]:
    """Add a note about large-model support with the budget `swap` to errors of full memory.

    Adds none if the failed step has added its own, or if `swap` is None: no support.
    """
    try:
        yield
    except BaseException as error:
        if swap is not None and out_of_memory(error) and not _notes(error, OF_SUPPORT):
            error.add_note(
                f"{OF_SUPPORT}swap = {swap!r} is on, but the memory ran out outside of the planned "
                "steps or before planning, for example while data is read. A smaller patch or "
                "replica_batch, fewer filters or precision = 'mixed_bfloat16' would help."
            )
        raise


def _notes(error: BaseException, begin: str) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if note.startswith(begin)]
