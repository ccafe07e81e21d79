"""Reads the planes of three validation cases that a run keeps for a person to look at."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfunet.data.shown_planes import ShownPlane
from tfunet.files.arrays import read_arrays
from tfunet.files.typed import FieldError, RecordError, typed
from tfunet.record import SHOWN_CASES


@dataclass(frozen=True, kw_only=True)
class ShownCase:
    """A validation case and its rank among those of its run: worst, median or best."""

    case_id: str
    rank: str
    planes: tuple[ShownPlane, ...]


@dataclass(frozen=True, kw_only=True)
class ShownCases:
    """Cases of a run, the worst first, and the names of their labels."""

    cases: tuple[ShownCase, ...]
    label_names: dict[int, str]


@dataclass(frozen=True, kw_only=True)
class _Case:
    case: str
    rank: str
    planes: list[str]


@dataclass(frozen=True, kw_only=True)
class _Facts:
    label_names: dict[int, str]
    cases: list[_Case]


def read_shown_cases(run: Path) -> ShownCases | None:
    """Return what a run kept; None for a run that kept nothing. Raises RecordError."""
    path = run / SHOWN_CASES
    read = read_arrays(path)
    if read is None:
        return None
    arrays, table = read
    try:
        facts = typed(table, _Facts)
        cases = tuple(
            ShownCase(
                case_id=case.case,
                rank=case.rank,
                planes=tuple(
                    _plane(arrays, f"{number}-{at}", title) for at, title in enumerate(case.planes)
                ),
            )
            for number, case in enumerate(facts.cases)
        )
    except FieldError as error:
        raise RecordError(path, error) from error
    return ShownCases(cases=cases, label_names=facts.label_names)


def shown_fault(run: Path) -> str:
    """Return what is wrong with the kept cases of a run; empty if nothing is."""
    try:
        read_shown_cases(run)
    except RecordError as error:
        return error.row
    return ""


def _plane(arrays: dict[str, np.ndarray], name: str, title: str) -> ShownPlane:
    kinds = ("image", "mask", "labels")
    if missing := [kind for kind in kinds if f"{kind}-{name}" not in arrays]:
        raise FieldError(f"it has no {missing[0]}-{name}")
    planes = {kind: arrays[f"{kind}-{name}"] for kind in kinds}
    shape = planes["mask"].shape
    for kind, plane in planes.items():
        is_in_colour = kind == "image" and plane.shape == (*shape, 3)
        has_shape = len(shape) == 2 and (plane.shape == shape or is_in_colour)
        if plane.dtype != np.uint8 or not has_shape or not plane.size:
            raise FieldError(
                f"{kind}-{name}: expected (rows, columns) of uint8, got {plane.shape} of "
                f"{plane.dtype}"
            )
    return ShownPlane(title=title, **planes)
