"""A Keras callback that has TensorFlow and the backend profile a few steady steps of a run."""

import contextlib
import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.timing.stamps import Note
from tfunet.timing.xplane import CLOCK

# Before them lie the step that traces, and those that take what was made ahead.
FIRST_STEP = 4
PROFILED_STEPS = 5


@final
class Profile(keras.callbacks.Callback):
    """Writes TensorFlow's profile of this process, as TensorBoard's profile page reads it.

    `folder` is of this process alone, since TensorFlow names files by host and second.
    `backends_own` returns the context in which the backend writes a profile of its own there.
    `note` is told when the profile was taken: TensorFlow's times count from its begin.
    """

    def __init__(
        self,
        folder: Path,
        backends_own: Callable[[Path], AbstractContextManager[Any]],
        note: Note,
    ) -> None:
        super().__init__()
        self._folder = folder
        self._backends_own = backends_own
        self._note = note
        # No plain numbers: a checkpoint would keep them, and a resumed run is profiled anew.
        self._steps = itertools.count(1)
        self._session = contextlib.ExitStack()
        self._last = [0]

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._last[0] = next(self._steps)
        if self._last[0] == FIRST_STEP:
            self._folder.mkdir(parents=True, exist_ok=True)
            tf.profiler.experimental.start(str(self._folder))
            # By this event TensorFlow's clock, which counts from somewhere in `start`, is set.
            begin = time.time()
            with tf.profiler.experimental.Trace(CLOCK):
                pass
            self._session.callback(lambda: self._note("profile", begin, time.time()))
            self._session.callback(tf.profiler.experimental.stop)
            self._session.enter_context(self._backends_own(self._folder))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._last[0] == FIRST_STEP + PROFILED_STEPS - 1:
            self.stop()

    def stop(self) -> None:
        """End the profile, where the run ended before it had all its steps."""
        self._session.close()
        if 0 < self._last[0] < FIRST_STEP:
            print(f"Nothing was profiled: that begins with step {FIRST_STEP} of a run.", flush=True)
