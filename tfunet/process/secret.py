"""The secret by which the processes of a run know each other. No TensorFlow."""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from tfunet.files.atomic import writing
from tfunet.files.regular import open_regular

VARIABLE = "TFUNET_SECRET"
FILE = ".secret"
LEAST_LENGTH = 16
NUM_BYTES = 32
# Between the creation of the file and its content, on a slow shared disk.
WRITE_SECONDS = 10.0


def shared_secret(folder: Path, environment: Mapping[str, str]) -> bytes:
    """Return the secret of the run in `folder`, the same in all its processes.

    The first process draws it and writes it to a file that only its user can read. TFUNET_SECRET
    overrides it, for hosts that do not share the folder. Raises ValueError for a file that others
    can read or have written, and WriteError.
    """
    given = environment.get(VARIABLE)
    if given is not None:
        if len(given) < LEAST_LENGTH:
            raise ValueError(
                f"{VARIABLE} must have at least {LEAST_LENGTH} characters that nobody can guess, "
                f"got {len(given)}. Draw it once for all processes: "
                f"export {VARIABLE}=$(openssl rand -hex {NUM_BYTES})"
            )
        return given.encode()
    path = folder / FILE
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(NUM_BYTES))
        deadline = time.monotonic() + WRITE_SECONDS
        while len(secret := _read(path)) != 2 * NUM_BYTES:
            if time.monotonic() > deadline:
                raise ValueError(f"{path} is no secret of a run: remove it, and start again.")
            time.sleep(0.05)
    return secret


def forget(folder: Path) -> None:
    """Remove the file: all processes have met, and the next attempt draws another secret."""
    with contextlib.suppress(OSError):
        (folder / FILE).unlink()


def _read(path: Path) -> bytes:
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise ValueError(
                f"{path} belongs to another user, or others can read it, so it is no secret. "
                f"Remove it. Where the disk has no permissions, give all processes the same "
                f"{VARIABLE}."
            )
        return file.read(2 * NUM_BYTES + 1)
