"""Turns the values in a case's mask files into labels 0..num_classes-1. Imports no TensorFlow."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.data.class_lines import BACKGROUND
from tfunet.data.defects import BadFileError
from tfunet.data.image_files import Header, read_mask
from tfunet.data.layouts.label_mapping import OF_FILES, OF_NUMBERS, LabelMapping
from tfunet.data.layouts.objects import ObjectNumbers, Overlap
from tfunet.data.lazy_image import LazyImage, open_mask
from tfunet.data.mask_values import lossy_hint
from tfunet.data.no_data import IGNORED

# The highest value of pixels with fewer bits than a byte.
FEW_BITS = {"bool": 1, "uint1": 1, "uint2": 3, "uint4": 15}
# A threshold this many times above all values of a mask was meant for another range of values.
FAR = 16
# So many values more than the classes have come from interpolation.
MANY = 3


@final
class LabelReader:
    """The labels of one case, read as a whole or in parts.

    Args:
        mapping: How values become labels.
        paths: The case's mask files.
        headers: Their headers.
        labels: The class of each of them.
        axes: Axes of its images, where the user names them.
        image: Header of its image.
        note: Is told a file and what may be a mistake in it.
    """

    def __init__(
        self,
        mapping: LabelMapping,
        paths: Sequence[Path],
        headers: Sequence[Header],
        labels: Sequence[int],
        *,
        axes: str | None,
        image: Header,
        note: Callable[[Path, str], None],
    ) -> None:
        self._mapping, self._paths, self._headers, self._note = mapping, paths, headers, note
        self._labels = labels
        self._overlap = Overlap()
        self._options: dict[str, Any] = {
            "colours": mapping.colours,
            "fractions": mapping.takes_fractions,
            "channel_values": mapping.channel_values,
            "axes": axes,
            "beside": image.shape,
            "image": image,
        }
        self._seen: list[set[int]] = [set() for _ in paths]
        self._ranges = [_Range() for _ in paths]

    def read(self) -> np.ndarray:
        """Return the labels as uint8 (*spatial). Raises BadFileError for a mask of no use."""
        labels = self.part(read_mask(path, **self._options) for path in self._paths)
        self.finish()
        return labels

    def open(self) -> list[LazyImage]:
        """Return the mask files, to be read in parts."""
        return [open_mask(path, **self._options) for path in self._paths]

    def objects(self) -> np.ndarray | None:
        """Return the number of the object in each pixel, int32 (*spatial), 0 where none is.

        None if the masks do not tell objects apart. Raises BadFileError as `read` does.
        """
        if not self._mapping.objects:
            return None
        objects = ObjectNumbers()
        for index, path in enumerate(self._paths):
            mask = read_mask(path, **self._options)
            mask = np.where(mask == self._mapping.ignored, 0, mask)
            objects.add(self._numbers(mask, self._foreground(index, mask)))
        if self._mapping.border:
            objects.numbers[objects.borders()] = 0
        return objects.numbers

    def _numbers(self, mask: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return mask if self._mapping.objects == OF_NUMBERS else inside

    def part(self, masks: Iterable[np.ndarray]) -> np.ndarray:
        """Return the labels of one part of the case, given that part of each mask file."""
        labels: np.ndarray | None = None
        ignored: np.ndarray | None = None
        objects = ObjectNumbers()
        for index, mask in enumerate(masks):
            path = self._paths[index]
            self._check_data(index, mask)
            if self._mapping.values is not None:
                return self._map_values(index, mask, self._mapping.values)
            if self._mapping.ignored is not None:
                marked = mask == self._mapping.ignored
                mask = np.where(marked, 0, mask)
                ignored = marked if ignored is None else ignored | marked
            inside = self._foreground(index, mask)
            if labels is None:
                labels = np.zeros(inside.shape, np.uint8)
            if labels.shape != inside.shape:
                raise BadFileError(
                    path,
                    f"the mask has shape {inside.shape}, and {self._paths[0].name} has "
                    f"{labels.shape}; they must agree.",
                )
            if self._mapping.objects == OF_FILES:
                self._overlap.add(path, inside & (labels == self._labels[index]))
            if self._mapping.border:
                objects.add(self._numbers(mask, inside))
            np.copyto(labels, self._labels[index], where=inside)
        if labels is None:
            raise ValueError("A case needs at least one mask file.")
        if self._mapping.border:
            labels[objects.borders()] = len(self._mapping.names)
        if ignored is not None:
            labels[ignored] = IGNORED
        return labels

    def finish(self) -> None:
        """Judge the masks by all of their parts, which have been read."""
        for path, header in zip(self._paths, self._headers, strict=True):
            if header.remark:
                self._note(path, header.remark)
        for path, what in self._overlap.notes():
            self._note(path, what)
        for path, label, values in zip(self._paths, self._labels, self._ranges, strict=True):
            threshold = self._mapping.threshold_of(label)
            if threshold is None:
                continue
            if threshold < min(values.least, 0):
                what = f"threshold = {threshold:g} is below all of its values: all is the class"
                self._note(path, what)
            if values.low < 0 <= threshold:
                what = f"its values go down to {values.low:g}, which counts as background"
                self._note(path, what)
            if values.mark and 0 < values.next_highest <= values.mark / 2:
                self._note(
                    path,
                    f"its value {values.mark:g} stands apart from the others (up to "
                    f"{values.next_highest:g}), as a mark of pixels to ignore does, and counts as "
                    "the class; give classes= instead of threshold= to say what each value is",
                )
            if not 0 < values.high <= threshold:
                continue
            what = f"its values reach {values.high:g}, and none is above threshold = {threshold:g}"
            if values.high * FAR < threshold:
                raise BadFileError(
                    path,
                    f"{what}: the mask would be empty. Give a threshold for its values, such as 0, "
                    "or store it as the other masks.",
                )
            self._note(path, what)

    def _check_data(self, index: int, mask: np.ndarray) -> None:
        """Raise BadFileError for pixels that the file says are without data, unless named."""
        nodata = self._headers[index].nodata
        named = self._mapping.values or {0: 0}
        if not nodata or nodata in named or nodata == self._mapping.ignored:
            return
        if self._mapping.colours:
            return
        if count := int((mask == nodata).sum()):
            raise BadFileError(
                self._paths[index],
                f"{count} of {mask.size} pixels have the value {nodata:g}, which marks missing "
                "data in this file. Leave the case out, or name the value in one mask with "
                f"classes=, such as {BACKGROUND} = [0, {nodata:g}], or with ignore_label=.",
            )

    def _foreground(self, index: int, mask: np.ndarray) -> np.ndarray:
        path, threshold = self._paths[index], self._mapping.threshold_of(self._labels[index])
        if threshold is not None:
            most = FEW_BITS.get(self._headers[index].dtype)
            if most is not None and threshold >= most:
                mask = mask * np.uint8(255 // most)  # White is white, in any number of bits.
            self._ranges[index].add(mask)
            return mask > threshold
        if self._mapping.objects == OF_NUMBERS:
            if mask.size and mask.min() < 0:
                raise BadFileError(
                    path,
                    f"holds the value {mask.min()}; objects have numbers from 1, and 0 is none.",
                )
            return mask != 0
        seen = self._seen[index]
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

    def _map_values(self, index: int, mask: np.ndarray, values: Mapping[int, int]) -> np.ndarray:
        path = self._paths[index]
        if mask.dtype == np.uint8:
            stored = mask.tobytes()
            if not stored.translate(None, bytes(value for value in values if 0 <= value < 256)):
                # All values are known. A fifth of the time of NumPy's comparisons.
                table = bytes(values.get(value, 0) for value in range(256))
                return np.frombuffer(stored.translate(table), np.uint8).reshape(mask.shape)
        labels = np.zeros(mask.shape, np.uint8)
        present = _unique_values(mask)
        most = FEW_BITS.get(self._headers[index].dtype)
        unknown = np.array([value for value in present if int(value) not in values])
        if len(unknown):
            step = 255 // most if most else 1
            if step > 1 and all(int(value) * step in values for value in present):
                return self._map_values(index, mask * np.uint8(step), values)
            shown = str if not self._mapping.colours else "#{:06x}".format
            allowed = ", ".join(shown(value) for value in sorted(values))
            zero = shown(0) if not self._mapping.colours else repr(shown(0))
            raise BadFileError(
                path,
                f"labels out of range: the mask holds the values {_listed(unknown, shown)}; "
                f"allowed: {allowed}. Add them to classes=, or give the value of pixels that "
                f"count for nothing as ignore_label=; more background is {BACKGROUND} = "
                f"[{zero}, ...].{lossy_hint(path)}{self._smooth_hint(len(present))}",
            )
        for value in present:
            if values[int(value)]:
                np.copyto(labels, values[int(value)], where=mask == value)
        return labels

    def _smooth_hint(self, num_values: int) -> str:
        """Return what to do with a mask that has many values between those of its classes."""
        if num_values <= len(self._mapping.values or ()) + MANY or self._mapping.colours:
            return ""
        return (
            " Many values in between come from interpolation: give a mask for each class, with a "
            "threshold: masks = { CLASS = PATTERN, ... } and threshold = 127, without classes."
        )


class _Range:
    """The range of a mask's values, seen part by part."""

    def __init__(self) -> None:
        self.low = self.high = self.next_highest = 0.0
        self.mark = 0.0
        self.least = math.inf

    def add(self, mask: np.ndarray) -> None:
        """Look at a part. The highest value of its type may be a mark of pixels to ignore."""
        if not mask.size:
            return
        low, high = mask.min(), mask.max()
        self.least = min(self.least, float(low))
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        if mask.dtype in (np.uint8, np.uint16) and high == np.iinfo(mask.dtype).max:
            self.mark = float(high)
            high = mask.max(where=mask < high, initial=0)
        self.next_highest = max(self.next_highest, float(high))


def _unique_values(mask: np.ndarray) -> np.ndarray:
    """Return the values in a mask, each once, in order."""
    if mask.dtype == np.uint8:
        return np.flatnonzero(np.bincount(mask.ravel()))  # A tenth of the time of np.unique.
    return np.unique(mask)


def _listed(values: np.ndarray, shown: Callable[[int], str] = str) -> str:
    texts = [shown(int(value)) for value in values[:8]]
    if len(values) > 8:
        texts = [*texts[:6], "...", shown(int(values[-1])), f"({len(values)} in all)"]
    return ", ".join(texts)
