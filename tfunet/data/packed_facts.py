"""What is known of packed cases without their pixels. Imports no TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.data.case_signs import CaseSigns
from tfunet.data.defects import Defect
from tfunet.data.packed_index import TYPES, PackedIndex
from tfunet.data.preprocess import recorded_statistics
from tfunet.data.stored_case import CaseFacts
from tfunet.files.arrays import read_arrays
from tfunet.files.typed import RecordError

MOST_STATISTICS = 4


@dataclass(frozen=True, kw_only=True)
class PackedFacts:
    """Facts of cases, as far as training computes them on a pass over all pixels.

    Args:
        arrays: `dtype` (cases,), the place in TYPES; `label_pixels` (cases, classes), `counts` of
            foreground places (cases, labels from 1), `constant` (cases, channels), `ends`
            (cases, 2), `content` (cases, 16) and `statistics` (cases, 4, channels), NaN behind
            those that the intensity needs. Zeros for a case that could not be read.
        sizes: Bytes of each file of shards and places, relative to the folder.
        notes: What may be a mistake, by case: file, what, and case id.
        defects: Cases that could not be read: file and what.
    """

    arrays: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]
    notes: Mapping[str, list[list[str]]]
    defects: Mapping[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        """Return what is not in arrays."""
        return {"sizes": self.sizes, "notes": self.notes, "defects": self.defects}

    def of_cases(self, shapes: Sequence[tuple[int, ...]]) -> list[CaseFacts]:
        """Return what is known of each case, of these shapes."""
        arrays = {name: array.tolist() for name, array in self.arrays.items()}
        num_statistics = (~np.isnan(self.arrays["statistics"][..., 0])).sum(1).tolist()
        return [
            CaseFacts(
                extent=shape,
                dtype=TYPES[arrays["dtype"][case]],
                statistics=recorded_statistics(arrays["statistics"][case][:number])
                if (number := num_statistics[case])
                else None,
                signs=CaseSigns(
                    content=bytes(arrays["content"][case]).hex(),
                    label_pixels=tuple(arrays["label_pixels"][case]),
                    constant=tuple(
                        channel for channel, is_so in enumerate(arrays["constant"][case]) if is_so
                    ),
                    ends=tuple(arrays["ends"][case]),
                    notes=tuple(map(defect_of_line, self.notes.get(str(case), ()))),
                ),
                foreground=tuple(arrays["counts"][case]),
            )
            for case, shape in enumerate(shapes)
        ]


def packed_facts(
    cases: Mapping[int, CaseFacts | Defect], index: PackedIndex, sizes: Mapping[str, int]
) -> PackedFacts:
    """Return what is written of cases: what is known of each, or why it could not be read."""
    kinds: dict[str, tuple[tuple[int, ...], str]] = {
        "dtype": ((), "|u1"),
        "label_pixels": ((index.num_classes,), "<i8"),
        "counts": ((index.num_classes - 1,), "<i8"),
        "constant": ((index.channels,), "|b1"),
        "ends": ((2,), "<f8"),
        "content": ((16,), "|u1"),
        "statistics": ((MOST_STATISTICS, index.channels), "<f8"),
    }
    arrays = {name: np.zeros((len(cases), *shape), dtype) for name, (shape, dtype) in kinds.items()}
    arrays["statistics"][:] = np.nan
    notes, defects = {}, {}
    for at, (case, known) in enumerate(cases.items()):
        if isinstance(known, Defect):
            defects[str(case)] = line_of(known)
            continue
        arrays["dtype"][at] = TYPES.index(known.dtype)
        arrays["label_pixels"][at] = known.signs.label_pixels
        arrays["counts"][at] = known.foreground
        arrays["constant"][at, list(known.signs.constant)] = True
        arrays["ends"][at] = known.signs.ends
        arrays["content"][at] = list(bytes.fromhex(known.signs.content))
        for row, values in enumerate(known.statistics or ()):
            arrays["statistics"][at, row] = values
        if known.signs.notes:
            notes[str(case)] = list(map(line_of, known.signs.notes))
    return PackedFacts(arrays=arrays, sizes=sizes, notes=notes, defects=defects)


def line_of(defect: Defect) -> list[str]:
    """Return a defect as JSON."""
    return [defect.file, defect.what, defect.case_id]


def defect_of_line(line: Sequence[str]) -> Defect:
    """Return what `line_of` gave."""
    file, what, case_id = line
    return Defect(file=file, what=what, case_id=case_id)


def read_facts(path: Path) -> PackedFacts | None:
    """Return the facts of a unit, or of all; None where the file is missing. Raises RecordError."""
    found = read_arrays(path)
    if found is None:
        return None
    arrays, facts = found
    try:
        return PackedFacts(
            arrays=arrays, **{name: facts[name] for name in ("sizes", "notes", "defects")}
        )
    except KeyError as error:
        raise RecordError(path, f"it has no {error}") from error


def joined_facts(units: Sequence[PackedFacts]) -> PackedFacts:
    """Return the facts of all units."""
    names = units[0].arrays
    return PackedFacts(
        arrays={name: np.concatenate([unit.arrays[name] for unit in units]) for name in names},
        sizes={name: size for unit in units for name, size in unit.sizes.items()},
        notes={case: notes for unit in units for case, notes in unit.notes.items()},
        defects={case: what for unit in units for case, what in unit.defects.items()},
    )


def wrong_files(place: Path, sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield each file that is missing or has another size, and what is wrong with it."""
    for name, size in sizes.items():
        try:
            there = (place / name).stat().st_size
        except FileNotFoundError:
            yield name, "is missing"
        else:
            if there != size:
                yield name, f"has {there} bytes, and had {size} when it was written"
