"""Regions of interest of ImageJ: .roi, or many in a .zip. Imports no TensorFlow."""

import re
import zipfile
from pathlib import Path
from typing import Any

from tfunet.data.formats.drawings import UNNAMED, Annotated, Annotations, DrawnObject, drawing

# All regions of a file together, unpacked.
MOST_BYTES = 2**28
# What ImageJ calls a region that nobody named: its place, such as 0012-0345-0678.
PLACE = re.compile(r"[-_ ]*\d[\d-]*$")
WITHOUT_AREA = ("LINE", "FREELINE", "POLYLINE", "ANGLE", "POINT", "NOROI")


def annotations(path: Path) -> Annotations:
    """Return the regions of a file."""
    import roifile

    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"its regions take more than {MOST_BYTES} bytes")
    found = roifile.roiread(path)
    regions = found if isinstance(found, list) else [found]
    drawn = Annotated(drawings=tuple(map(_drawing, regions)))
    return Annotations(kind="ImageJ", images={"": drawn})


def _drawing(region: Any) -> DrawnObject:
    """Return a region; its class is its name without a number."""
    name = PLACE.sub("", region.name or "") or UNNAMED
    kind = region.roitype.name
    if kind in WITHOUT_AREA:
        return DrawnObject(name=name, fault=f"is a {kind.lower()}, which has no area")
    coordinates = region.coordinates(multi=True)
    return drawing(name, coordinates if isinstance(coordinates, list) else [coordinates])
