"""What is wrong with the files of a data set. Imports no TensorFlow."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SHOWN_DEFECTS = 20
# Lines about cases that were left out, where the others are refused.
NAMED_DEFECTS = 5
# Files named for one cause, beside the first, where a message must stay short.
SHOWN_FILES = 3
ADVICE = (
    'Correct or remove these files, or leave out their cases: on_bad_sample = "skip" in the '
    "configuration of a run, or --on_bad_sample skip. "
    "'tfunet data check' reads every file and lists all defects."
)


@dataclass(frozen=True, kw_only=True)
class Defect:
    """One thing that training cannot use.

    Args:
        file: The file, relative to the data set's folder where it lies there.
        what: What is wrong, and what to do about it.
        case_id: The case that cannot be used because of it; empty for a file without a case.
    """

    file: str
    what: str
    case_id: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


class BadFileError(ValueError):
    """A file that cannot be used; the message names it."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what

    def defect(self, case_id: str, root: Path) -> Defect:
        """Return the error as a defect of a case, the file relative to `root`."""
        is_inside = self.path.is_relative_to(root)
        file = self.path.relative_to(root) if is_inside else self.path
        return Defect(file=file.as_posix(), what=self.what, case_id=case_id)


def defect_of(error: Exception, case_id: str, root: Path) -> Defect:
    """Return an error that a case gave as a defect; `root` is the folder of the data set."""
    if isinstance(error, BadFileError):
        return error.defect(case_id, root)
    return Defect(file=case_id, what=str(error), case_id=case_id)


def by_cause(defects: Sequence[Defect]) -> list[list[Defect]]:
    """Return defects in groups that differ only in names of files and in numbers."""
    groups: dict[str, list[Defect]] = {}
    for defect in defects:
        groups.setdefault(_cause(defect), []).append(defect)
    return list(groups.values())


def lines_by_cause(defects: Sequence[Defect], *, most: int | None = SHOWN_FILES) -> list[str]:
    """Return a line for each cause, in the order of their first files.

    It names at most this many files beside the first; None names all.
    """
    return [_in_one_line(group, most) for group in by_cause(defects)]


def _cause(defect: Defect) -> str:
    """Return what is wrong, without what tells files apart: words with digits, and names."""
    names = {defect.case_id, Path(defect.file).name, Path(defect.file).stem}
    text = defect.what
    # Short names may be words.
    for name in sorted((name for name in names if len(name) > 2), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "#", text)
    text = text.replace(repr(defect.case_id), "#")
    text = re.sub(r"\S*(?:[/\\]|\.[A-Za-z])\S*", "#", text)  # Paths, and names with a suffix.
    text = re.sub(r"#[0-9a-f]{6}\b", "#", text)
    text = re.sub(r"\d[\d.]*", "#", text)
    # Masks may hold any number of wrong values, and colours.
    return re.sub(r"#(?:, (?:#|\.\.\.))+(?: \(# in all\))?", "#", text)


def _in_one_line(group: Sequence[Defect], most: int | None) -> str:
    first, *others = group
    if not others:
        return str(first)
    files = [defect.file for defect in others[:most]]
    if len(others) > len(files):
        files.append("...")
    return f"{first} ({len(others)} more like it: {', '.join(files)})"


class DefectsError(ValueError):
    """A data set that cannot be used as it is.

    Args:
        defects: All of them; the message shows the first 20.
        found: How many files there are, in words.
    """

    def __init__(self, name: str, defects: Sequence[Defect], found: str = "") -> None:
        count = "1 defect" if len(defects) == 1 else f"{len(defects)} defects"
        lines = [f"The data set {name!r} has {count}{f' ({found})' if found else ''}:"]
        groups = by_cause(defects)
        lines += [f"  {line}" for line in lines_by_cause(defects)[:SHOWN_DEFECTS]]
        if len(groups) > SHOWN_DEFECTS:
            lines.append(f"  ... and {sum(map(len, groups[SHOWN_DEFECTS:]))} more.")
        super().__init__("\n".join([*lines, ADVICE]))
        self.name = name
        self.defects = tuple(defects)
        self.found = found


@contextmanager
def naming(defects: Sequence[Defect]) -> Iterator[None]:
    """Add defects to a refusal of the cases that they left."""
    try:
        yield
    except ValueError as error:
        if not defects:
            raise
        named = "; ".join(lines_by_cause(defects)[:NAMED_DEFECTS])
        raise ValueError(f"{error} Left out: {named}.") from error
