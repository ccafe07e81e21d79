"""A callback that kills its own process at a step, if the environment names that process."""

import json
import os
import signal

import keras


class KillAt(keras.callbacks.Callback):
    """Kill process TFUNET_TEST_KILL by SIGKILL at the end of a step, counted over epochs."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        index = json.loads(os.environ["TFUNET_LAUNCH"])["process_index"]
        if self.left == 0 and os.environ.get("TFUNET_TEST_KILL") == str(index):
            os.kill(os.getpid(), signal.SIGKILL)
