"""What a file claims to hold, against what it holds: nothing is read on its word alone."""

import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tfunet.config.amount import GIB, in_bytes
from tfunet.files.remote import fetched

LIMIT_VARIABLE = "TFUNET_IMAGE_LIMIT"
DEFAULT_LIMIT = "4GiB"
# No image that somebody measured or drew packs better. Deflate packs zeros 1000 to 1.
PLAUSIBLE_RATIO = 100
SMALLEST_CHUNK = 2**10
POINTERS = {
    b"version https://git-lfs": "a Git LFS pointer; fetch the file itself with 'git lfs pull'",
    b"/annex/objects/": "a git-annex pointer; fetch the file itself with 'git annex get'",
}


def check_claim(shape: Sequence[int], itemsize: int, stored_bytes: int, what: str = "it") -> None:
    """Raise ValueError where few stored bytes claim to be very many pixels.

    Args:
        shape: What is claimed: of the array, or of one of its chunks.
        itemsize: Bytes of one of its values.
        stored_bytes: What the file or chunk takes where it is stored.
        what: What the claim is about, where it is not the file.
    """
    number = math.prod(map(int, shape))
    limit = _limit()
    if 4 * number <= limit or number * itemsize <= PLAUSIBLE_RATIO * stored_bytes:
        return
    needed = math.ceil(4 * number / GIB)
    raise ValueError(
        f"{what} claims {_times(shape)} values, which take {needed} GiB as float32, and is stored "
        f"in {stored_bytes} bytes. Damaged and hostile files claim so much; the limit is "
        f"{limit / GIB:g} GiB. If the claim is true, set {LIMIT_VARIABLE}={needed}GiB"
    )


def check_growth(before: Sequence[int], after: Sequence[int], why: str) -> None:
    """Raise ValueError where a setting makes very many pixels of few, or a single one."""
    number, limit = math.prod(after), _limit()
    if number == 1 < math.prod(before):
        raise ValueError(f"{why} leaves one pixel of {_times(before)}. Are both in the same unit?")
    if 4 * number > limit and number > PLAUSIBLE_RATIO * math.prod(before):
        needed = math.ceil(4 * number / GIB)
        raise ValueError(
            f"{why} makes {_times(after)} pixels of {_times(before)}, which take {needed} GiB as "
            f"float32; the limit is {limit / GIB:g} GiB. Correct it, or set "
            f"{LIMIT_VARIABLE}={needed}GiB"
        )


def _times(shape: Sequence[int]) -> str:
    return " x ".join(str(int(length)) for length in shape)


def check_chunk(stored_bytes: int, raw_bytes: int) -> None:
    """Raise ValueError for a compressed chunk that is larger than its pixels.

    No compression makes it so, but one that unpacks to more than the pixels.
    """
    if stored_bytes > 1.1 * raw_bytes + SMALLEST_CHUNK:
        raise ValueError(
            f"a chunk of {raw_bytes} bytes of pixels is stored in {stored_bytes} bytes: it is "
            "damaged, or was made to fill the memory"
        )


def check_regular(path: Path) -> None:
    """Raise ValueError for a pipe, a device or a socket, which may never end.

    A file of a server is fetched, since it will be opened next.
    """
    fetched(path)
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise ValueError(f"it is {kind} and no file; put a copy of the file itself there")


def check_folder(folder: Path) -> None:
    """Raise ValueError where a folder holds a pipe, a device or a socket at any depth."""
    for place, _, _ in os.walk(folder):
        with os.scandir(place) as entries:
            odd = [entry.name for entry in entries if not entry.is_file() and not entry.is_dir()]
        for name in odd:
            path = Path(place, name)
            if path.exists():  # A link to nothing is read as an absent file.
                try:
                    check_regular(path)
                except ValueError as error:
                    raise ValueError(f"{path.relative_to(folder)}: {error}") from error


def pointer(path: Path) -> str:
    """Say where the content of a file is, if the file only points to it; else ""."""
    if not path.exists():
        is_annexed = path.is_symlink() and "/annex/objects/" in os.readlink(path)
        return POINTERS[b"/annex/objects/"] if is_annexed else ""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.read(100)
    return next((what for mark, what in POINTERS.items() if start.startswith(mark)), "")


def _limit() -> int:
    return in_bytes(LIMIT_VARIABLE, os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT)
