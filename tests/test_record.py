"""The run folder: whole files or none, whole rows or none, and messages that name the file."""

import json
import signal

import numpy as np
import pytest
from written import names, python

from tfunet import exit_codes
from tfunet.config.run import RunConfig
from tfunet.files.atomic import WriteError, replacing
from tfunet.files.table import read_rows
from tfunet.record import RunFolder, epoch_columns


def test_epoch_columns_have_dice_and_iou_of_every_region():
    columns = epoch_columns(["core", "whole"])
    assert columns[8:11] == ("dataset_dice", "dataset_dice_core", "dataset_dice_whole")
    assert columns[11:14] == ("dataset_iou", "dataset_iou_core", "dataset_iou_whole")
    assert not any("dice" in name for name in epoch_columns([], ["mass"]))
    assert columns[:4] == ("epoch", "steps", "loss", "val_loss")
    assert columns[4:8] == ("dice_core", "dice_whole", "iou_core", "iou_whole")
    assert columns[-3:] == ("weights_hash", "samples_hash", "dropped_samples")


def test_run_is_done_when_its_result_is_there(tmp_path):
    folder = RunFolder(tmp_path / "logs" / "study" / "trial")
    folder.create()
    assert not folder.is_done()
    assert folder.read_result() is None
    folder.write_failure("process 1 of 2 was killed by SIGKILL", 3, 1)
    assert folder.read_failure()["process"] == 1
    folder.write_result({"loss": np.float32(0.5), "steps": np.int64(3), "dice": {"cell": 0.25}})
    assert folder.is_done()
    assert folder.read_failure() is None
    assert folder.read_result() == {
        "schema_version": 1,
        "loss": 0.5,
        "steps": 3,
        "dice": {"cell": 0.25},
    }


def test_each_file_comes_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    assert (folder.read_config(), folder.read_split()) == (None, None)
    config = RunConfig(patch=(64, 64), backend="horovod", num_replicas=2)
    folder.write_config(config)
    folder.write_env({"python": "3.11"})
    folder.write_split({"train": ["a", "b"], "validation": ["c"]})
    assert folder.read_config() == config
    assert json.loads((tmp_path / "env.json").read_text()) == {"python": "3.11"}
    assert folder.read_split() == {"train": ["a", "b"], "validation": ["c"]}
    # A case id with a comma stays one value.
    case = {"epoch": 1, "case": "a,b", "region": "cell"}
    counts = {"true_positive": 1, "false_positive": 2, "false_negative": 3}
    folder.write_cases([{**case, **counts}])
    assert read_rows(tmp_path / "cases.csv") == [
        {name: str(value) for name, value in {**case, **counts}.items()}
    ]


def test_a_run_that_ended_before_its_first_step_begins_with_other_settings(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(RunConfig(model="unett"))
    folder.write_failure("Unknown model", 2)
    folder.begin(RunConfig(model="unet"))
    assert folder.read_config() == RunConfig(model="unet")
    folder.write_failure("interrupted", 130)
    with folder.steps_table():
        pass
    with pytest.raises(ValueError, match="other settings"):
        folder.begin(RunConfig(model="isensee"))


def test_folder_of_other_settings_is_refused_naming_them(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config(RunConfig(epochs=3))
    folder.write_config(RunConfig(epochs=3))
    words = r"other settings: epochs=4 \(there: 3\)\. Choose another folder with --out\.$"
    with pytest.raises(ValueError, match=words):
        folder.write_config(RunConfig(epochs=4))
    # With its weights, another run can go on.
    weights = tmp_path / "model.keras"
    weights.touch()
    words = rf"To begin there with the weights of this run, also give --initial_weights {weights}$"
    with pytest.raises(ValueError, match=words):
        folder.write_config(RunConfig(epochs=3, learning_rate=0.5))
    folder.write_result({})
    with pytest.raises(ValueError, match=rf"holds a finished run\. .*{words}"):
        folder.begin(RunConfig(epochs=2))
    assert folder.read_config() == RunConfig(epochs=3)


def test_a_finished_run_whose_rate_fell_to_0_takes_no_more_epochs(tmp_path):
    folder = RunFolder(tmp_path)
    config = RunConfig(epochs=2, learning_rate_schedule="cosine")
    folder.begin(config)
    folder.write_result({})
    with pytest.raises(ValueError, match="its learning rate fell to 0, so it cannot be trained"):
        folder.begin(RunConfig(epochs=3, learning_rate_schedule="cosine"))
    assert folder.is_done()


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"steps": 100}, {"steps": 120}, r"It ended after steps = 100, .*only runs of epochs can"),
        ({"steps": 100}, {"epochs": 50}, r"It ended after steps = 100, .*only runs of epochs can"),
        ({"epochs": 2}, {"epochs": 2, "steps": 9}, "To train it further, give more epochs"),
        ({"epochs": 2}, {"epochs": 1}, "To train it further, give more epochs"),
    ],
)
def test_how_a_finished_run_goes_on_is_said(tmp_path, before, now, words):
    folder = RunFolder(tmp_path)
    folder.begin(RunConfig(**before))
    assert not folder.has_done(RunConfig(**before))
    folder.write_result({})
    assert folder.has_done(RunConfig(**before))
    assert not folder.has_done(RunConfig(**now))
    with pytest.raises(ValueError, match=f"holds a finished run. {words}"):
        folder.begin(RunConfig(**now))
    assert folder.is_done()


def test_a_run_of_a_version_without_a_key_goes_on(tmp_path):
    folder = RunFolder(tmp_path)
    older = json.loads(RunConfig(epochs=3).to_json())
    del older["time_parts"]
    (tmp_path / "config.json").write_text(json.dumps(older))
    folder.write_config(RunConfig(epochs=3))
    with pytest.raises(ValueError, match=r"time_parts=True \(there: False\)"):
        folder.write_config(RunConfig(epochs=3, time_parts=True))


def test_unfinished_run_may_go_on_with_another_number_of_replicas(tmp_path):
    folder = RunFolder(tmp_path)
    two, three = (RunConfig(num_replicas=count, global_batch=12) for count in (2, 3))
    folder.write_config(two)
    folder.write_config(three)
    assert folder.read_config() == three
    hint = r"To go on with num_replicas=2, give global_batch=12\."
    with pytest.raises(ValueError, match=rf"global_batch=8 .there: 12.*{hint}"):
        folder.write_config(RunConfig(num_replicas=2, replica_batch=4))
    with pytest.raises(ValueError, match=r"backend='horovod' \(there: 'single'\)"):
        folder.write_config(RunConfig(num_replicas=2, global_batch=12, backend="horovod"))
    folder.write_result({})
    with pytest.raises(ValueError, match=r"num_replicas=2 \(there: 3\)"):
        folder.write_config(two)


STAGES = {"stages": 2}


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({"split": (2, 1)}, {}, None),
        ({}, {"split": (1, 2)}, None),
        ({**STAGES, "balance": ("second",), "recompute": True}, {}, None),
        ({}, {**STAGES, "schedule": "v"}, None),
        # The batch would be cut into other parts.
        ({**STAGES, "micro_batches": 2}, {}, r"micro_batches=1 \(there: 2\)"),
        ({"tiling": (2, 1)}, {"tiling": (1, 2)}, r"tiling=\[1, 2\] \(there: \[2, 1\]\)"),
        ({"tiling": (2, 1)}, {}, r"tiling=\[\] \(there: \[2, 1\]\)"),
        # The moving statistics would follow others.
        (
            {**STAGES, "batch_norm": "deferred"},
            STAGES,
            r"batch_norm='micro_batch' \(there: 'deferred'\)",
        ),
    ],
)
def test_parts_that_change_no_result_may_change_when_a_run_goes_on(before, now, message, tmp_path):
    folder = RunFolder(tmp_path)
    before, now = (RunConfig(backend="horovod", **given) for given in (before, now))
    folder.write_config(before)
    if message is None:
        folder.write_config(now)
        assert folder.read_config() == now
    else:
        with pytest.raises(ValueError, match=message):
            folder.write_config(now)


def test_learning_rate_that_follows_the_replicas_ties_a_run_to_their_number(tmp_path):
    folder = RunFolder(tmp_path)
    scaled = {"global_batch": 12, "scale_learning_rate": True}
    folder.write_config(RunConfig(num_replicas=2, **scaled))
    with pytest.raises(ValueError, match=r"num_replicas=3 \(there: 2\)"):
        folder.write_config(RunConfig(num_replicas=3, **scaled))


def test_tuple_among_the_options_is_no_other_setting(tmp_path):
    for _ in range(2):
        RunFolder(tmp_path).write_config(RunConfig(model_options={"filters": (8, 16)}))


def test_log_is_continued_after_an_earlier_attempt(tmp_path):
    for text in (b"one\n", b"two\n"):
        with RunFolder(tmp_path).open_log(1) as log:
            log.write(text)
    assert (tmp_path / "log-1.txt").read_text() == "one\ntwo\n"


HOLDER = """
import sys, time
from pathlib import Path
from tfunet.record import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("ready", flush=True)
    time.sleep(600)
"""


def test_second_run_in_a_folder_is_refused_until_the_first_is_dead(tmp_path):
    folder = RunFolder(tmp_path)
    assert not folder.is_locked()
    holder = python(HOLDER, tmp_path)
    holder.stdout.readline()
    assert folder.is_locked()
    message = f"in use by process {holder.pid} on .*Wait until it ends"
    with pytest.raises(ValueError, match=message), folder.locked():
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert not folder.is_locked()
    with folder.locked():
        assert folder.is_locked()
    assert names(tmp_path) == []


def test_refused_run_keeps_its_hands_off_the_first_ones_files(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(), replacing(tmp_path / "a") as partial:
        partial.write_text("x")
        with pytest.raises(ValueError, match="in use"), folder.locked():
            pass
        assert partial.exists()
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), 2),
        (WriteError("x"), 5),
        (KeyboardInterrupt(), 130),
        (OSError("x"), None),  # A file that cannot be read is the data's business: ValueError.
        (RuntimeError("x"), None),
    ],
)
def test_exit_code_of_an_error(error, code):
    assert exit_codes.of_error(error) == code


def test_result_that_is_no_number_is_an_error_and_no_file(tmp_path):
    with pytest.raises(TypeError, match="neither a number nor text"):
        RunFolder(tmp_path).write_result({"loss": object()})
    assert names(tmp_path) == []


def test_json_of_a_diverged_run_can_be_read(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_result({"loss": float("nan")})
    assert np.isnan(folder.read_result()["loss"])
    assert json.loads((tmp_path / "result.json").read_text())["schema_version"] == 1
