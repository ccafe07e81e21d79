"""The file of swapped tensors: what it holds, what it leaves, and what goes wrong with it."""

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from supported_runs import no_file_beyond

from tfunet.files.atomic import WriteError
from tfunet.swap.storage import disk
from tfunet.swap.storage.disk import BLOCK_BYTES, CHUNK_BYTES, PREFIX, DiskFile


@pytest.fixture
def file(tmp_path):
    file = DiskFile(tmp_path)
    yield file
    file.close()


@pytest.mark.parametrize(
    "num_bytes",
    [1, 5, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 4097],
)
def test_what_is_read_is_what_was_written(file, num_bytes):
    dice = np.random.default_rng(0)
    first, second = (dice.integers(0, 256, num_bytes, np.uint8) for _ in range(2))
    file.reserve({"one": num_bytes, "other": num_bytes})
    file.write("one", first)
    file.write("other", second)
    np.testing.assert_array_equal(file.read("one", num_bytes), first)
    np.testing.assert_array_equal(file.read("other", num_bytes), second)
    file.write("one", second)
    np.testing.assert_array_equal(file.read("one", num_bytes), second)


def test_room_grows_and_what_is_there_stays(file):
    file.reserve({"one": 100})
    file.write("one", np.full(100, 7, np.uint8))
    file.reserve({"one": 50, "other": 3 * BLOCK_BYTES})
    file.write("other", np.full(3 * BLOCK_BYTES, 9, np.uint8))
    assert set(file.read("one", 100)) == {7}
    assert set(file.read("other", 3 * BLOCK_BYTES)) == {9}


def test_room_that_is_left_is_taken_before_the_file_grows(file):
    for size in range(1, 6):
        file.reserve({"one": size * BLOCK_BYTES})
    assert os.fstat(file._descriptor).st_size == 5 * BLOCK_BYTES
    file.reserve({"one": 6 * BLOCK_BYTES, "other": 1})
    file.reserve({"other": 2 * BLOCK_BYTES, "third": BLOCK_BYTES})
    assert os.fstat(file._descriptor).st_size == 9 * BLOCK_BYTES
    for value, key in enumerate(("one", "other", "third")):
        file.write(key, np.full(BLOCK_BYTES, value, np.uint8))
    for value, key in enumerate(("one", "other", "third")):
        assert set(file.read(key, BLOCK_BYTES)) == {value}


def test_parts_lie_over_each_other(file):
    for part in range(3):
        file.reserve({"one": BLOCK_BYTES, f"of {part}": BLOCK_BYTES}, part=part)
        file.write("one", np.full(BLOCK_BYTES, part, np.uint8), part=part)
        file.write(f"of {part}", np.full(BLOCK_BYTES, 9, np.uint8), part=part)
        assert set(file.read("one", BLOCK_BYTES, part=part)) == {part}
    assert os.fstat(file._descriptor).st_size == 2 * BLOCK_BYTES


def test_file_that_nobody_has_any_more_is_closed(tmp_path):
    def open_here():
        # By name: a number is given again at once, to whichever thread opens something next.
        files = Path("/proc/self/fd").iterdir()
        return [path for path in files if os.path.realpath(path).startswith(str(tmp_path))]

    file = DiskFile(tmp_path)
    assert len(open_here()) == 1
    del file
    gc.collect()
    assert open_here() == []


def test_closing_frees_the_disk_while_another_process_has_the_file_open(file):
    file.reserve({"one": 2**20})
    # As a forked child has it.
    other = os.dup(file._descriptor)
    try:
        file.close()
        assert os.fstat(other).st_blocks == 0
    finally:
        os.close(other)


def test_child_that_loses_the_file_leaves_it_to_its_parent(file):
    file.reserve({"one": 2**20})
    child = os.fork()
    if child == 0:
        file.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.fstat(file._descriptor).st_size == 2**20


def test_folder_that_has_gone_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_speeds", {})
    (tmp_path / "folder").mkdir()
    file = DiskFile(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    assert min(file.speed()) > 0
    with no_file_beyond(2**20), pytest.raises(WriteError, match="do not fit in"):
        file.reserve({"one": 2**21})
    file.close()


def test_speed_is_measured_once_and_gives_its_space_back(file, tmp_path):
    speed = file.speed()
    assert min(speed) > 0
    other = DiskFile(tmp_path)
    assert other.speed() == speed
    other.close()
    file.reserve({"one": 1})
    assert os.fstat(file._descriptor).st_size == BLOCK_BYTES


def test_file_has_no_name_and_no_links(file, tmp_path):
    file.reserve({"one": 100})
    file.write("one", np.zeros(100, np.uint8))
    assert not list(tmp_path.iterdir())
    assert os.fstat(file._descriptor).st_nlink == 0


def test_where_files_need_names_it_is_unlinked_and_those_of_the_dead_are(tmp_path, monkeypatch):
    # With this flag alone the kernel answers as one does whose file system knows no such files.
    monkeypatch.setattr(disk.os, "O_TMPFILE", os.O_DIRECTORY)
    (tmp_path / f"{PREFIX}dead").write_bytes(b"0")
    (tmp_path / "other").write_bytes(b"1")
    file = DiskFile(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    file.reserve({"one": 100})
    file.write("one", np.full(100, 3, np.uint8))
    assert set(file.read("one", 100)) == {3}
    file.close()


def test_file_of_another_user_that_cannot_be_deleted_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.os, "O_TMPFILE", os.O_DIRECTORY)
    # No more can a folder be unlinked, by anybody.
    (tmp_path / f"{PREFIX}theirs").mkdir()
    DiskFile(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}theirs"]


def test_name_of_a_folder_may_hold_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH_OF_THIS_TEST", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert disk.check_folder("$SCRATCH_OF_THIS_TEST") == tmp_path
    assert disk.check_folder("~") == tmp_path
    with pytest.raises(ValueError, match="for the current folder"):
        disk.check_folder("")


def test_file_that_is_larger_than_it_may_be_is_refused_before_training(file, tmp_path):
    with no_file_beyond(2**20), pytest.raises(WriteError) as error:
        file.reserve({"one": 2**21})
    assert f"2.0 MiB for swapped tensors do not fit in {tmp_path}" in str(error.value)
    assert "a limit on file sizes stands in the way" in str(error.value)
    assert file.explained() is None
    # And what fits is still taken.
    file.reserve({"other": 2**19})
    file.write("other", np.ones(2**19, np.uint8))
    assert os.fstat(file._descriptor).st_size == 2**19


def test_error_of_the_disk_is_told_in_words(file, tmp_path):
    file.reserve({"one": 2**21})
    with no_file_beyond(2**20), pytest.raises(OSError, match="too large"):
        file.write("one", np.zeros(2**21, np.uint8))
    message = str(file.explained())
    assert f"could not be written to {tmp_path}" in message
    assert "File too large" in message


def test_tensor_larger_than_its_place_writes_over_no_other(file):
    file.reserve({"one": 10, "other": 10})
    file.write("other", np.full(10, 5, np.uint8))
    with pytest.raises(OSError, match="larger than the step was planned for"):
        file.write("one", np.zeros(2 * BLOCK_BYTES, np.uint8))
    assert set(file.read("other", 10)) == {5}
    assert "leave plan out" in str(file.explained())
    assert "Free space" not in str(file.explained())


def test_closed_file_is_not_written_to(file):
    file.reserve({"one": 10})
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.write("one", np.zeros(10, np.uint8))
    assert file.explained() is None
    file.close()


def test_closing_waits_for_what_has_begun(file):
    numbers = np.zeros(8 * CHUNK_BYTES, np.uint8)
    file.reserve({"one": numbers.size})
    failures = []

    def write():
        try:
            while True:
                file.write("one", numbers)
        except OSError as error:
            failures.append(str(error))

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    time.sleep(0.05)
    file.close()
    for writer in writers:
        writer.join(20)
    assert len(failures) == 2
    assert all("closed" in failure for failure in failures)
    assert file.error is None


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("missing", "does not exist. Create it"),
        ("file", "is a file, not a folder"),
        # The kernel's own, where not even root may create a file.
        ("/proc", "Nothing can be written to"),
    ],
)
def test_what_is_no_folder_to_write_to_is_refused(folder, message, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=message):
        DiskFile(tmp_path / Path(folder))
