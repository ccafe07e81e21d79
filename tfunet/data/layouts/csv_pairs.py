"""Data sets whose pairs of images and masks a CSV or TSV file lists. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfunet.data.layouts.case_files import (
    listed_case,
    listed_cases,
    masks_of_several,
    stored_path,
)
from tfunet.data.layouts.case_table import CaseTable
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.folder import find_root
from tfunet.data.layouts.label_mapping import OF_FILES, OF_NUMBERS
from tfunet.data.layouts.options import MaskOptions, takes
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.source import DataSource
from tfunet.files.remote import beside, placed
from tfunet.files.urls import is_url


@takes(MaskOptions)
def open_csv(
    *,
    file: str,
    images: str | Sequence[str] = "image",
    masks: str | Mapping[str, str] = "mask",
    key: str | None = None,
    group: str | None = None,
    keep: Mapping[str, Any] | None = None,
    options: MaskOptions,
) -> DataSource:
    """Open the pairs that a CSV or TSV file lists, one case a row; paths are relative to the file.

    Args:
        file: The table; `~` and environment variables in its folder are expanded.
        images: Column of the images, or several, whose files become channels.
        masks: Column of the masks, or class name to column where each class has a file.
        key: Column of the case names. By default the first image's name.
        group: Column of the groups.
        keep: Column to the values of the rows to use.
        options: Further options are those of every data set of files, and those of folder and csv.
    """
    path = Path(file)
    folder = beside(file) if is_url(file) else find_root(str(path.parent))
    columns = [images] if isinstance(images, str) else list(images)
    if options.objects == OF_FILES:
        raise ValueError(
            f"objects={OF_FILES!r} needs a pattern that matches many files, and a table names one "
            f"mask for each image. Give masks that number their objects, with {OF_NUMBERS!r}."
        )
    labels = options.labels(masks)
    settings = {"file": path.name, "key": key or columns[0], "keep": keep or {}}
    table = CaseTable(folder, {**settings, **({"group": group} if group else {})})
    listed = []
    cells = (*columns, *labels.patterns)
    placed(folder, (table.cell(row, column) for _, row in table.rows() for column in cells))
    for name, row in table.rows():
        files = [stored_path(folder, table.cell(row, col)) for col in cells]
        case = listed_case(files[: len(columns)], files[len(columns) :], name if key else "")
        listed.append(replace(case, group=row[group] if group else case.case_id, values=row))
    cases, defects = listed_cases(folder, listed, path.name)
    listing = Listing(
        root=folder,
        cases=cases,
        defects=defects,
        found=f"{len(cases)} pairs",
        warnings=masks_of_several(cases),
    )
    sizes = PixelSizes(folder, options, columns, table)
    return open_files(listing, labels, sizes, replace(options, name=options.name or path.stem))
