"""Trains small models with states of optimizers, or weights too, in host memory or on disk."""

import contextlib

import numpy as np

from tfunet.inside.of_optimizers import applying_by, leaves
from tfunet.state import update
from tfunet.state.home import send_home
from tfunet.state.slots import slots_of
from tfunet.state.update import HostUpdate
from tfunet.swap.storage.limits import Limits
from tfunet.swap.storage.rows import Rows

# What is off the device, and whether the host updates it in chunks.
WAYS = {
    "states": ("states", False),
    "weights": ("weights", False),
    "states in chunks": ("states", True),
    "weights in chunks": ("weights", True),
}
# Room in host memory: all, none, or some of it.
PLACES = {"host": None, "disk": 0, "both": 8000}
SMALL_CHUNK = 1024  # Numbers; a block of a disk.


@contextlib.contextmanager
def away(way, place, folder, variables, *optimizers, least=0):
    """Train with variables, and states of built optimizers, off the device in the block.

    Those of fewer numbers than `least` stay.
    """
    what, in_chunks = WAYS[way]
    rows = Rows(Limits(host_bytes=PLACES[place], folder=folder))
    for variable in variables if what == "weights" else ():
        if np.prod(variable.shape) >= least:
            send_home(variable, rows)
    inner = [each for optimizer in optimizers for each in leaves(optimizer)]
    for optimizer in inner:
        for slots in slots_of(optimizer):
            for slot in slots:
                if np.prod(slot.shape) >= least:
                    send_home(slot, rows)
    with contextlib.ExitStack() as stack:
        if in_chunks:
            for optimizer in inner:
                stack.enter_context(applying_by(optimizer, HostUpdate(optimizer, rows).apply))
        yield rows


@contextlib.contextmanager
def chunks_of(numbers):
    """Have the host update so many numbers at a time in the block."""
    before, update.CHUNK = update.CHUNK, numbers
    try:
        yield
    finally:
        update.CHUNK = before
