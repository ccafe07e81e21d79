"""Finds images with a mask file for each object. Imports no TensorFlow."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from tfunet.data.class_lines import toml_value
from tfunet.data.defects import BadFileError
from tfunet.data.discovery.candidates import fitting, nearest, placeholder_values, spread
from tfunet.data.discovery.found_pairs import Pairs
from tfunet.data.discovery.mask_contents import LabelOptions, Values, plain_number
from tfunet.data.discovery.names import are_channels, runs
from tfunet.data.formats.container import composed, stem
from tfunet.data.image_files import read_mask
from tfunet.data.layouts.file_patterns import compiled, placeholders
from tfunet.data.layouts.label_mapping import OF_FILES
from tfunet.data.layouts.objects import ObjectNumbers

# Masks that candidates are taken from.
TRIED = 3
# Cases, and files of each, that are read to see whether a file holds one object.
CASES, FILES = 4, 50
# Objects of one image share at most this part of their pixels.
SHARED = 0.2
# At most this part of the masks is something else.
OTHERS = 0.1
# Files of a class whose values are read.
MOST_READ = 300
# A word in the name of a mask, with the number of its object or without.
WORD = re.compile(r"([^\W\d_]+)[-_. ]?\d*")
# With more words they are no classes.
MOST_CLASSES = 12
NAME = "foreground"

T = TypeVar("T")

# Each image to its masks.
Objects = Mapping[str, Sequence[str]]


def find_objects(
    images: Sequence[str], masks: Sequence[str], root: Path, *, is_said: bool = False
) -> Pairs | None:
    """Return the patterns by which images have a mask file for each object; None for others.

    Names and values must look like it, unless the user says that several files are one mask.
    """
    best: tuple[tuple[int, int, int], str, str] | None = None
    channels: dict[tuple[str, tuple[int, int, int]], list[str]] = {}
    for image_pattern, mask_pattern in sorted(_candidates(images, masks)):
        if placeholder_values(images, mask_pattern):
            continue  # Files of masks are never taken for images.
        found = objects_of(images, masks, image_pattern, mask_pattern)
        used = sum(map(len, found.values()))
        if used <= len(found) or 2 * used < len(masks):
            continue
        simple = -len(placeholders(image_pattern)) - (image_pattern + mask_pattern).count("*")
        rank = (used, len(found), simple)
        channels.setdefault((mask_pattern, rank), []).append(image_pattern)
        if best is None or rank > best[0]:
            best = rank, image_pattern, mask_pattern
    if best is None:
        return None
    rank, image_pattern, mask_pattern = best
    alike = channels[mask_pattern, rank]
    found = objects_of(images, masks, image_pattern, mask_pattern)
    values = placeholder_values(images, image_pattern)
    classes = {"": mask_pattern} if is_said else _classes(found, values, mask_pattern)
    if not classes or not (is_said or _look_like_objects(found, root)):
        return None
    return Pairs(
        images=tuple(alike) if len(alike) > 1 and are_channels(alike) else (image_pattern,),
        masks=classes,
        values=tuple(values[image] for image in found),
        objects=True,
    )


def objects_of(
    images: Sequence[str], masks: Sequence[str], image_pattern: str, mask_pattern: str
) -> dict[str, list[str]]:
    """Return the masks of each image that has some; none if a mask has several images."""
    names = placeholders(mask_pattern)
    of_images = {
        image: tuple(values.get(name, "") for name in names)
        for image, values in placeholder_values(images, image_pattern).items()
    }
    by_key = {key: image for image, key in of_images.items()}
    found: dict[str, list[str]] = {}
    if len(by_key) < len(of_images):
        return found
    expressions = [compiled(mask_pattern, longest=longest) for longest in (True, False)]
    for mask in masks:
        matches = [match for each in expressions if (match := each.fullmatch(mask))]
        keys = [tuple(match[name] for name in names) for match in matches]
        image = next((by_key[key] for key in keys if key in by_key), None)
        if image is not None:
            found.setdefault(image, []).append(mask)
    return dict(sorted(found.items()))


def object_options(
    root: Path,
    masks: Mapping[str, str],
    objects: Sequence[Mapping[str, Sequence[str]]],
    progress: Callable[[Iterable[str]], Iterable[str]],
) -> LabelOptions:
    """Return the options for masks of single objects: for each case its files of each class."""
    threshold: int | float = 0
    share = 0.0
    for name in masks:
        files = [file for case in objects for file in case[name]]
        some = {file: Values() for file in _some(files, MOST_READ)}
        for file in progress(list(some)):
            some[file].add(root / file)
        read = [values for values in some.values() if values.num_files]
        coloured = [file for file, values in some.items() if values.has_colours]
        if len(coloured) > OTHERS * len(some):
            raise ValueError(
                f"{coloured[0]} is a mask of one object, as others beside it are, and holds "
                "colours. Store 0 and one other value in it, or say --images and --masks."
            )
        several = [values for values in read if not values.is_binary]
        if len(several) <= OTHERS * len(read):  # Then only smooth ones count.
            several = [v for file, v in some.items() if v.num_files and v.is_smooth(file)]
        threshold = max([threshold, *(plain_number(values.high / 2) for values in several)])
        shares = [values.foreground_share for values in read]
        share += float(np.mean(shares or [0])) * len(files) / len(objects)
    num_files = sum(len(files) for case in objects for files in case.values())
    options: dict[str, Any] = {
        "masks": {name or NAME: pattern for name, pattern in masks.items()},
        "objects": OF_FILES,
    }
    reasons = {
        "masks": "All files of a case that match are its objects. Together they are the class: "
        "give it its name.",
        "objects": f"A mask file for each object: {num_files} in {len(objects)} cases."
        + _touching(root, objects),
    }
    if threshold:
        options["threshold"] = threshold
        reasons["threshold"] = "The masks have values in between: more than half is the object."
    return LabelOptions(
        options=options, reasons=reasons, num_classes=len(masks), foreground_share=min(share, 1)
    )


def _candidates(images: Sequence[str], masks: Sequence[str]) -> set[tuple[str, str]]:
    """Return patterns that fit an image and its masks, the end of whose names is free."""
    by_part: dict[str, list[str]] = {}
    for image in images:
        path = PurePosixPath(composed(image))
        for part in {stem(path.name), *path.parent.parts}:
            by_part.setdefault(part, []).append(image)
    found = set()
    for mask in spread(masks, TRIED):
        path = PurePosixPath(composed(mask))
        inside = [part for part in runs(stem(path.name)) if part in by_part]
        whole = [part for part in path.parent.parts if part in by_part]
        # The name of the folder may be a part of the image's name.
        parts = [run for part in path.parent.parts for run in runs(part) if run in by_part]
        for part in dict.fromkeys([*inside, *whole, *parts]):
            for image in nearest(mask, by_part[part]):
                for image_pattern, mask_pattern in fitting(image, mask, part):
                    found |= {(image_pattern, free) for free in _with_free_ends(mask_pattern)}
    return found


def _with_free_ends(pattern: str) -> Iterable[str]:
    """Yield a mask's pattern with a wildcard in the place of what tells its object."""
    path = PurePosixPath(pattern)
    plain = stem(path.name)
    ending = path.name.removeprefix(plain)
    start, case, rest = plain.partition("{case}")
    if case:
        if rest:
            separator = rest[0] if rest[0] in "-_. " else ""
            yield path.with_name(f"{start}{case}{separator}*{ending}").as_posix()
        if word := re.match(r"[-_. ]?[^\W\d_]+[-_. ]?(?=\d)", rest):
            yield path.with_name(f"{start}{case}{word[0]}*{ending}").as_posix()
        return
    yield path.with_name(f"*{ending}").as_posix()
    if word := re.match(r"[^\W\d_]+[-_. ]?(?=\d)", plain):
        yield path.with_name(f"{word[0]}*{ending}").as_posix()


def _classes(
    found: Objects, values: Mapping[str, Mapping[str, str]], pattern: str
) -> dict[str, str]:
    """Return class name to pattern; a single one has no name, and none is for files of classes."""
    start, _, end = PurePosixPath(pattern).name.partition("*")
    names = []
    for image, masks in found.items():
        before = len(start.replace("{case}", values[image].get("case", "")))
        names.append({PurePosixPath(mask).name[before : -len(end)] for mask in masks})
    if len(names) > 1 and all(own == names[0] for own in names):
        return {}  # The same names everywhere: of classes, or of the people who drew them.
    matches = [[WORD.fullmatch(name) for name in own] for own in names]
    words = [{match[1] for match in own if match} for own in matches]
    common = sorted({word for own in words for word in own})
    usual = [word for word in common if 2 * sum(word in own for own in words) >= len(words)]
    if not all(match for own in matches for match in own) or len(usual) < len(common):
        return {"": pattern}
    if any(match[0] == match[1] for own in matches for match in own if match):
        return {}
    is_clear = not any(a != b and b.startswith(a) for a in common for b in common)
    if len(common) == 1 or len(common) > MOST_CLASSES or not is_clear:
        return {"": pattern} if len(common) == 1 else {}
    return {word: pattern.replace(f"*{end}", f"{word}*{end}") for word in common}


def _some(files: Sequence[T], number: int) -> Sequence[T]:
    return files[:: -(-len(files) // number)] if files else files


def _look_like_objects(found: Objects, root: Path) -> bool:
    """Whether the masks of some images hold 0 and another value, and hardly overlap."""
    num_pixels = num_shared = num_files = num_others = 0
    for image in _some([image for image in found if len(found[image]) > 1], CASES):
        union: np.ndarray | None = None
        for mask in found[image][:FILES]:
            values = Values()
            values.add(root / mask)
            num_files += 1
            if values.has_colours or not (values.is_binary or values.is_smooth(mask)):
                num_others += 1
                continue
            inside = _inside(root / mask)
            if inside is None or (union is not None and union.shape != inside.shape):
                continue
            union = np.zeros_like(inside) if union is None else union
            num_pixels += int(inside.sum())
            num_shared += int((inside & union).sum())
            union |= inside
    # `tfunet data check` names a few that are none.
    is_usual = num_others <= OTHERS * num_files
    return is_usual and num_pixels > 0 and num_shared <= SHARED * num_pixels


def _inside(path: Path) -> np.ndarray | None:
    try:
        mask = read_mask(path, fractions=True)
    except (BadFileError, OSError):
        return None
    return mask > mask.max(initial=0) / 2


def _touching(root: Path, objects: Sequence[Mapping[str, Sequence[str]]]) -> str:
    """Return what to write where objects of an image that is looked at touch."""
    cases = [[file for files in case.values() for file in files] for case in objects]
    num_touching = num_read = 0
    for files in _some([files for files in cases if 1 < len(files) <= FILES], CASES):
        masks = [mask for file in files if (mask := _inside(root / file)) is not None]
        if not masks or len({mask.shape for mask in masks}) > 1:
            continue
        numbers = ObjectNumbers()
        for mask in masks:
            numbers.add(mask)
        num_read += 1
        num_touching += bool(numbers.borders().any())
    if not num_touching:
        return ""
    return (
        f" In {num_touching} of {num_read} images that were looked at, some touch, and so melt "
        "into one. To tell them apart, make where they meet a class of its own:\n"
        f"border = {toml_value('border')}"
    )
