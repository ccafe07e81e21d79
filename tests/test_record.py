"""The run folder: whole files or none, whole rows or none, and messages that name the file."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tfunet
from tfunet import exit_codes
from tfunet.config.run import RunConfig
from tfunet.files.atomic import WriteError, replacing, write_atomic
from tfunet.files.table import Table, read_rows
from tfunet.record import RunFolder, epoch_columns

COLUMNS = ("step", "seconds", "loss")


def python(program: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tfunet.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def output_of(program: str, *arguments: object) -> str:
    process = python(program, *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def row(step: int) -> dict[str, object]:
    return {"step": step, "seconds": 0.5, "loss": 1 / step}


# -- atomic files


def write_half(path: Path, then: Callable[[], object]):
    with replacing(path) as partial:
        partial.write_text("half")
        then()


def stop_with(error: type[BaseException]):
    raise error


@pytest.mark.parametrize("content", ["text, über\n", b"\x00\xff", ""])
def test_written_file_replaces_the_old_one_and_leaves_nothing_else(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text("old")
    write_atomic(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(tmp_path) == ["a.json"]


def test_written_file_is_readable_by_others_as_the_umask_says(tmp_path):
    write_atomic(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "b")}
    assert len(modes) == 1


def test_temporary_path_keeps_the_suffix_that_keras_decides_by(tmp_path):
    with replacing(tmp_path / "model.keras") as partial:
        assert partial.suffix == ".keras"
        assert partial.parent == tmp_path
        partial.write_text("x")
    assert names(tmp_path) == ["model.keras"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_while_writing_keeps_the_old_file(tmp_path, error):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error):
        write_half(tmp_path / "a", lambda: stop_with(error))
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_full_disk_keeps_the_old_file_and_names_it(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(WriteError, match=r"Cannot write .*/a: No space left .* Free space"):
        write_half(tmp_path / "a", lambda: Path("/dev/full").write_text("the other half"))
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


LIMITED = """
import resource, sys
from pathlib import Path
from tfunet.files.table import Table
from tfunet.files.atomic import WriteError, write_atomic
path, size = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
"""


def test_file_that_the_disk_cannot_take_leaves_no_half_of_it(tmp_path):
    # The kernel writes the first 5000 bytes and refuses the rest, as a disk that fills up does.
    program = f"""{LIMITED}
try:
    write_atomic(path, "x" * 20000)
except WriteError as error:
    print(error)
"""
    message = output_of(program, tmp_path / "result.json", 5000)
    assert str(tmp_path / "result.json") in message
    assert "Free space there, or choose another folder." in message
    assert names(tmp_path) == []


def test_table_on_a_full_disk_ends_with_a_whole_row(tmp_path):
    program = f"""{LIMITED}
try:
    with Table(path, ("step", "seconds", "loss")) as table:
        for step in range(1, 1000):
            table.append({{"step": step, "seconds": 0.25, "loss": 0.125}})
except WriteError as error:
    print(error)
"""
    path = tmp_path / "steps.csv"
    message = output_of(program, path, 203)
    assert str(path) in message
    assert "Free space" in message
    assert 190 < path.stat().st_size < 203  # The next row would have fitted half.
    assert path.read_text().endswith("\n")
    assert [int(row["step"]) for row in read_rows(path)] == list(range(1, len(read_rows(path)) + 1))


def test_folder_without_permission_is_named(tmp_path):
    # Root may write everywhere, so the writer is somebody else.
    program = """
import os, sys
from pathlib import Path
from tfunet.record import RunFolder
from tfunet.files.table import Table
from tfunet.files.atomic import WriteError, write_atomic
if os.geteuid() == 0:
    os.seteuid(65534)
folder = Path(sys.argv[1])
for write in (
    lambda: write_atomic(folder / "config.json", "x"),
    lambda: Table(folder / "steps.csv", ("step",)),
    lambda: RunFolder(folder / "trial").create(),
    lambda: RunFolder(folder).open_log(0),
    lambda: RunFolder(folder).locked().__enter__(),
):
    try:
        write()
    except WriteError as error:
        print(error)
"""
    tmp_path.chmod(0o555)
    try:
        lines = output_of(program, tmp_path).splitlines()
    finally:
        tmp_path.chmod(0o755)
    for line, name in zip(
        lines, ["config.json", "steps.csv", "trial", "log-0.txt", ".lock"], strict=True
    ):
        assert line.startswith(f"Cannot write {tmp_path / name}: Permission denied.")
        assert "permission to write there, or choose another folder" in line
    assert names(tmp_path) == []


def test_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "trial"):
        with pytest.raises(WriteError, match="A file is in the way: remove it"):
            RunFolder(folder).create()
    assert (tmp_path / "file").read_text() == "x"


WRITER = """
import sys
from pathlib import Path
from tfunet.files.table import Table
from tfunet.files.atomic import write_atomic
folder = Path(sys.argv[1])
table = Table(folder / "steps.csv", ("step", "seconds", "loss"))
for step in range(1, 10**9):
    table.append({"step": step, "seconds": 0.5, "loss": 1 / step})
    write_atomic(folder / "result.json", f"{step:09d}" * 100000)
    if step == 1:
        print("ready", flush=True)
"""


def assert_whole(path: Path):
    text = path.read_text()
    assert len(text) == 900000
    assert text.count(text[:9]) == 100000


def test_killed_writer_leaves_whole_files(tmp_path):
    folder = RunFolder(tmp_path)
    for trial in range(8):
        writer = python(WRITER, tmp_path)
        writer.stdout.readline()
        # Whoever looks while it writes sees whole files as well.
        for _ in range(1 + 2 * trial):
            assert_whole(tmp_path / "result.json")
        writer.kill()
        writer.wait()
        writer.stdout.close()
        assert_whole(tmp_path / "result.json")
        steps = [int(row["step"]) for row in read_rows(tmp_path / "steps.csv")]
        assert steps == list(range(1, len(steps) + 1))
        with folder.locked():
            assert names(tmp_path) == [".lock", "result.json", "steps.csv"]
        assert names(tmp_path) == ["result.json", "steps.csv"]


# -- tables


def test_row_can_be_read_as_soon_as_it_is_appended(tmp_path):
    with Table(tmp_path / "steps.csv", COLUMNS) as table:
        assert (tmp_path / "steps.csv").read_text() == "step,seconds,loss\n"
        table.append({"loss": np.float32(0.1), "step": np.int64(1), "seconds": np.float64(0.1)})
        assert read_rows(tmp_path / "steps.csv") == [{"step": "1", "seconds": "0.1", "loss": "0.1"}]


def test_numbers_come_back_bit_for_bit(tmp_path):
    values = [1 / 3, 1e-300, float("inf"), 0.1 + 0.2]
    with Table(tmp_path / "steps.csv", COLUMNS) as table:
        for step, value in enumerate(values, 1):
            table.append({"step": step, "seconds": 0, "loss": value})
    assert [float(row["loss"]) for row in read_rows(tmp_path / "steps.csv")] == values


@pytest.mark.parametrize("last", [0, 1, 3, 9])
def test_resumed_table_keeps_the_rows_up_to_the_last_that_counts(tmp_path, last):
    path = tmp_path / "steps.csv"
    with Table(path, COLUMNS) as table:
        for step in range(1, 6):
            table.append(row(step))
    # The writer died in the middle of a row.
    with path.open("a") as file:
        file.write("6,0.")
    with Table(path, COLUMNS, last=last) as table:
        table.append(row(100))
    kept = [int(row["step"]) for row in read_rows(path)]
    assert kept == [*range(1, min(last, 5) + 1), 100]


def test_half_row_is_not_read(tmp_path):
    (tmp_path / "steps.csv").write_text("step,seconds,loss\n1,0.5,1.0\n2,0.5,0.2")
    assert [row["step"] for row in read_rows(tmp_path / "steps.csv")] == ["1"]


def test_absent_table_has_no_rows(tmp_path):
    assert read_rows(tmp_path / "steps.csv") == []


def test_table_of_other_columns_is_not_continued(tmp_path):
    path = tmp_path / "epochs.csv"
    Table(path, ("epoch", "loss")).close()
    with pytest.raises(ValueError, match=r"epochs\.csv has the columns epoch,loss, but this run"):
        Table(path, ("epoch", "loss", "dice_cell"), last=1)
    assert path.read_text() == "epoch,loss\n"


@pytest.mark.parametrize("wrong", [{"step": 1, "seconds": 1}, {**row(1), "extra": 1}])
def test_row_with_other_columns_is_refused(tmp_path, wrong):
    message = r"A row of steps\.csv needs step, seconds, loss; got"
    with Table(tmp_path / "steps.csv", COLUMNS) as table, pytest.raises(ValueError, match=message):
        table.append(wrong)
    assert read_rows(tmp_path / "steps.csv") == []


def test_epoch_columns_have_dice_and_iou_of_every_region():
    columns = epoch_columns(["core", "whole"])
    assert columns[:4] == ("epoch", "steps", "loss", "val_loss")
    assert columns[4:8] == ("dice_core", "dice_whole", "iou_core", "iou_whole")
    assert columns[-3:] == ("weights_hash", "samples_hash", "dropped_samples")


# -- the run folder


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
    with pytest.raises(ValueError, match=r"other settings: epochs=4 \(there: 3\)\. Choose another"):
        folder.write_config(RunConfig(epochs=4))
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
