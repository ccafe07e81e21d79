"""A data set from a folder of image and mask files. Imports no TensorFlow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.data.layouts.case_files import images_in_other_case, match_files
from tfunet.data.layouts.case_table import CaseTable
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.label_mapping import OF_FILES, label_mapping
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.source import DataSource
from tfunet.files.home import expand_home


def open_folder(
    *,
    root: str,
    images: str | Sequence[str],
    masks: str | Mapping[str, str],
    exclude: Sequence[str] = (),
    classes: Mapping[str, Any] | None = None,
    threshold: float | Mapping[str, float] | None = None,
    ignore_label: int | str | None = None,
    objects: str | None = None,
    border: str | None = None,
    regions: Mapping[str, Sequence[str]] | None = None,
    table: Mapping[str, Any] | None = None,
    pixel_size: float | Sequence[float] | Mapping[str, str] | None = None,
    target_pixel_size: float | Sequence[float] | None = None,
    intensity: str | Sequence[float] | Mapping[str, Sequence[float]] = "zscore",
    grey: bool = False,
    axes: str | None = None,
    alpha: str | None = None,
    fill: float | None = None,
    patch: Sequence[int] | None = None,
    name: str | None = None,
) -> DataSource:
    """Open the images and masks of a folder; docs/data.md shows every option at work.

    Args:
        root: The folder. `~` and environment variables are expanded; a relative path starts at
            the current folder.
        images: Pattern of the images, relative to `root`, such as 'sub-{group}/{case}.png'; or
            several, whose files become channels.
        masks: Pattern of the mask of each image, or class name to pattern where each class has
            a file (in an overlap the later class wins).
        exclude: Patterns of images to leave out, with their masks, and of files that match `images`
            and are none.
        classes: Class name to its value or values in a single mask file, or to its colour or
            colours, as '#ff0000'. 'background' is 0, or black, unless named here.
        threshold: With a file for each class: pixels above this value belong to the class. Or a
            value for each class, by its name.
        ignore_label: Value, or colour, of mask pixels that count neither in the loss nor in
            scores.
        objects: How masks tell the objects of a class apart. "numbers": the pixels of each have a
            number of their own. "files": each has a mask file, which the pattern of its class
            matches, such as '{case}/masks/*.png'. Together they are the class; metrics of objects
            count them as they are, also where they touch.
        border: Name of a further class: the pixels where two objects meet.
        regions: Region name to class names. By default each class is a region.
        table: CSV or TSV with a row for each case: `file`, `key` (the column with the case ids),
            and `group` (a column) and `keep` (column to the values of the rows to use).
        pixel_size: A number, one for each axis, {file = PATTERN, key = NAME} for JSON files, or
            {column = NAME} of `table`. By default what the files' headers say.
        target_pixel_size: Pixel size to resample to, in the same unit.
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
        name: For messages and records. By default the folder's.

    The returned `defects` list the files that cannot be used; their cases are left out. Only the
    files' headers are read here; `tfunet.data.check.check` reads all pixels.

    Raises:
        ValueError: For wrong options.
        DefectsError: Where no case is left.
    """
    folder = find_root(root)
    labels = label_mapping(masks, classes, threshold, ignore_label, objects=objects, border=border)
    patterns = [images] if isinstance(images, str) else list(images)
    rows = CaseTable(folder, table) if table is not None else None
    sizes = PixelSizes(folder, pixel_size, target_pixel_size, patterns, rows)
    cases, defects, found = match_files(
        folder, patterns, labels.patterns, exclude, objects=objects == OF_FILES
    )
    if rows is not None:
        cases, table_defects = rows.select(cases)
        defects += table_defects
    return open_files(
        Listing(
            root=folder,
            cases=cases,
            defects=defects,
            found=found,
            warnings=images_in_other_case(folder, patterns, [*labels.patterns, *exclude]),
        ),
        labels,
        sizes,
        name=name,
        regions=regions,
        intensity=intensity,
        grey=grey,
        axes=axes,
        alpha=alpha,
        fill=fill,
        patch=patch,
    )


def find_root(root: str) -> Path:
    """Return the folder, with `~` and environment variables expanded."""
    path = expand_home(os.path.expandvars(root))
    if path.is_dir():
        return path
    if "://" in root:
        raise ValueError(
            f"root={root!r} is on a remote file system, and data is read from folders. Mount or "
            "copy it (rclone mount, mount-s3, gcsfuse), and give that folder."
        )
    if "$" in str(path):
        raise ValueError(f"root={root!r} names an environment variable that is not set. Set it.")
    what = "is a file" if path.exists() else "does not exist"
    raise ValueError(
        f"root={root!r} {what}; give a folder. A relative path starts at the current folder, "
        f"{Path.cwd()}."
    )
