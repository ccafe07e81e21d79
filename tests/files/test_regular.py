"""Files by fixed names, where a stranger has put a link, a pipe or a folder under each of them."""

import contextlib
import os

import pytest
from hostile_files import TRAPS, set_trap

from tfunet.bench.launch.one_trial import execute
from tfunet.config.run import RunConfig
from tfunet.files.atomic import PARTIAL, WriteError, replacing, write_atomic
from tfunet.files.regular import open_regular, remove_files
from tfunet.prediction.raster import RawFile
from tfunet.record import RunFolder


def lock(folder):
    with RunFolder(folder).locked():
        pass


def log(folder):
    RunFolder(folder).open_log(0).close()


def trial_log(folder):
    execute(["true"], folder / "log.txt", [])


def raw(folder):
    RawFile(path=folder / "labels.raw", shape=(2, 2), dtype="uint8").cut(0)


WRITERS = {".lock": lock, "log-0.txt": log, "log.txt": trial_log, "labels.raw": raw}
# What is only added to may have a second name: a backup made of hard links.
APPENDED = ("log-0.txt",)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", TRAPS)
def test_nothing_is_written_through_what_a_stranger_left(kind, name, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.chdir(run)
    is_unharmed = set_trap(kind, run / name, tmp_path / "home")
    if kind == "hard link" and name in APPENDED:
        with contextlib.suppress(WriteError):
            WRITERS[name](run)
        return
    with pytest.raises(WriteError, match=rf"Cannot write {run / name}: .*(remove it|Check)"):
        WRITERS[name](run)
    assert is_unharmed()


@pytest.mark.parametrize("kind", TRAPS)
def test_a_lock_that_is_none_holds_nobody(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    set_trap(kind, tmp_path / ".lock", tmp_path / "home")
    assert not RunFolder(tmp_path).is_locked()


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe"])
def test_a_whole_file_takes_the_place_of_what_was_there(kind, tmp_path):
    is_unharmed = set_trap(kind, tmp_path / "config.json", tmp_path / "home")
    RunFolder(tmp_path).path.joinpath("config.json").lstat()
    write_atomic(tmp_path / "config.json", RunConfig().to_json())
    assert not (tmp_path / "config.json").is_symlink()
    assert RunFolder(tmp_path).read_config() == RunConfig()
    assert is_unharmed()


def test_the_name_of_a_partial_file_cannot_be_guessed(tmp_path):
    names = set()
    for _ in range(2):
        with replacing(tmp_path / "result.json") as partial:
            assert partial.is_file()  # Made by us, before anybody else can.
            names.add(partial.name)
            partial.write_text("{}")
    assert len(names) == 2
    assert all(name.startswith(PARTIAL) for name in names)


def test_a_regular_file_is_opened_as_asked(tmp_path):
    path = tmp_path / "file"
    path.write_text("long text")
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_TRUNC), "w") as file:
        file.write("short")
    assert path.read_text() == "short"
    with os.fdopen(open_regular(path, os.O_RDONLY)) as file:
        assert file.read() == "short"
        assert os.get_blocking(file.fileno())


def test_only_files_of_known_names_are_removed(tmp_path):
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "a.tmp").touch()
    (folder / "thesis.txt").touch()
    (folder / "b.tmp").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch()
    (folder / "sub.tmp").mkdir()
    remove_files(folder, ["*.tmp"])
    assert sorted(os.listdir(folder)) == ["sub.tmp", "thesis.txt"]
    assert (tmp_path / "elsewhere").exists()
    (tmp_path / "link").symlink_to(folder)
    remove_files(tmp_path / "link", ["*"])
    assert (folder / "thesis.txt").exists()
    remove_files(tmp_path / "absent", ["*"])
    (folder / "sub.tmp").rmdir()
    remove_files(folder, ["*"])
    assert not folder.exists()
