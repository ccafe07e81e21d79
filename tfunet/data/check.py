"""Finds every defect of a data set in one pass. Imports no TensorFlow."""

from collections.abc import Sequence

import numpy as np

from tfunet.data.source import DataSource

SHOWN_DEFECTS = 20


def check(source: DataSource) -> list[str]:
    """Read every case and return one line for each that training cannot use."""
    defects = []
    for index, case_id in enumerate(source.case_ids):
        try:
            image, mask = source.read(index)
        except ValueError as error:
            defects.append(str(error))
            continue
        defects += [f"{case_id}: {what}" for what in case_defects(source, image, mask)]
    return defects


def case_defects(source: DataSource, image: np.ndarray, mask: np.ndarray) -> list[str]:
    """Return what is wrong with a case that was read, one line a defect."""
    found = []
    if image.dtype != np.float32 or mask.dtype != np.uint8:
        found.append(
            f"image of type {image.dtype} and mask of type {mask.dtype}; needed: float32 and uint8."
        )
    if image.ndim != len(source.patch) + 1 or image.shape[-1] != source.channels:
        spatial = ", ".join(["height", "width", "depth"][: len(source.patch)])
        found.append(f"image of shape {image.shape}; needed: ({spatial}, {source.channels}).")
    if mask.shape != image.shape[:-1]:
        found.append(f"mask of shape {mask.shape} for an image of shape {image.shape[:-1]}.")
    if not np.isfinite(image).all():
        found.append("the image holds NaN or infinity.")
    if mask.size and int(mask.max()) >= source.num_classes:
        found.append(
            f"labels out of range: up to {int(mask.max())}; allowed: 0 to {source.num_classes - 1}."
        )
    return found


def refuse(name: str, defects: Sequence[str], facts: str = "") -> None:
    """Raise ValueError that lists the defects, the first 20 in full; nothing if there are none."""
    if not defects:
        return
    count = "1 defect" if len(defects) == 1 else f"{len(defects)} defects"
    lines = [f"The data set {name!r} has {count}{f' ({facts})' if facts else ''}:"]
    lines += [f"  {one}" for one in defects[:SHOWN_DEFECTS]]
    if len(defects) > SHOWN_DEFECTS:
        lines.append(f"  ... and {len(defects) - SHOWN_DEFECTS} more.")
    raise ValueError("\n".join(lines))
