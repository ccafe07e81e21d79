"""Whether the programs that a file names may run: somebody else may have written the file.

A program is a reference such as "mynet.py:build" in a configuration, a study or a record. Imports
no TensorFlow.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "TFUNET_TRUST"  # Set by --trust, so that the processes of a run and a sweep know it.
KEYS = ("model", "data", "backend", "optimizer", "loss", "metrics", "callbacks")
KEY_BYTES = 32


def is_trusted() -> bool:
    """Whether the user has given --trust."""
    return os.environ.get(VARIABLE) == "1"


def programs(settings: Mapping[str, Any]) -> list[str]:
    """Return the programs that settings name; a value may be a list of values."""
    return [ref for key in KEYS for ref in _programs(settings.get(key))]


def _programs(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if ":" in value:
            yield value
    elif isinstance(value, Mapping):
        yield from _programs(value.get("name"))
    elif isinstance(value, Iterable):
        for item in value:
            yield from _programs(item)


def check_own(named: Iterable[str], files: Iterable[Path], commands: Iterable[str] = ()) -> None:
    """Raise ValueError for programs in files of another user, or whose own file is another's.

    The superuser's files are fine: who could write them could do anything. Files that are missing
    are for others to complain about.

    Args:
        named: The programs.
        files: The configuration or study, and what it includes.
        commands: Texts in these files that a shell or another program obeys.
    """
    named = list(named)
    reasons = _reasons(named, commands)
    if not reasons or is_trusted():
        return
    own = [Path(ref.rpartition(":")[0]) for ref in named if ".py:" in ref]
    for file in [*files, *own]:
        with contextlib.suppress(FileNotFoundError):
            owner = os.stat(file).st_uid
            if owner not in (os.geteuid(), 0):
                raise ValueError(
                    f"{file} belongs to another user (uid {owner}), and this command would run "
                    f"{reasons[0]}. Read it; if you trust it, give --trust, or make a copy of your "
                    "own."
                )


def signature(text: str, named: Iterable[str]) -> str | None:
    """Return what proves that this user made a record here; None if no key can be kept.

    Args:
        text: Content of the record.
        named: The programs that it names.
    """
    key = _key()
    if key is None:
        return None
    paths = [str(Path(ref).absolute()) if ".py:" in ref else ref for ref in named]
    content = "\0".join([text, *paths]).encode()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def check_signed(
    place: Path,
    text: str,
    named: Iterable[str],
    signed: str | None,
    commands: Iterable[str] = (),
) -> None:
    """Raise ValueError if a record names programs or commands, and this user did not make it here.

    The signature holds for the text; `commands` lie in it.
    """
    named = list(named)
    reasons = _reasons(named, commands)
    if not reasons or is_trusted():
        return
    expected = signature(text, named)
    if expected is None or signed is None or not hmac.compare_digest(expected, signed.strip()):
        raise ValueError(
            f"{place} names {reasons[0]}, which this command would run, and in this folder the "
            "record is not known to be yours. If you trained the run in another folder, start "
            "tfunet there: paths of programs begin there. If somebody else made the record, or "
            "another machine, or it was changed since, read what would run; if you trust it, give "
            "--trust."
        )


def _reasons(named: Iterable[str], commands: Iterable[str]) -> list[str]:
    programs = [f"the program {ref!r}" for ref in named]
    return [*programs, *(f"the command {command!r:.200}" for command in commands)]


def _key() -> bytes | None:
    """Return this user's secret, made at its first use; None where none can be kept."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home.
        home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        path = Path(home) / "tfunet" / "key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(file.fileno())
            is_secret = state.st_uid == os.geteuid() and not stat.S_IMODE(state.st_mode) & 0o077
            key = file.read(KEY_BYTES + 1)
        if stat.S_ISREG(state.st_mode) and is_secret and len(key) == KEY_BYTES:
            return key
    return None


def _make(path: Path) -> None:
    """Write a new key: complete or not at all, and only once however many processes do so."""
    new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink()
