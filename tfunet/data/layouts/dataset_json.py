"""Data sets that a dataset.json describes: Medical Segmentation Decathlon and nnU-Net.

Imports no TensorFlow.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from tfunet.data.class_lines import BACKGROUND
from tfunet.data.layouts.case_files import (
    listed_case,
    listed_cases,
    masks_of_several,
    stored_path,
)
from tfunet.data.layouts.file_patterns import find
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.folder import find_root, open_folder
from tfunet.data.layouts.label_mapping import label_mapping
from tfunet.data.layouts.options import FileOptions, takes
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.source import DataSource
from tfunet.files.typed import FieldError, RecordError, check_fields, read_json

DESCRIPTION = "dataset.json"


class Pair(TypedDict):
    """A case of MSD."""

    image: str
    label: str


MSD: dict[str, Any] = {"training": list[Pair], "labels": dict[str, Any]}
NNUNET: dict[str, Any] = {
    "labels": dict[str, Any],
    "channel_names": dict[str, Any],
    "modality": dict[str, Any],
    "file_ending": str,
}
NAMES, VALUES = dict[str, str], dict[str, int | list[int]]


@takes(FileOptions)
def open_msd(*, root: str, ignore_label: int | None = None, options: FileOptions) -> DataSource:
    """Open a task of the Medical Segmentation Decathlon (arXiv:1902.09063) by its dataset.json.

    Its `training` lists the cases, its `labels` are the classes.

    Args:
        root: The folder with dataset.json.
        ignore_label: As in `open_folder`.
        options: Further options are those of every data set of files.
    """
    folder = find_root(root)
    description = _read_description(folder, MSD, ("training", "labels"))
    classes = _value_by_name(description["labels"])
    files = [
        [stored_path(folder, Path(pair[key]).as_posix()) for key in ("image", "label")]
        for pair in description["training"]
    ]
    cases, defects = listed_cases(
        folder, (listed_case([image], [mask]) for image, mask in files), DESCRIPTION
    )
    listing = Listing(
        root=folder,
        cases=cases,
        defects=defects,
        found=f"{len(files)} pairs",
        warnings=masks_of_several(cases),
    )
    labels = label_mapping("", _without_background(classes), None, ignore_label)
    return open_files(listing, labels, PixelSizes(folder, options, [], None), options)


@takes(FileOptions)
def open_nnunet(
    *,
    root: str,
    exclude: Sequence[str] = (),
    table: Mapping[str, Any] | None = None,
    options: FileOptions,
) -> DataSource:
    """Open a raw data set of nnU-Net, version 1 or 2, by its dataset.json.

    The first channel of a case is imagesTr/CASE_0000, the next one CASE_0001; a file may hold
    several channels (RGB). Labels with several values are regions, as nnU-Net trains them. Pixel
    sizes of TIFF come from imagesTr/CASE.json, along the axes of the array. Pixels with the label
    'ignore' count neither in the loss nor in scores.

    Args:
        root: The folder with dataset.json.
        exclude: As in `open_folder`.
        table: As in `open_folder`.
        options: Further options are those of every data set of files.
    """
    folder = find_root(root)
    description = _read_description(folder, NNUNET, ("labels",))
    channels = description.get("channel_names") or description.get("modality") or {"0": ""}
    ending = description.get("file_ending", ".nii.gz")
    labels = _value_by_name(description["labels"])
    ignored = labels.pop("ignore", None)
    classes, described_regions = _nnunet_classes(labels)
    files = [f"imagesTr/{{case}}_{number:04d}{ending}" for number in range(len(channels))]
    present = [pattern for pattern in files if find(folder, pattern)]
    # Natural images: the channels are in one file, and then its file is the first.
    has_joint_files = bool(present) and present == files[: len(present)] != files
    given = {
        **vars(options),
        "regions": described_regions if options.regions is None else options.regions,
        "pixel_size": _with_sidecars(folder, ending, options),
    }
    source: DataSource = open_folder(
        root=root,
        images=present if has_joint_files else files,
        masks=f"labelsTr/{{case}}{ending}",
        exclude=exclude,
        table=table,
        classes=_without_background(classes),
        ignore_label=_one_value(folder, ignored),
        **given,
    )
    if has_joint_files and source.channels != len(channels) and not options.grey:
        names = ", ".join(map(str, channels.values()))
        raise ValueError(
            f"{folder / DESCRIPTION} names {len(channels)} channels ({names}), and the files of a "
            f"case ({', '.join(present)}) hold {source.channels}. Add {files[len(present)]}, or "
            "correct channel_names."
        )
    return source


def channel_names(folder: Path) -> tuple[str, ...]:
    """Return what dataset.json calls the channels, such as "CT"; none where it does not say it."""
    described = read_json(folder / DESCRIPTION, dict[str, Any]) or {}
    names = described.get("channel_names") or described.get("modality") or {}
    return tuple(map(str, names.values())) if isinstance(names, Mapping) else ()


def _with_sidecars(folder: Path, ending: str, options: FileOptions) -> Any:
    """Return the pixel sizes: those beside TIFF files, as nnU-Net reads them, if none is given."""
    sidecar = {"file": "imagesTr/{case}.json", "key": "spacing", "order": "array"}
    given = options.pixel_size
    if isinstance(given, Mapping) and given.get("key") == sidecar["key"]:
        return {"order": sidecar["order"], **given}
    resamples = options.target_pixel_size is not None and given is None
    if resamples and ending.lower() in (".tif", ".tiff") and find(folder, sidecar["file"]):
        return sidecar
    return given


def _read_description(
    folder: Path, kinds: Mapping[str, Any], needed: Sequence[str]
) -> dict[str, Any]:
    path = folder / DESCRIPTION
    description = read_json(path, dict[str, Any]) or {}
    for name in needed:
        if name not in description:
            raise ValueError(f"{path} has no {name!r}; it does not describe this layout.")
    try:
        check_fields(description, kinds)
        labels = description["labels"]
        check_fields({"labels": labels}, {"labels": NAMES if _by_value(labels) else VALUES})
        _check_inside(description)
    except FieldError as error:
        raise RecordError(path, error) from error
    return description


def _check_inside(description: Mapping[str, Any]) -> None:
    """Raise FieldError for files outside of the data set's folder."""
    listed = [
        (f"training[{number}].{key}", pair[key])
        for number, pair in enumerate(description.get("training", ()))
        for key in ("image", "label")
        if isinstance(pair, Mapping) and key in pair
    ]
    for field, path in [*listed, ("file_ending", description.get("file_ending", ""))]:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise FieldError(
                f"{field}: {path!r} leads out of the data set's folder. Move the file into it, or "
                "list your files in a table, which may name any (data = 'csv')"
            )


def _by_value(labels: Mapping[str, Any]) -> bool:
    """Whether labels are value to name, as MSD and version 1 of nnU-Net write them."""
    return all(key.isdecimal() for key in labels)


def _value_by_name(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return name to value."""
    if _by_value(labels):
        return {name: int(value) for value, name in labels.items()}
    return dict(labels)


def _nnunet_classes(
    labels: Mapping[str, Any],
) -> tuple[dict[str, int], dict[str, list[str]] | None]:
    """Return a class for each value, and the regions where labels have several values."""
    values = {
        name: list(given) if isinstance(given, list) else [given]
        for name, given in labels.items()
        if name != BACKGROUND
    }
    if all(len(several) == 1 for several in values.values()):
        return {name: several[0] for name, several in values.items()}, None
    all_values = sorted({value for several in values.values() for value in several})
    regions = {name: [str(value) for value in several] for name, several in values.items()}
    return {str(value): value for value in all_values}, regions


def _one_value(folder: Path, ignored: Any) -> int | None:
    if isinstance(ignored, list):
        raise ValueError(
            f"{folder / DESCRIPTION} gives the label 'ignore' the values {ignored}. Give it one."
        )
    return ignored


def _without_background(classes: Mapping[str, int]) -> dict[str, int]:
    """Return the classes without value 0, which is the background by any name."""
    return {name: value for name, value in classes.items() if value != 0}
