"""Callbacks that monitor scores: names that an epoch has, and which way is better."""

import pytest

from tfunet.config.monitors import check_monitors, with_mode
from tfunet.config.run import RunConfig
from tfunet.data.task import open_task


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [
        ("val_dice", "max"),
        ("val_dice_cell", "max"),
        ("val_iou", "max"),
        ("val_dataset_iou", "max"),
        ("val_dataset_dice_cell", "max"),
        ("val_nsd@1mm_hd", "max"),
        ("val_lesion_f1", "max"),
        ("val_instance_f1@0.7_cell", "max"),
        ("val_panoptic_quality", "max"),
        ("val_loss", "min"),
        ("val_hd95_whole", "min"),
        ("val_hd", "min"),
        ("val_assd", "min"),
        ("val_arand_cell", "min"),
        ("val_vi_split", "min"),
        ("val_vi_merge_cell", "min"),
        ("val_cldice_vessel", "max"),
        ("val_mae_omega_m", "min"),
        # Keras knows these, or nobody does.
        ("loss", None),
        ("accuracy", None),
        ("val_volume_difference", None),
        ("val_hdx", None),
    ],
)
def test_the_mode_follows_from_what_is_monitored(monitor, mode):
    for name in ("EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau"):
        table = {"name": name, "monitor": monitor}
        assert with_mode(table).get("mode") == mode
        assert with_mode({**table, "mode": "auto"}).get("mode") == (mode or "auto")
        assert with_mode({**table, "mode": "min"})["mode"] == "min"
    own = {"name": "mine.py:Stop", "monitor": monitor}
    assert with_mode(own) == own


def callback(monitor, name="EarlyStopping", **options):
    return ({"name": name, "monitor": monitor, **options},)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"callbacks": ({"name": "EarlyStopping"},)}, None),
        ({"callbacks": callback("val_dice")}, None),
        ({"callbacks": callback("val_iou_cell")}, None),
        ({"callbacks": callback("val_dataset_iou")}, None),
        ({"callbacks": callback("val_dataset_dice_cell")}, None),
        ({"callbacks": callback("val_dataset_hd")}, "which no epoch has"),
        ({"callbacks": callback("val_hd95", metrics=()), "metrics": ("hd95",)}, None),
        ({"callbacks": callback("accuracy"), "metrics": ("accuracy",)}, None),
        ({"callbacks": callback("anything", "mine.py:Stop")}, None),
        # A callback of the user's own may add scores, and so may the model.
        ({"callbacks": (*callback("val_x"), {"name": "mine.py:Add"})}, None),
        ({"callbacks": callback("val_x"), "model": "mine.py:build"}, None),
        ({"callbacks": callback("dice")}, "monitors 'dice', which no epoch has. Did you mean 'val"),
        ({"callbacks": callback("val_dice_cel")}, "Did you mean 'val_dice_cell'"),
        ({"callbacks": callback("val_hd95")}, "which no epoch has"),
        ({"callbacks": callback("val_accuracy"), "metrics": ("accuracy",)}, "which no epoch has"),
        ({"callbacks": callback("val_mae", "ModelCheckpoint")}, "which no epoch has"),
        ({"callbacks": callback(3)}, "monitor of EarlyStopping must be a text"),
        (
            {"callbacks": callback("val_volume_difference"), "metrics": ("volume_difference",)},
            "neither more nor less is known to be better",
        ),
    ],
)
def test_what_no_epoch_has_is_refused_before_the_first(settings, message):
    config = RunConfig(data_options={"num_cases": 4, "size": 32}, **settings)
    if message is None:
        open_task(config)
        return
    with pytest.raises(ValueError, match=message):
        open_task(config)


@pytest.mark.parametrize(
    "schedule",
    [{"warmup_epochs": 1.0}, {"decay_epochs": (2,)}, {"learning_rate_schedule": "cosine"}],
)
def test_a_schedule_and_a_callback_that_sets_the_rate_exclude_each_other(schedule):
    callbacks = callback("val_loss", "ReduceLROnPlateau", patience=2)
    check_monitors(RunConfig(callbacks=callbacks), ("cell",), (), has_own_logs=False)
    config = RunConfig(callbacks=callbacks, **schedule)  # Records of such runs can be read.
    with pytest.raises(ValueError, match="ReduceLROnPlateau excludes warmup_epochs"):
        check_monitors(config, ("cell",), (), has_own_logs=False)


def test_numbers_to_predict_have_an_error_each():
    config = RunConfig(callbacks=callback("val_mae_age"))
    check_monitors(config, (), ("age",), has_own_logs=False)
    with pytest.raises(ValueError, match="Known: loss, learning_rate, val_loss, val_mae, val_mae_"):
        check_monitors(config, (), ("size",), has_own_logs=False)
