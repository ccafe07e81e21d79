"""The files that a configuration names and a result depends on, to be kept with its record."""

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfunet.config.trust import programs
from tfunet.files.regular import open_to_read, read_bytes

FOLDER = "programs"
NETWORKS = ("model", "initial_weights")


def named_programs(settings: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the content of each 'file.py:NAME' of the settings, by the file as it is written."""
    files = dict.fromkeys(ref.rpartition(":")[0] for ref in programs(settings) if ".py:" in ref)
    found = {}
    for file in files:
        with contextlib.suppress(OSError):  # What needs it says that it is missing.
            found[file] = read_bytes(Path(file))
    return found


def hashes(settings: Mapping[str, Any], contents: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of these files, and of the networks that the settings name."""
    found = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    for key in NETWORKS:
        file = settings.get(key) or ""
        if ":" not in file and Path(file).suffix:
            with contextlib.suppress(OSError), open_to_read(Path(file)) as opened:
                found[file] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def copy_names(files: Iterable[str]) -> dict[str, str]:
    """Return a name of its own for the copy of each file: its name, numbered if it is taken."""
    names: dict[str, str] = {}
    for file in files:
        path, number = Path(file), 1
        name = path.name
        while name in names.values():
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        names[file] = name
    return names
