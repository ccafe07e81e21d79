"""The pixel size of each case, and the one to resample to. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.words import check_known
from tfunet.data.defects import Defect
from tfunet.data.formats.claims import check_growth
from tfunet.data.formats.units import sizes_in_words
from tfunet.data.image_files import Header
from tfunet.data.layouts.case_files import CaseFiles, PatternFiles
from tfunet.data.layouts.case_table import CaseTable
from tfunet.data.layouts.file_patterns import placeholders
from tfunet.data.layouts.options import FileOptions
from tfunet.data.preparation_options import sizes_along
from tfunet.data.preprocess import resampled_shape
from tfunet.files.typed import RecordError, read_json

Spacing = tuple[float, ...]
KEYS = ("file", "key", "order", "column")
BIDS_KEY = "PixelSize"
# What the numbers of a list in a JSON file stand for.
ORDERS = {"xyz": "x first", "array": "along the axes of the image's array"}


class PixelSizes:
    """Finds each case's pixel size: by a setting, a JSON file, a table or the image's header.

    Args:
        root: The data set's folder.
        options: Its `pixel_size`, and `target_pixel_size`; None leaves every image as it is.
        images: The image patterns.
        table: `table` of `open_folder`.

    Attributes:
        target: As given.
    """

    def __init__(
        self,
        root: Path,
        options: FileOptions,
        images: Sequence[str],
        table: CaseTable | None,
    ) -> None:
        given, target = options.pixel_size, options.target_pixel_size
        if given is not None and target is None:
            raise ValueError(
                "pixel_size= needs target_pixel_size=, the size to resample to. Give it too, or "
                "leave pixel_size out."
            )
        self.target = target
        self._root, self._table = root, table
        self._fixed = None if isinstance(given, Mapping) else given
        self._source = given if isinstance(given, Mapping) else None
        self._files: PatternFiles | None = None
        self._first_image = images[0] if images else ""
        if self._source is not None:
            self._check_source(self._source)

    @property
    def fixed(self) -> float | Sequence[float] | None:
        """The pixel size of all images, where the data set's description says it."""
        return self._fixed

    @property
    def from_headers(self) -> bool:
        """Whether pixel sizes come from the files' headers."""
        return self._fixed is None and self._source is None

    def of(
        self, cases: Sequence[CaseFiles], headers: Sequence[Header]
    ) -> tuple[list[tuple[Spacing, Spacing] | None], list[Defect]]:
        """Return each case's (pixel size, target) along its axes, and the defects.

        Both are None without a target, and for a case with a defect.
        """
        if self.target is None:
            return [None] * len(headers), []
        pairs: list[tuple[Spacing, Spacing] | None] = []
        defects = []
        for case, header in zip(cases, headers, strict=True):
            num_axes = len(header.shape)
            try:
                spacing = sizes_along(self._find(case, header), num_axes)
                target = sizes_along(self.target, num_axes)
                shape = resampled_shape(header.shape, spacing, target)
                ends = map(sizes_in_words, (spacing, target))
                why = f"resampling from pixels of {' to '.join(ends)}"
                check_growth(header.shape, shape, why)
                pairs.append((spacing, target))
            except ValueError as error:
                pairs.append(None)
                defects.append(Defect(file=case.images[0], what=str(error), case_id=case.case_id))
        return pairs, defects

    def _check_source(self, source: Mapping[str, str]) -> None:
        for name in source:
            check_known("key of pixel_size=:", name, KEYS)
        if ("file" in source) == ("column" in source):
            raise ValueError("pixel_size= needs either file (with key), for JSON files, or column.")
        if source.get("order", "xyz") not in ORDERS:
            orders = ", ".join(f"{order!r} ({meaning})" for order, meaning in ORDERS.items())
            raise ValueError(f"pixel_size.order={source['order']!r}; known: {orders}.")
        if "column" in source:
            if self._table is None:
                raise ValueError("pixel_size.column names a column of table=. Give table= too.")
            return
        names, known = placeholders(source["file"]), placeholders(self._first_image)
        if not set(names) <= set(known):
            raise ValueError(
                f"pixel_size.file={source['file']!r} has the placeholders {list(names)}; allowed: "
                f"those of images={self._first_image!r}, {list(known)}."
            )
        self._files = PatternFiles(self._root, source["file"])

    def _find(self, case: CaseFiles, header: Header) -> Any:
        if self._fixed is not None:
            return self._fixed
        if self._source is None:
            if header.contradiction:
                raise ValueError(f"makes {header.contradiction}; give pixel_size=")
            if header.spacing is None:
                raise ValueError("states no pixel size; give pixel_size=")
            return header.spacing
        if self._files is None:
            column = self._source["column"]
            if column in case.values:  # `open_csv` keeps the row with the case.
                return case.values[column]
            return self._table.value(case.case_id, column) if self._table else None
        files = self._files.matching(case.values)
        if len(files) != 1:
            raise ValueError(
                f"its pixel size needs exactly one file {self._files.filled(case.values)}, and "
                f"{len(files)} match"
            )
        key = self._source.get("key", BIDS_KEY)
        size = _from_json(self._root / files[0], key)
        if not isinstance(size, list) or len(set(map(str, size))) == 1:
            return size
        # BIDS lists x first; who writes another key, only the user knows.
        order = self._source.get("order", "xyz" if key == BIDS_KEY else "")
        if not order:
            choices = " or ".join(f"order = {o!r} ({meaning})" for o, meaning in ORDERS.items())
            raise ValueError(
                f"{files[0]} has {key} = {size}, and not which axis is first; add to pixel_size= "
                f"{choices}"
            )
        return size if order == "array" else _along(header.axes, size)


def _along(axes: str, size: list[Any]) -> list[Any]:
    """Return sizes listed as x, y[, z] in the order of an array's axes."""
    listed = dict(zip("xyz", size, strict=False))
    return [listed[letter] for letter in axes] if set(axes) == set(listed) else size


def _from_json(path: Path, key: str) -> Any:
    try:
        values = read_json(path, dict[str, Any])
    except RecordError as error:
        raise ValueError(f"its pixel size file {error}") from error
    if key not in (values or {}):
        raise ValueError(f"{path} has no {key!r} (it has: {', '.join(values or {}) or 'no keys'})")
    return (values or {})[key]
