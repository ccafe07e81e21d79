"""Which file of an image holds which channels, by its name. Imports no TensorFlow."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tfunet.config.run import RunConfig
from tfunet.data.description_file import described
from tfunet.data.formats.container import split_container


def image_patterns(config: RunConfig, num_files: int) -> tuple[str, ...]:
    """Return the pattern of each file of an image, where it has several and patterns are known."""
    if num_files < 2:
        return ()
    try:
        data, options = described(config.data, config.data_options)
    except ValueError:  # The description is no longer there.
        return ()
    if data == "nnunet":
        return tuple(f"imagesTr/{{case}}_{number:04d}.*" for number in range(num_files))
    patterns = options.get("images") if data == "folder" else None
    is_known = isinstance(patterns, list | tuple) and len(patterns) == num_files
    return tuple(map(str, patterns)) if is_known and patterns else ()


def check_order(files: Sequence[Path], patterns: Sequence[str]) -> None:
    """Raise ValueError for files of an image that by their names belong in another order.

    Names tell the order only if each file fits exactly one pattern.
    """
    if len(files) != len(patterns) or len(files) < 2:
        return
    tails = _tails(patterns)
    if not tails:
        return
    length = tails[0].count("/") + 1
    names = ["/".join(_parts(os.path.abspath(file))[-length:]) for file in files]
    fitting = [[at for at, tail in enumerate(tails) if _fits(name, tail)] for name in names]
    places = [found[0] for found in fitting if len(found) == 1]
    ordered = list(range(len(files)))
    if sorted(places) != ordered or places == ordered:
        return
    right = [files[places.index(place)] for place in ordered]
    belongs = "; ".join(
        f"{file} is file {place + 1} ({patterns[place]!r})" for place, file in enumerate(right)
    )
    raise ValueError(
        f"{files[0]}: the files of this image are in another order than those of the training: "
        f"{belongs}. Give them in the order of the run's images: {','.join(map(str, right))}"
    )


def _tails(patterns: Sequence[str]) -> list[str]:
    """Return the last parts of patterns, as few of them as tell the patterns apart."""
    parts = [_parts(pattern) for pattern in patterns]
    for length in range(1, min(map(len, parts)) + 1):
        tails = ["/".join(each[-length:]) for each in parts]
        if len(set(tails)) == len(tails):
            return tails
    return []


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is one of a pattern, whose wildcards and placeholders stand for anything."""
    fixed = re.split(r"\{\w+\}|\*|\?", pattern)
    return re.fullmatch("[^/]*".join(map(re.escape, fixed)), name) is not None


def _parts(path: str) -> list[str]:
    """Return the parts of a path; an array within a file belongs to the last one."""
    outside, inside = split_container(path)
    *folders, name = outside.as_posix().strip("/").split("/")
    return [*folders, f"{name}:{inside.replace('/', '|')}" if inside else name]
