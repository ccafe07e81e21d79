"""One process of our loop gives the losses of `model.fit` with the same batches."""

import keras
import numpy as np
import pytest
from paths import SUPPORT

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.data.cache import build_cache
from tfunet.data.generated.phantoms import cells
from tfunet.data.pipeline import TrainingPipeline
from tfunet.data.split import split_cases
from tfunet.learning import losses, optimizers
from tfunet.loop import run
from tfunet.models.make import make_model
from tfunet.single_device import SingleDevice

SETTINGS = {
    "data_options": {"num_cases": 25, "size": 32},
    "replica_batch": 4,
    "steps": 20,
    "learning_rate": 0.01,
    "warmup_epochs": 1,
    "metrics": ("sparse_categorical_accuracy",),
    "evaluate_every": 10,
}


class Losses(keras.callbacks.Callback):
    """Keeps the running mean of the loss after every step, and what each epoch ends with."""

    def __init__(self):
        super().__init__()
        self.steps = []
        self.epochs = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(float(logs["loss"]))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append({key: logs[key] for key in logs if not key.startswith("val_")})


def fit(config, cache):
    source = cells(**config.data_options)
    train = split_cases(source, seed=config.split_seed).train
    pipeline = TrainingPipeline(
        cases=build_cache(source, cache, patch=source.patch),
        train=train,
        last_step=config.steps,
        replica_batch=config.replica_samples,
        seed=config.seed,
    )
    keras.utils.set_random_seed(config.seed)
    model = make_model(
        config.model,
        image_shape=(*source.patch, source.channels),
        num_classes=source.num_classes,
        options=config.model_options,
    )
    model.compile(
        optimizer=optimizers.make(config, 1, pipeline.steps_per_epoch),
        loss=losses.make(config.loss, {}),
        metrics=list(config.metrics) or None,
        jit_compile=False,
    )
    losses_of_fit = Losses()
    model.fit(
        pipeline(range(1)).map(lambda batch: (batch["image"][0], batch["mask"][0])),
        epochs=config.steps // pipeline.steps_per_epoch,
        steps_per_epoch=pipeline.steps_per_epoch,
        verbose=0,
        callbacks=[losses_of_fit],
    )
    return model, losses_of_fit


@pytest.mark.parametrize(
    "model",
    [
        {"model": "unet", "model_options": {"filters": 4, "levels": 1, "dropout": 0.1}},
        {
            "model": f"{SUPPORT / 'own_step.py'}:build",
            "metrics": (),
            "pipeline": "device",
        },
    ],
    ids=["keras train_step", "own train_step, augmented on the device"],
)
def test_losses_of_20_steps_are_those_of_fit(model, tmp_path):
    config = RunConfig(**{**SETTINGS, **model}, cache_dir=str(tmp_path / "cache"))
    fitted, theirs = fit(config, tmp_path / "cache")
    ours = Losses()
    run(config, SingleDevice(Launch()), tmp_path / "run", callbacks=[ours])
    assert len(ours.steps) == 20
    np.testing.assert_allclose(ours.steps, theirs.steps, rtol=0, atol=1e-6)
    for our_logs, their_logs in zip(ours.epochs, theirs.epochs, strict=True):
        assert {key: our_logs[key] for key in their_logs} == pytest.approx(their_logs, abs=1e-6)
    again = keras.models.load_model(tmp_path / "run/model.keras")
    for our_weight, their_weight in zip(again.get_weights(), fitted.get_weights(), strict=True):
        np.testing.assert_allclose(our_weight, their_weight, rtol=0, atol=1e-6)
