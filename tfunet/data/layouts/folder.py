"""A data set from a folder of image and mask files. Imports no TensorFlow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.data.layouts.case_files import images_in_other_case, match_files
from tfunet.data.layouts.case_table import CaseTable
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.label_mapping import OF_FILES
from tfunet.data.layouts.options import MaskOptions, takes
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.source import DataSource
from tfunet.files.remote import local


@takes(MaskOptions)
def open_folder(
    *,
    root: str,
    images: str | Sequence[str],
    masks: str | Mapping[str, str],
    exclude: Sequence[str] = (),
    table: Mapping[str, Any] | None = None,
    options: MaskOptions,
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
        table: CSV or TSV with a row for each case: `file`, `key` (the column with the case ids),
            and `group` (a column) and `keep` (column to the values of the rows to use).
        options: Further options are those of every data set of files, and those of folder and csv.

    The returned `defects` list the files that cannot be used; their cases are left out. Only the
    files' headers are read here; `tfunet.data.check.check` reads all pixels.

    Raises:
        ValueError: For wrong options.
        DefectsError: Where no case is left.
    """
    folder = find_root(root)
    labels = options.labels(masks)
    patterns = [images] if isinstance(images, str) else list(images)
    rows = CaseTable(folder, table) if table is not None else None
    sizes = PixelSizes(folder, options, patterns, rows)
    cases, defects, found = match_files(
        folder, patterns, labels.patterns, exclude, objects=options.objects == OF_FILES
    )
    if rows is not None:
        cases, table_defects = rows.select(cases)
        defects += table_defects
    warnings = images_in_other_case(folder, patterns, [*labels.patterns, *exclude])
    listing = Listing(root=folder, cases=cases, defects=defects, found=found, warnings=warnings)
    return open_files(listing, labels, sizes, options)


def find_root(root: str) -> Path:
    """Return the folder, with `~` and environment variables expanded; of a URL its local place."""
    path = local(os.path.expandvars(root))
    if path.is_dir():
        return path
    if "$" in str(path):
        raise ValueError(f"root={root!r} names an environment variable that is not set. Set it.")
    what = "is a file" if path.exists() else "does not exist"
    raise ValueError(
        f"root={root!r} {what}; give a folder. A relative path starts at the current folder, "
        f"{Path.cwd()}."
    )
