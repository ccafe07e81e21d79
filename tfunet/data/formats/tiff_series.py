"""Which of a TIFF's pages are the image, with tifffile."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import tifffile

from tfunet.data.formats.claims import check_claim, check_regular
from tfunet.data.formats.orientation import TAG

# Formats whose first series is the image, and whose others are its labels and overviews.
SLIDES = ("svs", "scn", "ndpi", "bif", "qpi", "philips", "indica", "avs", "lsm", "sis", "mdgel")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the file and the series of its pages that is the image.

    Raises ValueError where the pages do not make one image.
    """
    check_regular(path)
    with tifffile.TiffFile(path) as file:
        _other_files(path, file)  # Raises before any of them is opened.
        _check_readable(path, file)
        kinds = {_kind(image) for image in file.series}
        if len(file.series) == 1 or len(kinds) > 1 or file.series[0].kind != "shaped":
            yield file, _checked(path, file)
            return
    # Pages alike that tifffile wrote one by one: a stack, as of any other program.
    with tifffile.TiffFile(path, is_shaped=False) as file:
        yield file, _checked(path, file)


def _checked(path: Path, file: Any) -> Any:
    series = _only(file)
    page = series.keyframe
    itemsize = page.dtype.itemsize if page.dtype else 1
    stored_bytes = path.stat().st_size
    stored_bytes += sum(other.stat().st_size for other in _other_files(path, file))
    check_claim(series.shape, itemsize, stored_bytes)
    if page.is_tiled:
        check_claim(page.tile, itemsize, stored_bytes, "a tile")
    _check_alike(series)
    return series


def _other_files(path: Path, file: Any) -> list[Path]:
    """Return the files beside an OME-TIFF in which its description says that pixels lie.

    Raises ValueError for files elsewhere, and for those that are none.
    """
    text = file.ome_metadata or "" if file.is_ome else ""
    if "FileName" not in text and "<!" not in text:
        return []
    named = {element.get("FileName") for element in ElementTree.fromstring(text).iter()}
    others = []
    for name in sorted(name for name in named if name and name != path.name):
        if Path(name).name != name:
            raise ValueError(f"its pixels lie in another folder, {name!r}; put the file beside it")
        if (other := path.with_name(name)).exists():  # tifffile leaves out what is missing.
            check_regular(other)
            others.append(other)
    return others


def _check_readable(path: Path, file: Any) -> None:
    """Raise ValueError where tifffile takes pages for a stack that they do not make."""
    try:
        for series in file.series:
            list(series.pages)
    except RuntimeError as error:
        with tifffile.TiffFile(path) as unread:
            kinds = [_kind(page) for page in unread.pages]
        raise ValueError(_unlike(kinds)) from error


def _only(file: Any) -> Any:
    """Return the series that is the image; thumbnails and masks for viewers are none."""
    series = file.series
    if len(series) == 1 or series[0].kind in SLIDES:
        return series[0]
    images = [
        image for image in series if not image.keyframe.is_reduced and not image.keyframe.is_mask
    ]
    if len(images) != 1:
        raise ValueError(_unlike([_kind(image) for image in images or series]))
    return images[0]


def _check_alike(series: Any) -> None:
    """Raise ValueError where a page is not like the first: tifffile looks at some of them only."""
    pages = [page for page in series.pages if page is not None]
    if len(pages) < 2 or any(getattr(page, "is_virtual", False) for page in pages[1:2]):
        return
    whole = [page.aspage() for page in pages]
    # Some programs write the tags of a stack into its first page only.
    turns = {_orientation(page) for page in whole if page is whole[0] or TAG in page.tags}
    if len({page.hash for page in whole}) > 1 or len(turns) > 1:
        raise ValueError(_unlike([_kind(page) for page in whole]))


def _kind(one: Any) -> str:
    """Describe a page or a series, as far as it may differ from others."""
    page = one.keyframe
    words = [" x ".join(map(str, one.shape)), str(one.dtype)]
    if page.photometric in (0, 3):
        words.append(page.photometric.name.lower())
    if page.compression != 1:
        words.append(page.compression.name.lower())
    if _orientation(page) != 1:
        words.append(f"orientation {_orientation(page)}")
    return " ".join(words)


def _orientation(page: Any) -> int:
    tag = page.tags.get(TAG)
    return int(tag.value) if tag else 1


def _unlike(kinds: Sequence[str]) -> str:
    runs = [f"{len(list(run))} of {kind}" for kind, run in groupby(kinds)]
    shown = ", then ".join(runs[:4]) + (", ..." if len(runs) > 4 else "")
    return (
        f"its pages do not make one image: {shown}. Save those of the image alone, all alike, to a "
        "file of its own"
    )
