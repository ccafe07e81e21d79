"""What the values in mask files stand for. Imports no TensorFlow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.data.class_lines import BACKGROUND, MOST_SHARE, dice_everywhere, inline_table
from tfunet.data.defects import BadFileError
from tfunet.data.discovery.class_overlaps import Overlaps
from tfunet.data.image_files import read_header, read_mask
from tfunet.data.layouts.label_mapping import OF_NUMBERS, LabelMapping, label_mapping
from tfunet.data.layouts.label_reader import FEW_BITS

# Masks with more values number their objects.
MOST_CLASSES = 40
# Masks whose numbers go up to more, without gaps and each to another number, number objects.
MOST_GAPLESS = 12
# Two masks with a larger Dice show the same.
SAME = 0.8
# What VOC and many after it write where a pixel is not to be judged.
VOID = 255
LABELS = ("classes", "objects")
MELT = (
    "All are one class. In predictions, objects that touch melt into one. To tell them apart, make "
    'where they meet a class of its own:\nborder = "border"'
)


@final
@dataclass(kw_only=True)
class Values:
    """The values that the mask files of one pattern hold."""

    num_files: int = 0
    has_colours: bool = False
    has_fractions: bool = False
    distinct: set[int] = field(default_factory=set)
    # The highest value of each file whose values are 1, 2, ... without a gap.
    gapless: list[int] = field(default_factory=list)
    high: float = 0.0
    # Foreground pixels with the highest value of an 8-bit file.
    full: int = 0
    # Whether a file holds 255 beside other values than 0.
    has_void: bool = False
    foreground: int = 0
    pixels: int = 0

    def add(self, path: Path) -> None:
        """Look at a file; one that cannot be read is left to `tfunet data check`."""
        try:
            values = self._read(path)
        except (BadFileError, OSError):
            return
        self.num_files += 1
        self.pixels += values.size
        self.foreground += int((values != 0).sum())
        self.high = max(self.high, float(values.max(initial=0)))
        self.full += int((values == VOID).sum())
        if values.dtype.kind == "f" and not (values == np.rint(values)).all():
            self.has_fractions = True
            return
        present = {int(value) for value in np.unique(values)}
        numbers = present - {0}
        self.has_void = self.has_void or (VOID in numbers and len(numbers) > 1)
        if numbers == set(range(1, len(numbers) + 1)):
            self.gapless.append(len(numbers))
        if len(self.distinct) <= 10 * MOST_CLASSES:
            self.distinct |= present

    def _read(self, path: Path) -> np.ndarray:
        if not self.has_colours:
            try:
                values = read_mask(path, fractions=True)
                # White is white, in any number of bits.
                most = FEW_BITS.get(read_header(path, mask=True).dtype, 0)
                return values * np.uint8(VOID // most) if most else values
            except BadFileError:
                colours = read_mask(path, colours=True)
                self.has_colours = True
                self.distinct.clear()
                return colours
        return read_mask(path, colours=True)

    @property
    def numbers(self) -> list[int]:
        """The values besides 0, in order."""
        return sorted(self.distinct - {0})

    @property
    def is_binary(self) -> bool:
        """Whether the files hold 0 and one other value."""
        return not self.has_fractions and not self.has_colours and len(self.numbers) <= 1

    @property
    def foreground_share(self) -> float:
        """Share of the judged pixels that are not 0."""
        void = self.full if self.marks_void else 0
        return (self.foreground - void) / max(self.pixels - void, 1)

    @property
    def marks_void(self) -> bool:
        """Whether 255, far above the other numbers, marks pixels that are not judged."""
        numbers = self.numbers
        is_apart = len(numbers) > 1 and numbers[-1] == VOID and numbers[-2] < VOID // 2
        return is_apart and self.has_void and not self.has_colours and not self.has_fractions

    def numbers_objects(self) -> bool | None:
        """Whether the values number objects; None if they may be classes as well."""
        if self.has_colours or self.is_binary:
            return False
        ends = set(self.gapless)
        is_gapless = len(self.gapless) == self.num_files and len(ends) > 2
        if is_gapless and max(ends) > MOST_GAPLESS:
            return True
        if is_gapless and max(ends) > 4:
            return None
        return len(self.numbers) > MOST_CLASSES

    def is_smooth(self, path: str) -> bool:
        """Whether a mask of one class has values between none and all, as JPEG makes them."""
        if self.has_colours or self.is_binary:
            return False
        # Anti-aliased edges: most of the class is white.
        is_white = self.high == VOID and 2 * self.full > self.foreground
        return self.has_fractions or _is_lossy(path) or (is_white and len(self.numbers) > 2)


@final
@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """How masks become labels: options of `open_folder`, each with its reason."""

    options: Mapping[str, Any]
    reasons: Mapping[str, str]
    num_classes: int
    foreground_share: float


def label_options(
    root: Path,
    masks: Mapping[str, str],
    files: Mapping[str, Sequence[str]],
    labels: str | None,
    progress: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> LabelOptions:
    """Read all masks, and return what they hold.

    Args:
        root: Folder of the files.
        masks: Class name to pattern; "" for a file with all classes.
        files: Class name to the files of all cases, in the same order.
        labels: "classes" or "objects", if the user says what the numbers are.
        progress: Wraps the files of a class, as tqdm does.

    Raises ValueError, with what to say, for values that may stand for several things.
    """
    values = {name: Values() for name in masks}
    for name, paths in files.items():
        for file in progress(paths):
            values[name].add(root / file)
    if not any(contents.num_files for contents in values.values()):
        raise ValueError(
            f"No mask can be read, such as {next(iter(files.values()))[0]}. Store masks as PNG, "
            "TIFF or NIfTI with a whole number for each class."
        )
    if "" in masks:
        return _of_one_file(values[""], masks[""], files[""][0], labels)
    return _of_a_file_each(root, masks, files, values)


def _of_one_file(values: Values, pattern: str, path: str, labels: str | None) -> LabelOptions:
    share = values.foreground_share
    if values.is_smooth(path):
        return _thresholded(
            pattern,
            values.high / 2,
            f"The masks hold values between 0 and {values.high:g}: more than half is the class.",
            share,
        )
    are_objects = values.numbers_objects() if labels is None else labels == "objects"
    if are_objects is None:
        raise ValueError(
            f"The masks hold the numbers 1 to {max(values.gapless)}, each mask without a gap, as "
            "numbered objects do. Are they classes, or do they number objects of one class? Say "
            "--labels classes or --labels objects."
        )
    if are_objects:
        return LabelOptions(
            options={"masks": {"foreground": pattern}, "objects": OF_NUMBERS},
            reasons={
                "masks": "One class. Give it its name.",
                "objects": f"The masks number their objects, up to {values.high:g}. {MELT}",
            },
            num_classes=1,
            foreground_share=share,
        )
    classes, reason = _classes(values, pattern)
    options: dict[str, Any] = {"masks": pattern, "classes": classes}
    reasons = {"classes": reason + _swapped(label_mapping(pattern, classes, None), share)}
    if len(classes) > 1 and share > MOST_SHARE and not values.has_colours:
        reasons["classes"] += _dense(classes, marks_void=values.marks_void)
    if values.marks_void:
        options["ignore_label"] = VOID
        reasons["ignore_label"] = (
            "255 beside small numbers marks pixels that are not judged: they count neither in the "
            "loss nor in scores. If it is a class, name it in classes, and leave this out."
        )
    return LabelOptions(
        options=options, reasons=reasons, num_classes=len(classes), foreground_share=share
    )


def _classes(values: Values, pattern: str) -> tuple[dict[str, Any], str]:
    """Return the classes that the numbers or colours of masks stand for, and what to say."""
    numbers = values.numbers
    if values.has_colours and len(numbers) > MOST_CLASSES:
        raise ValueError(
            f"The masks of {pattern!r} hold {len(numbers)} colours, more than the {MOST_CLASSES} "
            "that classes may have. Are they images, or was their palette lost (JPEG, smoothing)? "
            "Say which files are the masks with --masks PATTERN, or store a number for each class."
        )
    if values.has_colours:
        classes: dict[str, Any] = {f"colour_{number:06x}": f"#{number:06x}" for number in numbers}
        reason = "The colours in the masks; black is the background. Give them their names."
    elif len(numbers) == 1:
        classes, reason = {"foreground": numbers[0]}, "The masks hold 0 and this value."
    else:
        classes = {f"class_{number}": number for number in numbers if number >= 0}
        reason = "The numbers in the masks; 0 is the background. Give them their names."
    if values.marks_void:
        del classes[f"class_{VOID}"]
    if not classes:
        raise ValueError(
            f"All masks of {pattern!r} are empty: no pixel has a value other than 0. Say which "
            "files are the masks with --masks PATTERN."
        )
    return classes, reason


def _dense(classes: Mapping[str, Any], *, marks_void: bool) -> str:
    """Return what to write where nearly each pixel has a class, and 0 may be one of them."""
    every = inline_table({"class_0": 0, **classes, BACKGROUND: []})
    words = (
        "\nMost pixels have a class. If 0 is one of its own, such as sky, write:\n"
        f"classes = {every}"
    )
    if not marks_void:
        name, last = list(classes.items())[-1]
        words += (
            f"\nIf a number marks pixels without a label, such as {last}, leave {name} out of "
            f"classes, and write:\nignore_label = {last}"
        )
    return words


def _swapped(mapping: LabelMapping, share: float) -> str:
    """Return what to do if the class is the background; empty unless it has most pixels."""
    advice, colon, line = mapping.swapped().rpartition(": ")
    if not advice or share <= MOST_SHARE:
        return ""
    return (
        f" The class {mapping.names[0]} has {share:.0%} of all pixels: a network that predicts it "
        f"everywhere has a Dice of about {dice_everywhere(share):.2f}. If the other pixels are "
        f"what you look for, {advice.replace(' under [data_options]', '')}{colon}\n"
        + line.replace(" and classes", "\nclasses")
    )


def _thresholded(pattern: str, threshold: float, reason: str, share: float) -> LabelOptions:
    return LabelOptions(
        options={"masks": {"foreground": pattern}, "threshold": plain_number(threshold)},
        reasons={"masks": "One class. Give it its name.", "threshold": reason},
        num_classes=1,
        foreground_share=share,
    )


def plain_number(number: float) -> int | float:
    """Return a number without a fraction where it has none, or is beyond probabilities."""
    return int(number) if float(number).is_integer() or number > 1 else number


def _of_a_file_each(
    root: Path,
    masks: Mapping[str, str],
    files: Mapping[str, Sequence[str]],
    values: Mapping[str, Values],
) -> LabelOptions:
    threshold: int | float | None = None
    reasons = {"masks": "A mask file for each class. Where two overlap, the later one wins."}
    if any(contents.has_colours for contents in values.values()):
        raise ValueError(
            "The masks of single classes hold colours, and a class has one number there. Say which "
            "files are the masks with --masks PATTERN."
        )
    smooth = [name for name, contents in values.items() if contents.is_smooth(files[name][0])]
    # A file with the values of several classes holds them between 0 and white, as edges do.
    lossy = [name for name in smooth if _is_lossy(files[name][0]) or values[name].has_fractions]
    edge = _half(values, lossy) if lossy else 0
    overlaps = Overlaps(root, files, edge)
    unions = [name for name in masks if overlaps.is_union(name)]
    kept = [name for name in masks if name not in (*unions, BACKGROUND)]
    for at, first in enumerate(kept):
        for second in kept[at + 1 :]:
            if overlaps.dice(first, second) > SAME:
                raise ValueError(
                    f"The masks {masks[first]!r} and {masks[second]!r} mark the same pixels (Dice "
                    f"{overlaps.dice(first, second):.2f}), as those of two people do. Say which to "
                    "use with --masks PATTERN."
                )
    are_numbered = any(values[name].numbers_objects() for name in kept if name not in smooth)
    if are_numbered and not set(smooth).intersection(kept):
        reasons["objects"] = f"The masks number their objects. {MELT}"
    elif are_numbered:
        threshold = 0
        reasons["threshold"] = "The masks number their objects. All objects are one class."
    elif not all(values[name].is_binary for name in kept):
        threshold = _half(values, kept)
        reasons["threshold"] = "The masks have values in between: more than half is the class."
    if BACKGROUND in masks:
        reasons["masks"] += f" {BACKGROUND} is left out: it is where no class is."
    if unions:
        reasons["masks"] += f" {', '.join(unions)} is left out: it is the others together."
    # The inner one of nested classes must come later.
    kept.sort(key=lambda name: -values[name].foreground)
    chosen = {name: masks[name] for name in kept}
    options: dict[str, Any] = {"masks": chosen}
    if "objects" in reasons:
        options["objects"] = OF_NUMBERS
    elif threshold is None and len(kept) == 1:
        share = values[kept[0]].foreground_share
        reasons["masks"] += _swapped(label_mapping(chosen, None, None), share)
    if threshold is not None:
        options["threshold"] = threshold
    return LabelOptions(
        options=options,
        reasons=reasons,
        num_classes=len(kept),
        foreground_share=sum(values[name].foreground_share for name in kept),
    )


def _is_lossy(path: str) -> bool:
    return path.lower().endswith((".jpg", ".jpeg", ".webp"))


def _half(values: Mapping[str, Values], names: Sequence[str]) -> int | float:
    return plain_number(max(values[name].high for name in names) / 2)
