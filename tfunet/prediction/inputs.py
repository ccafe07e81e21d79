"""Turns paths, folders and patterns into images to predict. Imports no TensorFlow."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from tfunet.data.formats import FORMATS
from tfunet.data.formats.container import composed, split_container, stem
from tfunet.files.remote import local
from tfunet.files.urls import is_url

SUFFIXES = tuple(suffix for suffix in FORMATS if suffix.startswith("."))
# A leading wildcard matches no hidden file or folder.
NOT_HIDDEN = r"(?!\.)"
_WILD = re.compile(r"\{\w+\}|\*|\?")


def find_images(given: Sequence[str], num_files: int = 1) -> list[str]:
    """Return the paths of the images, those of an image in several files joined by commas.

    Args:
        given: A path; a folder, whose images are all meant; or a pattern with `*`, `?` or `{case}`.
            Joined by commas they are the files of one image, and patterns belong together where
            their wildcards stand for the same.
        num_files: Files that make one image.

    Raises ValueError for a folder or a pattern without images.
    """
    return [image for argument in given for image, _ in _expanded(_local(argument), num_files)]


def find_named_images(given: Sequence[str], num_files: int = 1) -> list[tuple[str, str]]:
    """Return the images, as `find_images` does, each with the name of its prediction.

    It is the values of the placeholders of a pattern, joined by "_" as in the name of a case, or
    else the name of the first file. Where all files have one name, it is that of their folders.
    """
    found = [pair for argument in given for pair in _expanded(_local(argument), num_files)]
    images, names = [image for image, _ in found], [name for _, name in found]
    if len(images) > 1 and len({name or stem(parts_of(image)[0]) for image, name in found}) == 1:
        names = list(_folders_that_differ(images))
    return [
        (image, name or stem(parts_of(image)[0])) for image, name in zip(images, names, strict=True)
    ]


def _local(argument: str) -> str:
    """Return an argument with the local places of its URLs, whose folders are listed."""
    if not is_url(argument):
        return argument
    return ",".join(map(_local_pattern, argument.split(",")))


def _local_pattern(text: str) -> str:
    if not is_url(text):
        return text
    _, inside = split_container(text)
    url = text.removesuffix(f":{inside}") if inside else text
    wild = _WILD.search(url)
    # The folder in which a pattern begins is listed.
    start = url if wild is None else url[: wild.start()].rpartition("/")[0]
    return f"{local(start)}{url[len(start) :].rstrip('/')}{f':{inside}' if inside else ''}"


def _folders_that_differ(images: Sequence[str]) -> Iterator[str]:
    """Yield the part of each image's folder that the others do not have in common with it."""
    parts = [Path(os.path.abspath(parts_of(image)[0])).parts[:-1] for image in images]
    first = _num_alike(parts)
    last = _num_alike([each[first:][::-1] for each in parts])
    for each in parts:
        yield "_".join(each[first : len(each) - last])


def parts_of(image: str) -> list[str]:
    """Return the paths that commas join. A comma may be a part of a name, too."""
    return [image] if split_container(image)[0].exists() else image.split(",")


def _num_alike(paths: Sequence[tuple[str, ...]]) -> int:
    """Return how many parts paths have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


def _expanded(argument: str, num_files: int) -> list[tuple[str, str]]:
    """Return the images, each with the values of the placeholders, which may be none."""
    parts = parts_of(argument)
    if any(_is_pattern(part) for part in parts):
        return _matching(parts)
    if len(parts) == 1 and _is_folder_of_images(Path(argument)):
        files = sorted(map(str, _images_in(Path(argument))))
        if num_files > 1:
            raise ValueError(
                f"{argument} is a folder, and an image of this run is made of {num_files} files. "
                f"Say which belong together: '{argument}/{{case}}_0000.nii.gz,"
                f"{argument}/{{case}}_0001.nii.gz'."
            )
        return [(file, "") for file in files]
    return [(argument, "")]


def _is_pattern(path: str) -> bool:
    return _WILD.search(path) is not None and not split_container(path)[0].exists()


def _images_in(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.iterdir()
        if path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")
    ]


def _is_folder_of_images(path: Path) -> bool:
    """Whether a path is a folder of several images; not a zarr store or a DICOM series."""
    if not path.is_dir() or ".zarr" in path.name.lower():
        return False
    files = _images_in(path)
    if not files and any(file.is_file() for file in path.iterdir()):
        return False  # Slices of DICOM may have no suffix.
    if not files:
        raise ValueError(
            f"{path} is a folder without images. Known: {', '.join(SUFFIXES)}. For images in "
            f"folders inside, give a pattern, such as '{path}/*/*.png'."
        )
    return not all(file.name.lower().endswith(".dcm") for file in files)


def _matching(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the files of each image, whose wildcards stand for the same in all patterns.

    Each comes with the values of its placeholders.
    """
    found = [_by_wildcards(pattern) for pattern in patterns]
    for pattern, files in zip(patterns, found, strict=True):
        if not files:
            raise ValueError(f"No file matches {pattern!r}. {_holds(pattern)}")
    images = []
    for key, (first, name) in found[0].items():
        missing = [
            pattern for pattern, files in zip(patterns, found, strict=True) if key not in files
        ]
        if missing:
            raise ValueError(f"{first} has no file that belongs to it by {missing[0]!r}.")
        images.append((",".join(files[key][0] for files in found), name))
    return images


def _holds(pattern: str) -> str:
    """Return what is in the folder in which a pattern begins, in words."""
    outside, _ = split_container(pattern)
    fixed = [part for part in outside.parents if not _WILD.search(str(part))]
    folder = fixed[0]
    if not folder.is_dir():
        return f"There is no folder {str(folder)!r}."
    names = sorted(f"{path.name}{'/' * path.is_dir()}" for path in folder.iterdir())
    shown = ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])
    return f"The folder {str(folder)!r} holds {shown or 'nothing'}."


def _by_wildcards(pattern: str) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return each file, and the values of its placeholders, by what all wildcards stand for."""
    outside, inside = split_container(pattern)
    text = composed(outside.as_posix())
    pieces, wild = _WILD.split(text), _WILD.findall(text)
    expression = re.escape(pieces[0])
    names: set[str] = set()
    for mark, piece in zip(wild, pieces[1:], strict=True):
        name = mark.strip("{}")
        if not expression or expression.endswith("/"):
            expression += NOT_HIDDEN
        if mark in "*?":
            expression += "([^/]*)" if mark == "*" else "([^/])"
        elif name in names:
            expression += f"(?P={name})"
        else:
            names.add(name)
            expression += f"(?P<{name}>[^/]+?)"
        expression += re.escape(piece)
    glob = "".join(
        re.sub(r"[^\x00-\x7f]+", "*", part.replace("[", "[[]"))
        if at % 2 == 0
        else ("?" if part == "?" else "*")
        for at, part in enumerate(re.split(f"({_WILD.pattern})", text))
    )
    glob = re.sub(r"\*+", "*", glob)
    root = Path(text).anchor or "."
    files = sorted(Path(root).glob(glob.removeprefix(root)) if root != "." else Path().glob(glob))
    matches = ((re.fullmatch(expression, composed(path.as_posix())), path) for path in files)
    end = f":{inside}" if inside else ""
    return {
        match.groups(): (f"{path}{end}", "_".join(match.groupdict().values()).lstrip("."))
        for match, path in matches
        if match and not path.name.startswith(".")
    }
