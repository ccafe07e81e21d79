"""Maps the values in mask files to labels 0..num_classes-1. Imports no TensorFlow."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.config.refs import near_match
from tfunet.data.defects import BadFileError
from tfunet.data.image_files import Header, lossy_hint, read_mask

BACKGROUND = "background"


@dataclass(frozen=True, kw_only=True)
class LabelMapping:
    """How the values in a case's mask files become labels.

    Args:
        names: Names of the classes 1, 2, ...
        patterns: One file pattern for each class, or a single one for a file with all classes.
        values: File value to label, for a single file with all classes; None where each class has
            a file of its own.
        threshold: With a file for each class: pixels above this value belong to the class. None:
            the file holds 0 and at most one other value, which is the class.
        colours: Whether the values are colours, as 0xRRGGBB.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    values: Mapping[int, int] | None
    threshold: float | None
    colours: bool = False

    def read(
        self, paths: Sequence[Path], *, axes: str | None = None, image: Header | None = None
    ) -> np.ndarray:
        """Return a case's labels as uint8 (*spatial); `axes` and `image` are those of its image.

        Raises BadFileError for a mask that cannot be used.
        """
        masks = (read_mask(path, colours=self.colours, axes=axes, image=image) for path in paths)
        return self.map_part(paths, masks, [set() for _ in paths])

    def map_part(
        self, paths: Sequence[Path], masks: Iterable[np.ndarray], seen: Sequence[set[int]]
    ) -> np.ndarray:
        """Return the labels of one part of a case, given that part of each mask file.

        `seen` holds the values in the earlier parts of each file; those of this part are added.
        """
        if self.values is not None:
            (mask,) = masks
            return self._map_values(paths[0], mask, self.values)
        labels: np.ndarray | None = None
        for label, (path, mask, values) in enumerate(zip(paths, masks, seen, strict=True), 1):
            inside = self._foreground(path, mask, values)
            if labels is None:
                labels = np.zeros(inside.shape, np.uint8)
            if labels.shape != inside.shape:
                raise BadFileError(
                    path,
                    f"the mask has shape {inside.shape}, and {paths[0].name} has {labels.shape}; "
                    "they must agree.",
                )
            np.copyto(labels, label, where=inside)
        if labels is None:
            raise ValueError("A case needs at least one mask file.")
        return labels

    def _foreground(self, path: Path, mask: np.ndarray, seen: set[int]) -> np.ndarray:
        if self.threshold is not None:
            return mask > self.threshold
        seen.update(_unique_values(mask).tolist())
        values = np.array(sorted(seen))
        if len(values) > 2 or (len(values) == 2 and values[0] != 0) or values.min(initial=0) < 0:
            raise BadFileError(
                path,
                f"holds the values {_listed(values)}; a mask of one class holds 0 and one other "
                "value. Give threshold= to take all pixels above it, or classes= if the values "
                f"are classes.{lossy_hint(path)}",
            )
        return mask != 0

    def _map_values(self, path: Path, mask: np.ndarray, values: Mapping[int, int]) -> np.ndarray:
        if mask.dtype == np.uint8:
            stored = mask.tobytes()
            if not stored.translate(None, bytes(value for value in values if 0 <= value < 256)):
                # All values are known. A fifth of the time of NumPy's comparisons.
                table = bytes(values.get(value, 0) for value in range(256))
                return np.frombuffer(stored.translate(table), np.uint8).reshape(mask.shape)
        labels = np.zeros(mask.shape, np.uint8)
        present = _unique_values(mask)
        if any(int(value) not in values for value in present):
            shown = str if not self.colours else "#{:06x}".format
            allowed = ", ".join(shown(value) for value in sorted(values))
            zero = shown(0) if not self.colours else repr(shown(0))
            raise BadFileError(
                path,
                f"labels out of range: the mask holds the values {_listed(present, shown)}; "
                f"allowed: {allowed}. Add the others to classes=; values to ignore go into "
                f"{BACKGROUND} = [{zero}, ...].{lossy_hint(path)}",
            )
        for value in present:
            if values[int(value)]:
                np.copyto(labels, values[int(value)], where=mask == value)
        return labels


def label_mapping(
    masks: str | Mapping[str, str],
    classes: Mapping[str, Any] | None,
    threshold: float | None,
) -> LabelMapping:
    """Return the mapping that the options of `open_folder` describe."""
    if isinstance(masks, str) and classes is None:
        masks = {"foreground": masks}
    if isinstance(masks, str):
        if threshold is not None:
            raise ValueError(
                "threshold= makes one class of a mask and classes= several. Give one of the two; "
                "for one class: masks = {NAME = PATTERN} and threshold."
            )
        names, values, colours = _class_values(classes or {})
        return LabelMapping(
            names=names, patterns=(masks,), values=values, threshold=None, colours=colours
        )
    if classes is not None:
        raise ValueError(
            "classes= says which values a single mask file holds, but masks= names a file for each "
            "class. Leave classes out, or give one pattern as masks."
        )
    if not masks:
        raise ValueError("masks= names no file. Give a pattern, or {CLASS = PATTERN, ...}.")
    return LabelMapping(
        names=tuple(masks), patterns=tuple(masks.values()), values=None, threshold=threshold
    )


def named_regions(
    regions: Mapping[str, Sequence[str]] | None, names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return region name to labels; by default each class is a region of its own."""
    if regions is None:
        return {name: (label,) for label, name in enumerate(names, start=1)}
    classes = {region: _several(members) for region, members in regions.items()}
    for region, members in classes.items():
        for member in members:
            if member not in names:
                raise ValueError(
                    f"Region {region!r} names the class {member!r}.{near_match(str(member), names)}"
                    f" Known: {', '.join(names)}."
                )
    return {
        region: tuple(list(names).index(member) + 1 for member in members)
        for region, members in classes.items()
    }


def _class_values(
    classes: Mapping[str, Any],
) -> tuple[tuple[str, ...], dict[int, int], bool]:
    """Return the classes' names, value to label, and whether the values are colours."""
    names = tuple(name for name in classes if name != BACKGROUND)
    if not 1 <= len(names) <= 255:
        raise ValueError(
            f"classes= names {len(names)} classes besides the background; allowed: 1 to 255, "
            "written {NAME = VALUE, ...}."
        )
    given = {name: _several(values) for name, values in classes.items()}
    kinds = {isinstance(value, str) for several in given.values() for value in several}
    if len(kinds) > 1:
        raise ValueError("classes= mixes values and colours. Give only one of the two.")
    values: dict[int, int] = {}
    for name, several in {BACKGROUND: [0], **given}.items():
        label = 0 if name == BACKGROUND else names.index(name) + 1
        for value in several:
            number = _number(name, value)
            if number in values:
                raise ValueError(
                    f"classes= gives the value {value} to two classes; each value has one class. "
                    f"0 is the background, unless {BACKGROUND} = [...] says otherwise."
                )
            values[number] = label
    return names, values, kinds == {True}


def _unique_values(mask: np.ndarray) -> np.ndarray:
    """Return the values in a mask, each once, in order."""
    if mask.dtype == np.uint8:
        return np.flatnonzero(np.bincount(mask.ravel()))  # A tenth of the time of np.unique.
    return np.unique(mask)


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _number(name: str, value: Any) -> int:
    """Return a value, or a colour "#rrggbb" as 0xRRGGBB."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("#[0-9a-fA-F]{6}", value):
        return int(value[1:], 16)
    raise ValueError(
        f"Class {name!r} has the value {value!r}; allowed: whole numbers, or colours such as "
        "'#ff0000'."
    )


def _listed(values: np.ndarray, shown: Callable[[int], str] = str) -> str:
    texts = [shown(int(value)) for value in values[:8]]
    if len(values) > 8:
        texts = [*texts[:6], "...", shown(int(values[-1])), f"({len(values)} in all)"]
    return ", ".join(texts)
