"""What can be said of every data set of files. A new option is a field here. No TensorFlow."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from tfunet.data.layouts.label_mapping import LabelMapping, label_mapping
from tfunet.data.preparation_options import check_alpha_and_fill, check_axes
from tfunet.data.preprocess import check_intensity
from tfunet.data.source import DataSource


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """Options of every data set of files.

    Args:
        pixel_size: A number, one for each axis, {file = PATTERN, key = NAME} for JSON files, or
            {column = NAME} of a table. By default what the files' headers say.
        target_pixel_size: Pixel size to resample to, in the same unit.
        regions: Region name to class names. By default each class is a region, or what dataset.json
            says.
        intensity: 'zscore', 'zscore_nonzero', 'zscore_inside', 'none', (low, high),
            {'clip': (low, high)} or {'mean': ..., 'deviation': ...}: see
            `tfunet.data.preprocess.normalise`.
        grey: Convert colour images to luminance.
        axes: Letters for the axes of the images' arrays, where the files do not say or are wrong:
            z, y, x, and c for channels, such as 'cyx'.
        alpha: What a channel that is tagged alpha is: 'drop' leaves it out, 'keep' makes it a
            channel, 'mask' takes pixels where it is 0 as without data. By default it is left out,
            and a warning says so unless it is opaque.
        fill: What pixels without data become. By default they are a defect.
        patch: Shape of a training sample. By default the median shape of the images, at most 256
            (2D) or 64 (3D) along an axis.
        name: For messages and records. By default that of the folder, or of the table.
    """

    pixel_size: float | Sequence[float] | Mapping[str, str] | None = None
    target_pixel_size: float | Sequence[float] | None = None
    regions: Mapping[str, Sequence[str]] | None = None
    intensity: str | Sequence[float] | Mapping[str, Sequence[float]] = "zscore"
    grey: bool = False
    axes: str | None = None
    alpha: str | None = None
    fill: float | None = None
    patch: Sequence[int] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        check_axes(self.axes)
        check_alpha_and_fill(self.alpha, self.fill)
        check_intensity(self.intensity)


@dataclass(frozen=True, kw_only=True)
class MaskOptions(FileOptions):
    """Further options where each image has a mask file, or one for each class.

    Args:
        classes: Class name to its value or values in a single mask file, or to its colour or
            colours, as '#ff0000'. 'background' is 0, or black, unless named here.
        threshold: With a file for each class: pixels above this value belong to the class. Or a
            value for each class, by its name.
        ignore_label: Value, or colour, of mask pixels that count neither in the loss nor in
            scores.
        objects: How masks tell the objects of a class apart. "numbers": the pixels of each have a
            number of their own. "files": each has a mask file, which the pattern of its class
            matches, such as '{case}/masks/*.png'; a table has no such patterns. Together they are
            the class; metrics of objects count them as they are, also where they touch.
        border: Name of a further class: the pixels where two objects meet.
    """

    classes: Mapping[str, Any] | None = None
    threshold: float | Mapping[str, float] | None = None
    ignore_label: int | str | None = None
    objects: str | None = None
    border: str | None = None

    def labels(self, masks: str | Mapping[str, str]) -> LabelMapping:
        """Return how these masks become labels."""
        return label_mapping(
            masks,
            self.classes,
            self.threshold,
            self.ignore_label,
            objects=self.objects,
            border=self.border,
        )


def takes(kind: type[FileOptions]) -> Callable[[Callable[..., DataSource]], Any]:
    """Return the decorator of a function that opens files: its argument `options` is of this kind,
    and callers give each field of it as an argument of its own."""
    hints, keyword = get_type_hints(kind), inspect.Parameter.KEYWORD_ONLY
    further = [
        inspect.Parameter(key.name, keyword, default=key.default, annotation=hints[key.name])
        for key in fields(kind)
    ]

    def decorated(function: Callable[..., DataSource]) -> Callable[..., DataSource]:
        @functools.wraps(function)
        def opened(**given: Any) -> DataSource:
            options = {key.name: given.pop(key.name) for key in further if key.name in given}
            return function(**given, options=kind(**options))

        signature = inspect.signature(function, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != "options"]
        vars(opened)["__signature__"] = signature.replace(parameters=[*own, *further])
        opened.__annotations__ = {each.name: each.annotation for each in (*own, *further)}
        return opened

    return decorated
