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
from tfunet.data.layouts.label_mapping import OF_FILES, OF_NUMBERS, label_mapping
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.source import DataSource


def open_csv(
    *,
    file: str,
    images: str | Sequence[str] = "image",
    masks: str | Mapping[str, str] = "mask",
    key: str | None = None,
    group: str | None = None,
    keep: Mapping[str, Any] | None = None,
    classes: Mapping[str, Any] | None = None,
    threshold: float | Mapping[str, float] | None = None,
    ignore_label: int | str | None = None,
    objects: str | None = None,
    border: str | None = None,
    pixel_size: float | Sequence[float] | Mapping[str, str] | None = None,
    target_pixel_size: float | Sequence[float] | None = None,
    **options: Any,
) -> DataSource:
    """Open the pairs that a CSV or TSV file lists, one case a row; paths are relative to the file.

    Args:
        file: The table; `~` and environment variables in its folder are expanded.
        images: Column of the images, or several, whose files become channels.
        masks: Column of the masks, or class name to column where each class has a file.
        key: Column of the case names. By default the first image's name.
        group: Column of the groups.
        keep: Column to the values of the rows to use.
        classes: As in `open_folder`.
        threshold: As in `open_folder`.
        ignore_label: As in `open_folder`.
        objects: "numbers", as in `open_folder`.
        border: As in `open_folder`.
        pixel_size: A number, one for each axis, or {column = NAME}.
        target_pixel_size: Pixel size to resample to.
        options: `regions`, `intensity`, `grey`, `axes`, `alpha`, `fill`, `patch`, `name`, as in
            `open_folder`.
    """
    folder, path = find_root(str(Path(file).parent)), Path(file)
    columns = [images] if isinstance(images, str) else list(images)
    if objects == OF_FILES:
        raise ValueError(
            f"objects={OF_FILES!r} needs a pattern that matches many files, and a table names one "
            f"mask for each image. Give masks that number their objects, with {OF_NUMBERS!r}."
        )
    labels = label_mapping(masks, classes, threshold, ignore_label, objects=objects, border=border)
    settings = {"file": path.name, "key": key or columns[0], "keep": keep or {}}
    table = CaseTable(folder, {**settings, **({"group": group} if group else {})})
    cases, defects = [], []
    for name, row in table.rows():
        cells = [table.cell(row, column) for column in (*columns, *labels.patterns)]
        files = [stored_path(folder, cell) for cell in cells]
        case_id = name if key else case_id_of(files[0])
        missing = [file for file in files if not is_stored(folder, file)]
        what = f"missing: {path.name} lists it, and there is no such file"
        defects += [Defect(file=file or name, what=what, case_id=case_id) for file in missing]
        both = set(files[: len(columns)]) & set(files[len(columns) :])
        what = f"{path.name} lists it as image and as mask"
        defects += [Defect(file=file, what=what, case_id=case_id) for file in both if not missing]
        if not missing and not both:
            case = listed_case(case_id, files[: len(columns)], files[len(columns) :])
            cases.append(replace(case, group=row[group] if group else case_id, values=row))
    defects += drop_same_names(cases)
    return open_files(
        Listing(
            root=folder,
            cases=cases,
            defects=defects,
            found=f"{len(cases)} pairs",
            warnings=masks_of_several(cases),
        ),
        labels,
        PixelSizes(folder, pixel_size, target_pixel_size, columns, table),
        **{"name": path.stem, **options},
    )
