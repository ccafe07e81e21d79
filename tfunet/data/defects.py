"""What is wrong with the files of a data set. Imports no TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SHOWN_DEFECTS = 20
ADVICE = (
    'Correct or remove these files, or train without their cases: on_bad_sample = "skip". '
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


class DefectsError(ValueError):
    """A data set that cannot be used as it is.

    Args:
        defects: All of them; the message shows the first 20.
        found: How many files there are, in words.
    """

    def __init__(self, name: str, defects: Sequence[Defect], found: str = "") -> None:
        count = "1 defect" if len(defects) == 1 else f"{len(defects)} defects"
        lines = [f"The data set {name!r} has {count}{f' ({found})' if found else ''}:"]
        lines += [f"  {defect}" for defect in defects[:SHOWN_DEFECTS]]
        if len(defects) > SHOWN_DEFECTS:
            lines.append(f"  ... and {len(defects) - SHOWN_DEFECTS} more.")
        super().__init__("\n".join([*lines, ADVICE]))
        self.name = name
        self.defects = tuple(defects)
        self.found = found
