"""Keras callbacks of a run that goes on judge as they did before."""

import keras
import pytest

from tfunet.arguments import from_dict
from tfunet.backend import Launch
from tfunet.loop import run
from tfunet.single_device import SingleDevice
from tfunet.training.callbacks import changed, restore_state, state_of


@pytest.mark.parametrize(
    ("mode", "values"), [("min", [1.0, 0.9, 0.2, 0.3]), ("max", [1.0, 1.1, 1.8, 1.7])]
)
def test_the_least_improvement_is_the_same_after_a_resume(mode, values):
    """By 0.5: the third value is better than the first, and no other is."""

    def stopping():
        made = keras.callbacks.EarlyStopping("val_x", min_delta=0.5, patience=9, mode=mode)
        made.on_train_begin()
        return made

    whole, waits = stopping(), []
    for epoch, value in enumerate(values):
        whole.on_epoch_end(epoch, {"val_x": value})
        waits.append(whole.wait)
    assert waits == [0, 1, 0, 1]
    for first in range(1, len(values)):
        part = stopping()
        for epoch, value in enumerate(values):
            if epoch == first:
                before, part = part, stopping()
                restore_state(part, state_of(before))
            part.on_epoch_end(epoch, {"val_x": value})
            assert part.wait == waits[epoch]
        assert part.best == whole.best


def test_settings_are_those_of_the_new_attempt():
    """As those of a run whose folder was moved."""

    def keeping(folder):
        made = keras.callbacks.ModelCheckpoint(
            f"{folder}/best.keras", "val_x", save_best_only=True, mode="max"
        )
        made.on_train_begin()
        return made

    first = keeping("/before")
    fresh = state_of(first)
    first.best, first.epochs_since_last_save = 0.7, 2
    state = changed(state_of(first), fresh)
    assert state == {"best": 0.7, "epochs_since_last_save": 2}
    again = keeping("/after")
    restore_state(again, state)
    assert (again.filepath, again.best) == ("/after/best.keras", 0.7)


def test_an_epoch_without_evaluation_is_no_reason_to_warn(tmp_path, recwarn):
    names = ("ModelCheckpoint", "EarlyStopping", "ReduceLROnPlateau")
    callbacks = [{"name": name, "monitor": "val_dice", "mode": "max"} for name in names]
    callbacks[0] |= {"save_best_only": True, "filepath": "{folder}/best.keras"}
    config = from_dict(
        {
            "data": "cells",
            "data_options": {"num_cases": 4, "size": 32},
            "model_options": {"filters": 2, "levels": 1},
            "global_batch": 3,
            "epochs": 2,
            "evaluate_every": 2,
            "callbacks": callbacks,
            "cache_dir": str(tmp_path / "cache"),
        }
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    assert (tmp_path / "run/best.keras").exists()
    assert [str(each.message) for each in recwarn if "available" in str(each.message)] == []
