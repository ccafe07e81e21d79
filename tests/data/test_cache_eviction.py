"""The cache as a whole: bounded, oldest out first, and never what is in use."""

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from cached_cases import PATCH, refuse, source_of
from hostile_files import set_trap
from paths import ROOT

from tfunet import cli, exit_codes
from tfunet.data.cache import build_cache
from tfunet.data.cache_eviction import (
    DEFAULT_LIMIT,
    LIMIT_VARIABLE,
    MARK,
    clear,
    entries,
    limit_bytes,
)

PAGE = (ROOT / "docs" / "data.md").read_text()
# A data set of `source_of` takes 2.5 kB with its index.
ROOM_FOR_TWO = "0.0055MiB"


def build(folder, fingerprint):
    return build_cache(source_of(fingerprint=fingerprint), folder, patch=PATCH)


def age(cases, seconds):
    """Make a data set look as if it was used so long before."""
    index = cases.store.home / "index.json"
    os.utime(index, (index.stat().st_atime, index.stat().st_mtime - seconds))
    return cases.store.home


def test_what_was_not_used_for_longest_goes_first(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, ROOM_FOR_TWO)
    first = age(build(tmp_path, "first"), 200)
    second = age(build(tmp_path, "second"), 100)
    build_cache(source_of(refuse, fingerprint="first"), tmp_path, patch=PATCH)  # Used again.
    third = build(tmp_path, "third").store.home
    assert first.exists()
    assert not second.exists()
    assert {entry.path for entry in entries(tmp_path)} == {first, third}
    assert sum(entry.num_bytes for entry in entries(tmp_path)) < limit_bytes()


def test_what_is_in_use_stays_and_a_full_cache_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, ROOM_FOR_TWO)
    used = [build(tmp_path, fingerprint) for fingerprint in ("first", "second")]
    with pytest.raises(
        OSError, match=rf"others are in use; \${LIMIT_VARIABLE} sets the limit"
    ) as caught:
        build(tmp_path, "third")
    assert caught.value.errno == errno.EDQUOT
    assert all(cases.store.home.exists() for cases in used)
    assert not list(tmp_path.glob("*/*.tmp"))
    assert clear(tmp_path) == (1, 2)  # The third one's folder, without cases.
    del used
    assert clear(tmp_path) == (2, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_cache_is_a_line_and_an_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(LIMIT_VARIABLE, ROOM_FOR_TWO)
    (tmp_path / "run.toml").write_text("patch = [8, 8]\ndata_options = { size = 64 }\n")
    command = ["data", "cache", str(tmp_path / "run.toml"), "--cache_dir", str(tmp_path)]
    assert cli.main(command) == exit_codes.NOT_WRITTEN
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: The cache of decoded cases in ")


def test_what_is_not_used_goes_on_nfs_too(tmp_path, monkeypatch):
    build(tmp_path, "one")
    real = fcntl.flock

    def flock(file, how):
        # There the kernel makes it a lock of a range, which to be exclusive needs a file that is
        # open for writing: flock(2).
        writes = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if how & fcntl.LOCK_EX and not writes:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(file, how)

    remove = os.unlink

    def unlink(path, *, dir_fd=None):
        if path == "in_use":
            # The file that is open, and locked, stays under another name until it is closed.
            os.rename(path, ".nfs0001", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            remove(path, dir_fd=dir_fd)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(os, "unlink", unlink)
    used = build(tmp_path, "two")
    assert clear(tmp_path) == (1, 1)
    del used


def strangers(folder):
    """Folders that look like data sets of the cache, and the files in them that must stay."""
    for name in ("repository", "copied", "torn", "empty marker"):
        (folder / name).mkdir()
        for file in ("lock", "in_use", "index.json", "thesis.txt"):
            (folder / name / file).write_text("mine")
    # Another program's cache, and markers that are not ours.
    signature = "Signature: 8a477f597d28d172789f06886806bc55\n"
    (folder / "copied" / "CACHEDIR.TAG").write_text(f"{signature}# Of another program.\n")
    (folder / "torn" / "CACHEDIR.TAG").write_text(MARK[:60])
    (folder / "empty marker" / "CACHEDIR.TAG").touch()
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "lock").write_text("mine")
    (outside / "CACHEDIR.TAG").write_text(MARK)
    (folder / "link").symlink_to(outside)
    linked = folder / "with a linked marker"
    linked.mkdir()
    (linked / "lock").write_text("mine")
    (linked / "CACHEDIR.TAG").symlink_to(outside / "CACHEDIR.TAG")
    return [path for path in (*folder.rglob("*"), *outside.rglob("*")) if path.is_file()]


def test_only_what_carries_our_marker_is_removed(tmp_path, monkeypatch, capsys):
    cache = tmp_path / "cache"
    cache.mkdir()
    kept = strangers(cache)
    build(cache, "first")
    ours = build(cache, "second").store.home
    assert (ours / "CACHEDIR.TAG").read_text() == MARK
    # What the user put beside our files stays, and our files go.
    (ours / "notes.txt").write_text("mine")
    monkeypatch.setenv(LIMIT_VARIABLE, ROOM_FOR_TWO)
    build(cache, "third")  # Eviction: one must go.
    assert all(path.read_text() for path in kept if path.name != "CACHEDIR.TAG")
    monkeypatch.setenv("TFUNET_CACHE", str(cache))
    assert cli.main(["data", "cache", "--clear"]) == exit_codes.OK
    assert "Removed 2 data sets" in capsys.readouterr().out
    assert all(path.exists() for path in kept)
    assert os.listdir(ours) == ["notes.txt"]
    assert entries(cache) == []


def test_a_data_set_of_a_version_without_markers_gets_one_when_it_is_used(tmp_path):
    marker = build(tmp_path, "one").store.home / "CACHEDIR.TAG"
    marker.unlink()
    assert clear(tmp_path) == (0, 0)
    build_cache(source_of(refuse, fingerprint="one"), tmp_path, patch=PATCH)
    assert clear(tmp_path) == (1, 0)


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["lock", "in_use", "CACHEDIR.TAG", "images.bin", "cases.jsonl"])
def test_nothing_is_written_through_what_lies_in_the_cache(kind, name, tmp_path):
    home = build(tmp_path / "cache", "one").store.home
    clear(tmp_path / "cache")
    home.mkdir()
    is_unharmed = set_trap(kind, home / name, tmp_path / "home")
    with suppress(OSError):
        build(tmp_path / "cache", "one")
    assert is_unharmed()


def test_a_data_set_that_was_removed_is_decoded_anew(tmp_path):
    build(tmp_path, "one")
    assert clear(tmp_path) == (1, 0)
    assert build(tmp_path, "one").store.home.exists()


@pytest.mark.parametrize("text", ["100", "GiB", "-1GiB", "0MiB", "5 GB", "infGiB", "nanGiB"])
def test_a_limit_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(ValueError, match=f"such as {DEFAULT_LIMIT}, got '{text}'"):
        limit_bytes()


def test_the_commands_of_the_page_build_list_and_clear(tmp_path, monkeypatch, capsys):
    section = PAGE[PAGE.index("## The cache") : PAGE.index("## Generated data")]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].splitlines()
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    small = "data = 'cells'\npatch = [8, 8]\ndata_options = { num_cases = 3, size = 32 }\n"
    Path("augmented.toml").write_text(small)
    printed = []
    for command in commands:
        program, *arguments = command.split()
        assert program == "tfunet"
        assert cli.main(arguments) == 0
        printed.append(capsys.readouterr().out)
    build_line, list_lines, clear_line = printed
    assert "3 cases, 0.0 MiB in" in build_line
    assert re.search(r"of at most 100 GiB, 1 data sets in", list_lines)
    assert clear_line.startswith("Removed 1 data sets from")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_configuration_there_is_nothing_to_decode(capsys):
    assert cli.main(["data", "cache"]) == 2
    assert "give --list or --clear" in capsys.readouterr().err
