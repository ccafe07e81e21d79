"""A callback that holds a run after a step, and says which processes a signal reached there."""

import os
import signal
import time
from pathlib import Path

import keras


class HoldAt(keras.callbacks.Callback):
    """Wait at the end of a step, counted from the start of the process, while `file` is there."""

    def __init__(self, step, file):
        super().__init__()
        self.left, self.file = step, Path(file)

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0 and self.file.exists():
            name = f"{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_PROCID']}"
            told = self.file.with_name(f"told-{name}")
            handlers = {}

            def tell(number, frame):
                handlers[number](number, frame)
                told.touch()

            for number in (signal.SIGTERM, signal.SIGUSR1):
                handlers[number] = signal.signal(number, tell)
            self.file.with_name(f"held-{name}").touch()
            while self.file.exists():
                time.sleep(0.05)
