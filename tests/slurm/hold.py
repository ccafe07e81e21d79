"""A callback that holds a run after a step, so that a test can do something to it there."""

import os
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
            name = f"held-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_PROCID']}"
            self.file.with_name(name).touch()
            while self.file.exists():
                time.sleep(0.05)
