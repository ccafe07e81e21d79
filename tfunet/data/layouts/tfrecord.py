"""Data sets in TFRecord files: an image and its mask in each record. Imports no TensorFlow."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfunet.config.words import check_known
from tfunet.data.defects import Defect
from tfunet.data.formats.tfrecord import features_of, record_starts, value_of
from tfunet.data.layouts.case_files import CaseFiles, drop_same_names, listed_case
from tfunet.data.layouts.file_patterns import find
from tfunet.data.layouts.file_source import Listing, open_files
from tfunet.data.layouts.folder import find_root
from tfunet.data.layouts.label_mapping import OF_FILES, OF_NUMBERS
from tfunet.data.layouts.options import MaskOptions, takes
from tfunet.data.layouts.pixel_size import PixelSizes
from tfunet.data.opening import need
from tfunet.data.source import DataSource

RAW = ("dtype", "shape")
DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"),
    *("float16", "float32", "float64"),
)


@takes(MaskOptions)
def open_tfrecord(
    *,
    root: str,
    files: str | Sequence[str],
    image: str | Sequence[str],
    mask: str | Mapping[str, str],
    image_raw: Mapping[str, Any] | None = None,
    mask_raw: Mapping[str, Any] | None = None,
    key: str | None = None,
    group: str | None = None,
    options: MaskOptions,
) -> DataSource:
    """Open TFRecord files of tf.train.Example, by the names of their features.

    A feature holds an image as PNG, JPEG, WebP or TIFF encode it, or plain pixels. Each record is a
    case. Opening reads every record once, for the shape of its image.

    Args:
        root: The folder, as in `open_folder`.
        files: Pattern of the files, relative to `root`, such as 'train-*.tfrecord', or several.
            A placeholder {group} gives the group of its records.
        image: Feature of the image, or several, which become channels.
        mask: Feature of the mask, or class name to feature where each class has one.
        image_raw: How plain pixels of an image are laid out: their `dtype`, and the lengths of the
            `shape`, or the features that hold them, as in
            { dtype = "uint8", shape = ["height", "width", 3] }.
        mask_raw: The same of a mask.
        key: Feature of the case names. By default the file's name and the number of the record.
        group: Feature of the groups.
        options: Further options are those of every data set of files, and those of folder and csv.
    """
    need("google_crc32c")
    folder = find_root(root)
    if options.objects == OF_FILES:
        raise ValueError(
            f"objects={OF_FILES!r} needs a mask for each object, and a record names one for each "
            f"image. Give masks that number their objects, with {OF_NUMBERS!r}."
        )
    labels = options.labels(mask)
    images = [image] if isinstance(image, str) else list(image)
    patterns = [files] if isinstance(files, str) else list(files)
    found = {file: values for pattern in patterns for file, values in find(folder, pattern).items()}
    if not found:
        raise ValueError(f"No file under {folder} matches {' or '.join(map(repr, patterns))}.")
    features = [
        *(f"{name}{_layout('image_raw', image_raw)}" for name in images),
        *(f"{name}{_layout('mask_raw', mask_raw)}" for name in labels.patterns),
    ]
    cases: list[CaseFiles] = []
    defects: list[Defect] = []
    for file, values in found.items():
        for number, names in _records(folder, file, (key, group), defects):
            case_id = names[0] or f"{_name(file)}_{number:06d}"
            paths = [f"{file}:{number}@{feature}" for feature in features]
            own_group = names[1] if group else values.get("group", "")
            cases.append(
                listed_case(paths[: len(images)], paths[len(images) :], case_id, own_group)
            )
    defects += drop_same_names(cases)
    listing = Listing(
        root=folder,
        cases=cases,
        defects=defects,
        found=f"{len(cases)} records in {len(found)} files",
    )
    return open_files(listing, labels, PixelSizes(folder, options, [], None), options)


def _records(
    root: Path, file: str, names: Sequence[str | None], defects: list[Defect]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each record, and its texts of features; add what is wrong to `defects`.

    A feature without a name is an empty text.
    """
    path = root / file
    facts = path.stat()
    starts, fault = record_starts(path, facts.st_size, facts.st_mtime_ns)
    for number in range(len(starts) - 1):
        try:
            yield number, [_text(path, number, name) if name else "" for name in names]
        except ValueError as error:
            defects.append(Defect(file=f"{file}:{number}", what=str(error)))
    if fault:
        defects.append(Defect(file=file, what=fault))


def _text(path: Path, number: int, name: str) -> str:
    """Return the one value of a feature as text."""
    values = value_of(features_of(path, number), name)
    if len(values) != 1:
        raise ValueError(f"the feature {name!r} has {len(values)} values instead of one")
    return values[0].decode(errors="replace") if isinstance(values, list) else str(values[0])


def _name(file: str) -> str:
    return re.sub(r"\.tfrecords?$", "", file).replace("/", "_")


def _layout(option: str, raw: Mapping[str, Any] | None) -> str:
    """Return how plain pixels lie as the path of a feature says it; "" for encoded ones."""
    if raw is None:
        return ""
    for name in raw:
        check_known(f"key of {option}:", name, RAW)
    shape = raw.get("shape", ())
    lengths = [shape] if isinstance(shape, int | str) else list(shape)
    if raw.get("dtype") not in DTYPES or not lengths:
        raise ValueError(
            f"{option}={dict(raw)}; allowed: dtype, one of {', '.join(DTYPES)}, and shape, a list "
            'of lengths or of features that hold them, such as ["height", "width", 3].'
        )
    return f"[{raw['dtype']}:{':'.join(map(str, lengths))}]"
