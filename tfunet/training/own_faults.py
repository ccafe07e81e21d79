"""Errors that callbacks and optimizers of a user's own raise while a run trains."""

import contextlib
import inspect
import traceback
from collections.abc import Iterator

import keras

from tfunet.config.own_code import OURS, explain

KINDS = {
    "callback": keras.callbacks.Callback,
    "optimizer": keras.Optimizer,
}


@contextlib.contextmanager
def own_faults() -> Iterator[None]:
    """Raise a ValueError, which names the user's line, for an error that arises in their class."""
    try:
        yield
    except (Exception, SystemExit) as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            who = frame.f_locals.get("self")
            kind = next((name for name, base in KINDS.items() if isinstance(who, base)), None)
            if kind is None or type(who).__module__.partition(".")[0] in ("keras", *OURS):
                continue
            file = inspect.getsourcefile(type(who)) or ""
            if frame.f_code.co_filename == file:  # Not in what the class inherits.
                explain(error, f"The {kind} {type(who).__name__!r} raised", file)
        raise
