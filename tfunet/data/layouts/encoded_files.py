"""Which data sets of files a decoder in C can read without our readers. Imports no TensorFlow."""

from pathlib import Path

import numpy as np

from tfunet.data.encoded import UNKNOWN, EncodedCases, EncodedMask
from tfunet.data.image_files import Header
from tfunet.data.layouts.file_reader import FileReader
from tfunet.data.layouts.label_mapping import OF_FILES, OF_NUMBERS, LabelMapping
from tfunet.data.no_data import IGNORED
from tfunet.data.opening import guarded, module_of
from tfunet.data.preprocess import INSIDE, NONZERO, needs_whole_image

IMAGES = ("uint8", "uint16", "float32")
MASKS = ("bool", "uint8", "uint16")
LOSSY = (".jpg", ".jpeg")


def encoded_cases(reader: FileReader) -> EncodedCases:
    """Return the cases of a reader as files to decode.

    Raises ValueError, which says why, for what only our readers make: other formats, volumes,
    several images of a case, masks of objects or in colours, pixels without data.
    """
    options, labels, cases = reader.options, reader.labels, reader.cases
    scale = reader.scale
    unable = {
        f"alpha = {options.alpha!r}": options.alpha in ("keep", "mask"),
        f"fill = {options.fill}": options.fill is not None,
        f"axes = {options.axes!r}": options.axes is not None,
        f"intensity = {options.intensity!r}": scale in (NONZERO, INSIDE)
        or needs_whole_image(scale),
        "classes are colours": labels.colours,
        f"objects = {OF_FILES!r}": labels.objects == OF_FILES,
        "border is a class": labels.border,
        f"more than {UNKNOWN - 1} classes": len(labels.names) >= UNKNOWN,
        "a case has several images": len(cases[0].files.images) > 1,
    }
    for why, is_so in unable.items():
        if is_so:
            raise ValueError(f"its description says that {why}")
    root, first = reader.root, cases[0].headers
    for case in cases:
        paths = [root / file for file in (*case.files.images, *case.files.masks)]
        _check_image(paths[0], case.headers.image, first.image)
        for path, header, like in zip(paths[1:], case.headers.masks, first.masks, strict=True):
            _check_mask(path, header, like)
        for path in paths:
            _check_plain(path)
    slots = cases[0].files.mask_labels
    return EncodedCases(
        images=tuple(root / case.files.images[0] for case in cases),
        masks=tuple(tuple(root / file for file in case.files.masks) for case in cases),
        shapes=tuple(case.headers.image.shape for case in cases),
        image_dtype=first.image.dtype,
        in_colour=first.image.is_colour,
        grey=options.grey and first.image.is_colour,
        intensity=scale,
        labels=tuple(
            EncodedMask(
                codes=label_codes(labels, label, header.dtype),
                holds_one_value=labels.values is None
                and labels.threshold_of(label) is None
                and labels.objects != OF_NUMBERS,
            )
            for label, header in zip(slots, first.masks, strict=True)
        ),
        read=reader.read,
        around=0 if labels.ignored is None else IGNORED,
    )


def label_codes(mapping: LabelMapping, label: int, dtype: str) -> np.ndarray:
    """Return the code of each stored value of a class's mask, as `EncodedMask` has them."""
    if dtype == "bool":
        black, white = _codes_of(mapping, label, np.arange(2), white=255)
        codes = np.full(256, UNKNOWN, np.uint8)
        codes[[0, 255]] = black, white
        return codes
    return _codes_of(mapping, label, np.arange(2 ** (8 * np.dtype(dtype).itemsize)))


def _codes_of(
    mapping: LabelMapping, label: int, values: np.ndarray, white: int | None = None
) -> np.ndarray:
    """Return the code of each value; `white` is what the highest may be called, too."""
    if mapping.values is not None:
        known = dict(mapping.values)
        if white is not None and 1 not in known and white in known:
            known[1] = known[white]
        return np.array([known.get(value, UNKNOWN) for value in values.tolist()], np.uint8)
    threshold = mapping.threshold_of(label)
    steps = values if white is None else values * white
    inside = values != 0 if threshold is None else steps > threshold
    codes = np.where(inside, np.uint8(label), np.uint8(0))
    if mapping.ignored is not None:
        codes[values == mapping.ignored] = IGNORED
    return codes


def _check_image(path: Path, header: Header, first: Header) -> None:
    is_known = header.is_colour or header.channels == 1
    if header.dtype not in IMAGES or len(header.shape) != 2 or not is_known:
        raise ValueError(
            f"{path} is {len(header.shape)}D with {header.channels} channels of {header.dtype}"
        )
    if (header.dtype, header.is_colour) != (first.dtype, first.is_colour):
        raise ValueError(f"{path} has another type or other channels than the first image")


def _check_mask(path: Path, header: Header, first: Header) -> None:
    if header.dtype not in MASKS or header.channels != 1:
        raise ValueError(f"{path} holds {header.dtype} in {header.channels} channels")
    if header.dtype != first.dtype:
        raise ValueError(f"{path} holds {header.dtype}, and the first mask {first.dtype}")
    if path.suffix.lower() in LOSSY:
        raise ValueError(f"{path} is a mask stored as JPEG, which decoders round differently")


def _check_plain(path: Path) -> None:
    find = getattr(module_of(path), "beside_pixels", None)
    why = guarded(path, find) if find else "is no PNG, JPEG or TIFF"
    if why:
        raise ValueError(f"{path} {why}")
