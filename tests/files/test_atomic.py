"""Files that are there whole, or not at all."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from written import names, output_of, python

from tfunet.files.atomic import WriteError, replacing, write_atomic
from tfunet.files.table import read_rows
from tfunet.record import RunFolder


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
    assert "See ulimit -f, raise it, or choose another folder." in message
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
