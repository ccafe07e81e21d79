"""Callbacks that kill their own process at a step, or say what it is doing when it is killed."""

import json
import os
import signal
from pathlib import Path

import keras


def build(*, image_shape, num_classes):
    """The least with all that a checkpoint holds; tracing a U-Net takes each process seconds."""
    image = keras.Input(image_shape)
    features = keras.layers.Conv2D(4, 3, padding="same")(image)
    features = keras.layers.BatchNormalization(synchronized=True)(features)
    return keras.Model(image, keras.layers.Conv2D(num_classes, 3, padding="same")(features))


class KillAt(keras.callbacks.Callback):
    """Kill process TFUNET_TEST_KILL at the end of a step, counted over epochs.

    Process TFUNET_TEST_STOP is stopped by SIGSTOP there.
    """

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        # None under mpirun.
        index = json.loads(os.environ.get("TFUNET_LAUNCH", "{}")).get("process_index")
        index = os.environ.get("TFUNET_PROCESS", index)
        ways = {"TFUNET_TEST_KILL": signal.SIGKILL, "TFUNET_TEST_STOP": signal.SIGSTOP}
        for variable, number in ways.items():
            if self.left == 0 and os.environ.get(variable) == str(index):
                os.kill(os.getpid(), number)


class TellPhase(keras.callbacks.Callback):
    """Keep the process's phase in the file TFUNET_TEST_PHASE-<index>; without it do nothing."""

    def __init__(self, checkpoint_steps):
        super().__init__()
        self.checkpoint_steps = checkpoint_steps
        self.step = 0

    def on_train_begin(self, logs=None):
        self._tell("tracing")

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self._tell(f"step {self.step}")

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.params["steps"]:
            self._tell(f"evaluation after step {self.step}")
        elif self.step % self.checkpoint_steps == 0:
            self._tell(f"saving after step {self.step}")

    def on_epoch_end(self, epoch, logs=None):
        # After the last one it also measures the input and writes the model.
        last = epoch + 1 == self.params["epochs"]
        self._tell("end" if last else f"saving after step {self.step}")

    def _tell(self, phase):
        if prefix := os.environ.get("TFUNET_TEST_PHASE"):
            index = json.loads(os.environ["TFUNET_LAUNCH"])["process_index"]
            path = Path(f"{prefix}-{index}")
            path.with_name(f"{path.name}.new").write_text(phase)
            path.with_name(f"{path.name}.new").replace(path)
