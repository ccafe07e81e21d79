"""Data sets in layouts that describe themselves: MSD, nnU-Net, a CSV of pairs. No TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfunet.data.defects import Defect
from tfunet.data.formats.container import split_container, stem
from tfunet.data.layouts.case_files import Case, without_same_names
from tfunet.data.layouts.case_table import Table
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.folder import find_root, open_folder
from tfunet.data.layouts.label_mapping import BACKGROUND, labelling
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.source import DataSource

DESCRIPTION = "dataset.json"


def open_msd(
    *,
    root: str,
    pixel_size: float | Sequence[float] | None = None,
    target_pixel_size: float | Sequence[float] | None = None,
    **options: Any,
) -> DataSource:
    """Open a task of the Medical Segmentation Decathlon (arXiv:1902.09063) by its dataset.json.

    Its `training` lists the cases, its `labels` are the classes.

    Args:
        root: The folder with dataset.json.
        pixel_size: A number, or one for each axis, instead of what the headers say.
        target_pixel_size: Resample to it.
        options: `regions`, `intensity`, `axes`, `patch`, `name`: as of `folder`.
    """
    folder = find_root(root)
    about = _about(folder, ("training", "labels"))
    classes = _by_name(about["labels"])
    cases, defects = [], []
    for pair in about["training"]:
        image, mask = (Path(pair[key]).as_posix() for key in ("image", "label"))
        case_id = _case_id(image)
        lost = [file for file in (image, mask) if not (folder / file).exists()]
        defects += [
            Defect(file=file, what=f"missing, and {DESCRIPTION} lists it", case_id=case_id)
            for file in lost
        ]
        if not lost:
            cases.append(_case(case_id, (image,), (mask,)))
    defects += without_same_names(cases)
    return open_files(
        Listing(root=folder, cases=cases, defects=defects, found=f"{len(about['training'])} pairs"),
        labelling("", _with_background(classes), None),
        PixelSizes(folder, pixel_size, target_pixel_size, [], None),
        **options,
    )


def open_nnunet(
    *, root: str, regions: Mapping[str, Sequence[str]] | None = None, **options: Any
) -> DataSource:
    """Open a raw data set of nnU-Net, of version 1 or 2, by its dataset.json.

    The images of a case are imagesTr/CASE_0000 for the first channel, and so on; labels of
    several values are regions, as nnU-Net trains them.

    Args:
        root: The folder with dataset.json.
        regions: Region name to class names, instead of those of dataset.json.
        options: `pixel_size`, `target_pixel_size`, `table`, `intensity`, `axes`, `patch`, `name`:
            as of `folder`.
    """
    folder = find_root(root)
    about = _about(folder, ("labels",))
    channels = about.get("channel_names") or about.get("modality") or {"0": ""}
    ending = about.get("file_ending", ".nii.gz")
    classes, own_regions = _nnunet_classes(_by_name(about["labels"]))
    return open_folder(
        root=root,
        images=[f"imagesTr/{{case}}_{number:04d}{ending}" for number in range(len(channels))],
        masks=f"labelsTr/{{case}}{ending}",
        classes=_with_background(classes),
        regions=own_regions if regions is None else regions,
        **options,
    )


def open_csv(
    *,
    file: str,
    images: str | Sequence[str] = "image",
    masks: str | Mapping[str, str] = "mask",
    key: str | None = None,
    group: str | None = None,
    keep: Mapping[str, Any] | None = None,
    classes: Mapping[str, Any] | None = None,
    threshold: float | None = None,
    pixel_size: float | Sequence[float] | Mapping[str, str] | None = None,
    target_pixel_size: float | Sequence[float] | None = None,
    **options: Any,
) -> DataSource:
    """Open the pairs that a CSV or TSV file lists, a case a row; its paths are relative to it.

    Args:
        file: The table; `~` and environment variables in its folder are expanded.
        images: Column of the images, or several, whose files become channels.
        masks: Column of the masks, or class name to column where each class has a file.
        key: Column of the case names. By default the first image's name.
        group: Column of the groups.
        keep: Column to the values of the rows to use.
        classes: As of `folder`.
        threshold: As of `folder`.
        pixel_size: A number, one for each axis, or {column = NAME}.
        target_pixel_size: Resample to it.
        options: `regions`, `intensity`, `grey`, `axes`, `patch`, `name`: as of `folder`.
    """
    folder, path = find_root(str(Path(file).parent)), Path(file)
    columns = [images] if isinstance(images, str) else list(images)
    labels = labelling(masks, classes, threshold)
    about = {"file": path.name, "key": key or columns[0], "keep": keep or {}}
    table = Table(folder, {**about, **({"group": group} if group else {})})
    cases, defects = [], []
    for name, row in table.rows():
        named = [table.cell(row, column) for column in (*columns, *labels.patterns)]
        case_id = name if key else _case_id(named[0])
        lost = [one for one in named if not one or not split_container(folder / one)[0].exists()]
        what = f"{path.name} names it, and there is no such file"
        defects += [Defect(file=one or name, what=what, case_id=case_id) for one in lost]
        if not lost:
            case = _case(case_id, named[: len(columns)], named[len(columns) :])
            cases.append(replace(case, group=row[group] if group else case_id, values=row))
    defects += without_same_names(cases)
    return open_files(
        Listing(root=folder, cases=cases, defects=defects, found=f"{len(cases)} pairs"),
        labels,
        PixelSizes(folder, pixel_size, target_pixel_size, columns, table),
        **{"name": path.stem, **options},
    )


def _case(case_id: str, images: Sequence[str], masks: Sequence[str]) -> Case:
    return Case(case_id=case_id, group=case_id, images=tuple(images), masks=tuple(masks), values={})


def _case_id(file: str) -> str:
    """Return a file's name without its suffixes, in front of it its folders'."""
    path, _ = split_container(file)
    folders = [part for part in path.parent.parts if part not in (path.anchor, "..", "imagesTr")]
    return "_".join([*folders, stem(file)])


def _about(folder: Path, needed: Sequence[str]) -> dict[str, Any]:
    path = folder / DESCRIPTION
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}).") from error
    for name in needed:
        if not isinstance(about, dict) or name not in about:
            raise ValueError(f"{path} has no {name!r}; it is no description of this layout.")
    return about


def _by_name(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return name to value; MSD and version 1 of nnU-Net have labels the other way round."""
    if all(key.isdigit() for key in labels):
        return {name: int(value) for value, name in labels.items()}
    return dict(labels)


def _nnunet_classes(
    labels: Mapping[str, Any],
) -> tuple[dict[str, int], dict[str, list[str]] | None]:
    """Return a class for each value, and the regions where labels have several values."""
    if "ignore" in labels:
        raise ValueError(
            f"{DESCRIPTION} has the label 'ignore', pixels that count for nothing; this is not "
            "supported. Leave it out, or make it background."
        )
    values = {
        name: list(given) if isinstance(given, list) else [given]
        for name, given in labels.items()
        if name != BACKGROUND
    }
    if all(len(several) == 1 for several in values.values()):
        return {name: several[0] for name, several in values.items()}, None
    classes = {
        str(value): value for value in sorted({one for all_ in values.values() for one in all_})
    }
    return classes, {name: [str(one) for one in several] for name, several in values.items()}


def _with_background(classes: Mapping[str, int]) -> dict[str, int]:
    """Return the classes without the one of value 0, which is the background by any name."""
    return {name: value for name, value in classes.items() if value != 0}
