"""What the words in the names of files and folders mean. Imports no TensorFlow."""

import re
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import Any

from tfunet.data.formats.container import stem

MASK_WORDS = frozenset(
    (
        *("annot", "annotation", "annotations", "gt", "groundtruth", "truth", "manual"),
        *("lab", "label", "labels", "lbl", "mask", "masks", "msk", "roi", "rois"),
        *("seg", "segmentation", "segmentations", "segs", "target", "targets"),
    )
)
# Parts of a name that tell apart the channels of one image.
CHANNEL = re.compile(
    r"(?:t1|t2|t1c|t1ce|t1gd|t1n|t1w|t2w|t2f|flair|pd|adc|dwi|ct|cta|pet|mr|mri|suv|dapi|gfp|rfp|"
    r"red|green|blue|nir|\d{4}|c\d+|ch\d+|channel\d+|b\d+)",
    re.IGNORECASE,
)
# Parts of a name that tell apart several masks of the same thing.
RATER = re.compile(r"(?:rater|observer|expert|annotator|reader|manual|gt)?\d*", re.IGNORECASE)
SIDES = {
    **dict.fromkeys(("train", "training", "tr"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "ts", "holdout"), "test"),
}
# Words of masks that say where to look, and not what is there.
REGIONS = frozenset(("brain", "brainmask", "brainmasks", "body", "bodymask", "fov"))
# Words of letters of any alphabet.
LETTERS = r"[^\W\d_]+"
# Longer names have so many runs of words that all of them would take minutes.
MOST_WORDS = 12


def words(name: str) -> list[str]:
    """Return the words of a name in lower case: "labelsTr" has "labels" and "tr"."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]


def is_of_masks(name: str) -> bool:
    """Whether a name says that it is of masks."""
    return not MASK_WORDS.isdisjoint([*words(name), name.lower()])


def is_of_region(name: str) -> bool:
    """Whether a name, which may be a pattern, says where to look, and not what is there."""
    return not REGIONS.isdisjoint(words(name.rpartition("/")[2]))


def are_channels(patterns: Sequence[str]) -> bool:
    """Whether what tells image patterns apart are the usual names of channels."""
    return all(CHANNEL.fullmatch(re.split(r"[-_./ ]", part)[-1]) for part in differing(patterns))


def plain_name(patterns: Sequence[str]) -> str:
    """Return the pattern of an image whose name those of all others extend; "" if none is so.

    The others were made of it: Cellpose writes 1_flows.tif beside 1.tif.
    """
    names = {pattern: str(PurePosixPath(pattern).with_name(stem(pattern))) for pattern in patterns}
    plain = min(patterns, key=lambda pattern: len(names[pattern]))
    others = [name for pattern, name in names.items() if pattern != plain]
    is_plain = all(name.startswith(names[plain]) and name != names[plain] for name in others)
    return plain if is_plain else ""


def are_classes(patterns: Sequence[str]) -> bool:
    """Whether what tells mask patterns apart can be classes, and not people who drew them."""
    return not any(RATER.fullmatch(name) or "{" in name for name in differing(patterns))


def beside(name: str, siblings: Collection[str]) -> str:
    """Return the folder whose masks a folder holds, by its name: "trainannot" is beside "train".

    `siblings` are the folders that lie with it. Without such a folder, it is "".
    """
    for word in MASK_WORDS:
        if name.lower().endswith(word) and name[: -len(word)].rstrip("-_. ") in siblings:
            return name[: -len(word)].rstrip("-_. ")
    return ""


def shared_side(first: str, second: str) -> str:
    """Return what two folders' names have in common that can tell a split's sides; "" for nothing.

    That is one name that the other begins or ends with, or a word such as "train".
    """
    if second.startswith(first) or second.endswith(first):
        return first
    parts = re.findall(LETTERS, first)
    return next((part for part in parts if part.lower() in SIDES and part in second), "")


def runs(name: str) -> list[str]:
    """Return the parts of a name from the start of a word to the end of one, longest first."""
    found = list(re.finditer(rf"{LETTERS}|\d+", name))
    if len(found) > MOST_WORDS:
        found = list(re.finditer(r"[^\W_]+", name))[:MOST_WORDS]
    parts = {
        name[first.start() : last.end()] for at, first in enumerate(found) for last in found[at:]
    }
    return sorted(parts, key=lambda part: (-len(part), part))


def replaced(text: str, run: str, placeholder: str) -> str:
    """Return a text with a run of words replaced where it stands between words."""
    # A digit goes on with a digit, a letter with a letter.
    before = "" if not run[0].isalnum() else (r"(?<!\d)" if run[0].isdigit() else r"(?<![^\W\d_])")
    after = "" if not run[-1].isalnum() else (r"(?!\d)" if run[-1].isdigit() else r"(?![^\W\d_])")
    return re.sub(before + re.escape(run) + after, lambda _: placeholder, text)


def differing(patterns: Sequence[str]) -> list[str]:
    """Return the part of each pattern in which it differs from the others, in whole words."""
    split = [re.findall(r"\{\w+\}|[^\W_]+|[^\w{}]|_", pattern) for pattern in patterns]
    start = shared_start(split)
    end = shared_start([part[start:][::-1] for part in split])
    return ["".join(part[start : len(part) - end]).strip("._-/ ") for part in split]


def shared_start(names: Sequence[Sequence[Any]]) -> int:
    """Return how many letters, or parts, all names begin with."""
    shortest = min(map(len, names))
    differ = (at for at in range(shortest) if len({name[at] for name in names}) > 1)
    return next(differ, shortest)
