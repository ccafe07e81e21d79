"""The pixel size that images of a folder are resampled to, if theirs differ. No TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from tfunet.data.discovery.run_file import RunFile, opened
from tfunet.data.doubts import SAME_SPACING
from tfunet.data.formats.units import sizes_in_words
from tfunet.data.layouts.file_patterns import find
from tfunet.files.typed import read_json

# Keys under which a JSON file beside an image states its pixel size, and the order of its numbers.
SIDECARS = {"PixelSize": "", "spacing": "array"}


def add_pixel_size(run: RunFile, folder: Path) -> None:
    """Add the size to resample to, if the pixels of cases differ in size."""
    data = run.keys["data"][0]
    known = [spacing for spacing in run.source.spacings if spacing is not None]
    if len(known) == len(run.source.case_ids):
        _add_target(run, data, known, {})
        return
    for pattern, key, order in _sidecars(run, folder):
        given: dict[str, Any] = {"file": pattern, "key": key, **({"order": order} if order else {})}
        try:
            sizes = _stated_sizes(folder, pattern, key, order, rank=len(run.source.patch))
        except ValueError:
            continue
        options = {name: value for name, (value, _) in run.options.items()}
        trial = {**options, "pixel_size": given, "target_pixel_size": 1.0}
        if sizes and opened(data, trial).case_ids == run.source.case_ids:
            _add_target(run, data, sizes, {"pixel_size": given})
            return


def _stated_sizes(
    folder: Path, pattern: str, key: str, order: str, *, rank: int
) -> list[tuple[float, ...]]:
    """Return the pixel sizes that JSON files state, along the axes of arrays."""
    sizes = []
    for file in find(folder, pattern):
        stated = (read_json(folder / file, dict[str, Any]) or {}).get(key)
        listed = stated if isinstance(stated, list) else [stated] * rank
        if len(listed) != rank or not all(isinstance(size, int | float) for size in listed):
            return []
        sizes.append(tuple(map(float, listed if order == "array" else reversed(listed))))
    return sizes


def _sidecars(run: RunFile, folder: Path) -> list[tuple[str, str, str]]:
    """Return (pattern, key, order) of the JSON files that lie beside the images."""
    if "images" not in run.options:
        return []
    images = run.options["images"][0]
    first = PurePosixPath(images if isinstance(images, str) else images[0])
    example = folder / run.source.files[0]
    found = []
    for path in sorted(example.parent.glob("*.json")):
        try:
            keys = read_json(path, dict[str, Any]) or {}
        except ValueError:
            continue
        # One for each image, or for all images of a group.
        own = first.name[: first.name.index(".")] + ".json"
        names = [own, own.replace("{case}", "*"), path.name, "*.json"]
        found += [
            (first.with_name(name).as_posix(), key, order)
            for name in names
            for key, order in SIDECARS.items()
            if key in keys
        ]
    return found


def _add_target(
    run: RunFile, data: str, sizes: Sequence[tuple[float, ...]], given: Mapping[str, Any]
) -> None:
    low, high = np.min(sizes, 0), np.max(sizes, 0)
    if not (high > SAME_SPACING * low).any():
        return
    target = [float(f"{size:.4g}") for size in np.median(sizes, 0)]
    value = target[0] if len(set(target)) == 1 else target
    span = f"from {sizes_in_words(low)} to {sizes_in_words(high)}"
    for name, option in given.items():
        run.options[name] = (option, "The files beside the images state their pixel sizes.")
    reason = f"Pixel sizes go {span}. All images are resampled to the median."
    run.options["target_pixel_size"] = (value, reason)
    options = {name: option for name, (option, _) in run.options.items()}
    run.source = opened(data, options)
