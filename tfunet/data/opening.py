"""Which module reads a file, and why a file cannot be read, in plain words. No TensorFlow."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tfunet.data.defects import BadFileError
from tfunet.data.formats import FORMATS, OUTLINES, RECORDS, SIGNATURES
from tfunet.data.formats.claims import check_regular, pointer
from tfunet.data.formats.container import is_record, split_container
from tfunet.files.remote import fetch_folder, is_on_server
from tfunet.files.server import RemoteError

LONGEST_REASON = 600
# The extra of each package that is not in io.
EXTRAS = {
    "SimpleITK": "itk",
    **dict.fromkeys(("pycocotools", "roifile", "skimage"), "annotations"),
}


def has_no_axes(path: Path) -> bool:
    """Return whether a file's format has no words for its axes."""
    # Plain pixels of a record end in their layout.
    return suffix_of(path) in (".npy", ".h5", ".hdf5", ".zarr") or (
        is_record(path) and path.name.endswith("]")
    )


def suffix_of(path: Path) -> str:
    """Return what of a path says its format: a suffix, "/" of a folder, "@" of a record."""
    if is_record(path):
        return "@"
    path, _ = split_container(path)
    parts = [part.lower() for part in path.parts]
    if path.suffix.lower() != ".zarr" and any(part.endswith(".zarr") for part in parts):
        return ".zarr"
    if parts and parts[-1].endswith(".nii.gz"):
        return ".nii.gz"
    suffix = path.suffix.lower()
    return "/" if suffix not in FORMATS and path.is_dir() else suffix


def module_of(path: Path) -> ModuleType:
    """Return the module that reads a file's format; BadFileError where there is none."""
    suffix = suffix_of(path)
    modules = {**FORMATS, **OUTLINES, **RECORDS}
    if suffix not in modules:
        if not path.exists():
            raise BadFileError(path, "does not exist.")
        known = ", ".join(suffix for suffix in FORMATS if suffix.startswith("."))
        raise BadFileError(path, f"unknown format. Known: {known}, and folders of slices.")
    try:
        return importlib.import_module(modules[suffix])
    except ModuleNotFoundError as error:
        raise _missing(path, error) from error


def content_files(path: Path) -> list[Path]:
    """Return the files that a path stands for: itself, its container, all files in it, or its
    header and pixels."""
    is_one, (path, _) = is_record(path), split_container(path)
    if is_one:
        return [path]
    if not path.is_dir():
        listed = getattr(module_of(path), "content_files", None)
        files: list[Path] = guarded(path, listed) if listed else [path]
        return files
    return sorted(file for file in path.rglob("*") if file.is_file())


def need(*packages: str) -> None:
    """Raise ValueError for a package that a data set needs and that is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"This data set needs {name}: pip install 'tfunet[io]'.")


def _missing(path: Path, error: ModuleNotFoundError) -> BadFileError:
    extra = EXTRAS.get(error.name or "", "io")
    return BadFileError(path, f"reading it needs {error.name}: pip install 'tfunet[{extra}]'.")


def guarded(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return `read(path)`; any error in it becomes a BadFileError with the reason."""
    file, _ = split_container(path)
    try:
        if file.exists():
            check_regular(file)
        if file.is_dir() and suffix_of(path) != ".zarr":  # A store's chunks come when read.
            fetch_folder(file)
        result = read(path)
    except RemoteError:  # The file is not to blame.
        raise
    except ModuleNotFoundError as error:
        raise _missing(path, error) from error
    except Exception as error:
        if not is_on_server(file):
            reason = _plain_reason(file, suffix_of(path)) or _on_one_line(error)
            raise BadFileError(path, f"cannot be read ({reason}).") from error
        result = None
    # The room of a fetched file may have been needed for others before it was read.
    return guarded(path, read) if is_on_server(file) else result


def _on_one_line(error: BaseException) -> str:
    lines = [line.strip().rstrip(".:") for line in str(error).splitlines() if line.strip()]
    # All of them: decoders give the reason first and the remedy last.
    return "; ".join(lines)[:LONGEST_REASON] or type(error).__name__


def _plain_reason(path: Path, suffix: str) -> str:
    """Return the usual causes in plain words, which decoders do not have; "" if none applies."""
    try:
        check_regular(path)
        if path.is_dir():
            return "" if suffix in ("/", ".zarr") else "it is a folder"
        if path.stat().st_size == 0:
            return "the file is empty"
        if where := pointer(path):
            return f"it is {where}"
        if suffix == "@":  # What its first bytes are says nothing.
            return ""
        with path.open("rb") as file:
            start = file.read(400)
    except FileNotFoundError:
        where = pointer(path)
        return f"it is {where}" if where else "there is no such file"
    except PermissionError:
        return "no permission to read it; run chmod u+r"
    except ValueError:  # It is no regular file, and the error says so.
        return ""
    kinds = [
        (kind, suffixes)
        for kind, (suffixes, at, marks) in SIGNATURES.items()
        if any(start[at:].startswith(mark) for mark in marks)
    ]
    # A file may be of two kinds: a DICOM may begin as a TIFF does.
    if kinds and not any(suffix in suffixes for _, suffixes in kinds):
        return f"its content is {kinds[0][0]}, but its name ends in {suffix}; rename it"
    return ""
