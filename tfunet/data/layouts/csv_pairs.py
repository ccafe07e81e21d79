"""Data sets whose pairs of images and masks a CSV or TSV file lists. Imports no TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfunet.data.defects import Defect
from tfunet.data.layouts.case_files import (
    case_id_of,
    drop_same_names,
    is_stored,
    listed_case,
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
    folder, path = find_root(str(Path(file).parent)), Path(file)
    columns = [images] if isinstance(images, str) else list(images)
    if options.objects == OF_FILES:
        raise ValueError(
            f"objects={OF_FILES!r} needs a pattern that matches many files, and a table names one "
            f"mask for each image. Give masks that number their objects, with {OF_NUMBERS!r}."
        )
    labels = options.labels(masks)
    settings = {"file": path.name, "key": key or columns[0], "keep": keep or {}}
    table = CaseTable(folder, {**settings, **({"group": group} if group else {})})
    listing = _listed(folder, table, columns, labels.patterns, has_key=key is not None, group=group)
    sizes = PixelSizes(folder, options, columns, table)
    return open_files(listing, labels, sizes, replace(options, name=options.name or path.stem))


def _listed(
    folder: Path,
    table: CaseTable,
    images: Sequence[str],
    masks: Sequence[str],
    *,
    has_key: bool,
    group: str | None,
) -> Listing:
    """Return the files that the columns of images and masks name."""
    cases, defects = [], []
    for name, row in table.rows():
        cells = [table.cell(row, column) for column in (*images, *masks)]
        files = [stored_path(folder, cell) for cell in cells]
        case_id = name if has_key else case_id_of(files[0])
        missing = [file for file in files if not is_stored(folder, file)]
        what = f"missing: {table.file} lists it, and there is no such file"
        defects += [Defect(file=file or name, what=what, case_id=case_id) for file in missing]
        both = set(files[: len(images)]) & set(files[len(images) :])
        what = f"{table.file} lists it as image and as mask"
        defects += [Defect(file=file, what=what, case_id=case_id) for file in both if not missing]
        if not missing and not both:
            case = listed_case(case_id, files[: len(images)], files[len(images) :])
            cases.append(replace(case, group=row[group] if group else case_id, values=row))
    defects += drop_same_names(cases)
    return Listing(
        root=folder,
        cases=cases,
        defects=defects,
        found=f"{len(cases)} pairs",
        warnings=masks_of_several(cases),
    )
