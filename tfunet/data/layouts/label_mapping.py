"""Which values in mask files are which classes. Imports no TensorFlow."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfunet.config.words import near_match
from tfunet.data.class_lines import BACKGROUND, inline_table, toml_value
from tfunet.data.no_data import IGNORED
from tfunet.files.printable import is_printable

IGNORE = "ignore_label"
# How masks tell the objects of a class apart.
OF_FILES, OF_NUMBERS = "files", "numbers"


@dataclass(frozen=True, kw_only=True)
class LabelMapping:
    """How the values in a case's mask files become labels.

    Args:
        names: Names of the classes 1, 2, ...
        patterns: One file pattern for each class, or a single one for a file with all classes.
        values: File value to label, for a single file with all classes; None where each class has
            a file of its own.
        threshold: With a file for each class: pixels above this value belong to the class. None:
            the file holds 0 and at most one other value, which is the class.
        own_thresholds: Thresholds of classes that have one of their own, by label.
        colours: Whether the values are colours, as 0xRRGGBB.
        ignored: File value of pixels that count neither in losses nor in scores. With a single
            file for all classes it is among `values`, too.
        objects: How the masks tell the objects of a class apart: OF_FILES if each file of a class
            holds one, OF_NUMBERS if each has a number of its own; empty if they do not.
        border: Whether the last class, which has no pattern, is where two objects meet.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    values: Mapping[int, int] | None
    threshold: float | None
    colours: bool = False
    ignored: int | None = None
    objects: str = ""
    border: bool = False
    own_thresholds: Mapping[int, float] = field(default_factory=dict)

    @property
    def takes_fractions(self) -> bool:
        """Whether the masks need not hold whole numbers."""
        return self.threshold is not None or bool(self.own_thresholds)

    def threshold_of(self, label: int) -> float | None:
        """Return the threshold of a class that has a file of its own."""
        return self.own_thresholds.get(label, self.threshold)

    @property
    def has_background(self) -> bool:
        """Whether a value, or a pixel without a class, is label 0."""
        return self.values is None or 0 in self.values.values()

    def values_of_labels(self) -> tuple[tuple[int | str, ...], ...]:
        """Return the values of each label as a configuration has them, background first; none where
        each class has a file of its own."""
        if self.values is None:
            return ()
        return tuple(
            tuple(
                f"#{value:06x}" if self.colours else value
                for value, its_label in self.values.items()
                if its_label == label
            )
            for label in range(len(self.names) + 1)
        )

    def swapped(self) -> str:
        """Return how to make the background the class; empty for several classes, or objects."""
        if len(self.names) > 1 or self.objects:
            return ""
        if self.threshold is not None and self.threshold <= 0:
            return ""
        (pattern,) = self.patterns
        if not pattern:  # dataset.json has the classes.
            return "give them the number of the class in the masks, and 0 to all others"
        if self.values is None:
            return (
                "and the masks hold 0 and one other value, such as 255, write under "
                f"[data_options], without threshold: masks = {toml_value(pattern)} and "
                f"classes = {{ NAME = 0, {BACKGROUND} = 255 }}"
            )
        others, own = ([value for value in self.values if self.values[value] == n] for n in (0, 1))
        return f"write under [data_options]: {self._classes_line(others, own)}" if others else ""

    def _classes_line(self, own: Sequence[int], others: Sequence[int]) -> str:
        """Return the line of a configuration in which these values are the class NAME."""
        shown: list[list[int | str]] = [
            [f"#{value:06x}" if self.colours else value for value in values]
            for values in (own, others)
        ]
        texts = [toml_value(values[0] if len(values) == 1 else values) for values in shown]
        rest = "" if list(others) == [0] else f", {BACKGROUND} = {texts[1]}"
        return f"classes = {{ NAME = {texts[0]}{rest} }}"

    def channel_values(self, channels: int) -> Sequence[int]:
        """Return the file value that each channel of a one-hot mask stands for; () if unknown.

        The channels are numbered as the values are, from 0 with the background and from 1 without
        it, or else they are in the order of the classes.
        """
        if self.values is None or self.colours:
            return ()
        first = {label: value for value, label in reversed(list(self.values.items()))}
        classes = [first[label] for label in range(1, len(self.names) + 1)]
        for order in (range(channels), range(1, channels + 1), (0, *classes), classes):
            labels = {self.values.get(value) for value in order}
            if len(order) == channels and labels | {0} == set(range(len(classes) + 1)):
                return tuple(order)
        return ()


def label_mapping(
    masks: str | Mapping[str, str],
    classes: Mapping[str, Any] | None,
    threshold: float | Mapping[str, float] | None,
    ignore_label: int | str | None = None,
    *,
    objects: str | None = None,
    border: str | None = None,
) -> LabelMapping:
    """Return the mapping that the options of `open_folder` describe."""
    _check_names("class", (*(classes or {}), *(masks if isinstance(masks, Mapping) else ())))
    if isinstance(masks, str) and classes is None:
        masks = {"foreground": masks}
    threshold, own_thresholds = _thresholds(threshold, masks)
    has_threshold = threshold is not None or bool(own_thresholds)
    _check_objects(masks, objects=objects, border=border, has_threshold=has_threshold)
    if isinstance(masks, str):
        if threshold is not None or own_thresholds:
            raise ValueError(
                "threshold= makes one class of a mask and classes= several. Give one of the two; "
                "for one class: masks = {NAME = PATTERN} and threshold."
            )
        names, values, colours = _class_values(classes or {}, ignore_label)
        ignored = None if ignore_label is None else _number(IGNORE, ignore_label)
        return LabelMapping(
            names=names,
            patterns=(masks,),
            values=values,
            threshold=None,
            colours=colours,
            ignored=ignored,
        )
    if classes is not None:
        raise ValueError(
            "classes= says which values a single mask file holds, but masks= names a file for each "
            "class. Leave classes out, or give one pattern as masks."
        )
    if BACKGROUND in masks:
        raise ValueError(
            f"masks= names a file for {BACKGROUND!r}, which needs none: it is where no class is. "
            "Leave it out, or give the class another name."
        )
    if not masks:
        raise ValueError("masks= names no file. Give a pattern, or {CLASS = PATTERN, ...}.")
    if ignore_label == 0 or isinstance(ignore_label, str):
        raise ValueError(
            f"{IGNORE}={ignore_label!r}, and in a mask of one class 0 is the background. Give the "
            "value of the pixels that count for nothing, such as 255."
        )
    return LabelMapping(
        names=(*masks, *([] if border is None else [border])),
        patterns=tuple(masks.values()),
        values=None,
        threshold=threshold,
        ignored=ignore_label,
        objects=objects or "",
        border=border is not None,
        own_thresholds=own_thresholds,
    )


def _thresholds(
    given: float | Mapping[str, float] | None, masks: str | Mapping[str, str]
) -> tuple[float | None, dict[int, float]]:
    """Return the threshold of all classes, and those of each by label."""
    table = given if isinstance(given, Mapping) else {}
    values = [given] if isinstance(given, int | float) else list(table.values())
    if not all(map(math.isfinite, values)):
        raise ValueError(f"threshold={given}; allowed: a number, such as 127, for each class.")
    if not isinstance(given, Mapping):
        return given, {}
    names = [] if isinstance(masks, str) else list(masks)
    for name in table:
        if names and name not in names:
            raise ValueError(
                f"threshold= names the class {name!r}.{near_match(name, names)} Known: "
                f"{', '.join(names)}."
            )
    if len(names) == 1 and table:
        return table[names[0]], {}
    return None, {names.index(name) + 1 if names else 1: value for name, value in table.items()}


def named_regions(
    regions: Mapping[str, Sequence[str]] | None, names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Return region name to labels; by default each class is a region of its own."""
    if regions is None:
        return {name: (label,) for label, name in enumerate(names, start=1)}
    _check_names("region", regions)
    classes = {region: _several(members) for region, members in regions.items()}
    for region, members in classes.items():
        for member in members:
            if member not in names:
                raise ValueError(
                    f"Region {region!r} names the class {member!r}.{near_match(str(member), names)}"
                    f" Known: {', '.join(names)}."
                )
    return {
        region: tuple(list(names).index(member) + 1 for member in members)
        for region, members in classes.items()
    }


def _check_objects(
    masks: str | Mapping[str, str],
    *,
    objects: str | None,
    border: str | None,
    has_threshold: bool,
) -> None:
    if objects not in (None, OF_FILES, OF_NUMBERS):
        raise ValueError(
            f"objects={objects!r}; allowed: {OF_FILES!r} (each mask file holds one object), "
            f"{OF_NUMBERS!r} (the pixels of each object have a number of their own)."
        )
    if objects and isinstance(masks, str):
        raise ValueError(
            "objects= tells the objects of a class apart, and classes= says which classes the "
            "values of a file are. Leave classes out: masks = { NAME = PATTERN }."
        )
    if objects == OF_NUMBERS and has_threshold:
        raise ValueError(
            f"objects={objects!r} takes each pixel above 0 for a part of an object. Leave "
            "threshold out."
        )
    if border is None:
        return
    if not objects:
        raise ValueError(
            "border= names the class where two objects meet, so the masks must tell objects "
            f"apart. Give it with objects = {toml_value(OF_FILES)} (a file for each object), or "
            f"objects = {toml_value(OF_NUMBERS)} (each object has a number)."
        )
    if border in masks or border == BACKGROUND:
        raise ValueError(f"border={border!r} is a class of masks=, too. Give it another name.")
    _check_names("class", [border])


def _check_names(kind: str, names: Iterable[str]) -> None:
    for name in names:
        if not name.strip() or not is_printable(name):
            raise ValueError(
                f"The name {name!r} of a {kind} has hidden characters, or none. It stands in "
                "records and tables: write it in one line of letters, digits and the like."
            )


def _class_values(
    classes: Mapping[str, Any], ignore_label: int | str | None
) -> tuple[tuple[str, ...], dict[int, int], bool]:
    """Return the classes' names, value to label, and whether the values are colours."""
    names = tuple(name for name in classes if name != BACKGROUND)
    if not 1 <= len(names) <= 255:
        raise ValueError(
            f"classes= names {len(names)} classes besides the background; allowed: 1 to 255, "
            "written {NAME = VALUE, ...}."
        )
    given = {name: _several(values) for name, values in classes.items()}
    marks = [] if ignore_label is None else [ignore_label]
    kinds = {isinstance(value, str) for several in (*given.values(), marks) for value in several}
    if len(kinds) > 1:
        raise ValueError("classes= mixes values and colours. Give only one of the two.")
    values: dict[int, int] = {}
    owners: dict[int, str] = {}
    for name, several in given.items():
        for value in several:
            number = _number(name, value)
            if number in values:
                raise ValueError(
                    f"classes= gives the value {value} to {owners[number]!r} and to {name!r}: two "
                    "classes. Each value has one class."
                )
            values[number] = 0 if name == BACKGROUND else names.index(name) + 1
            owners[number] = name
    if BACKGROUND not in given:
        if 0 in values:
            raise ValueError(_zero_is_taken(owners[0], classes, is_colour=kinds == {True}))
        values = {0: 0, **values}
    for mark in marks:
        if _number(IGNORE, mark) in values:
            raise ValueError(
                f"{IGNORE}={mark!r} is the value of a class or of the background, too. Give the "
                "value of the pixels that count for nothing."
            )
        values[_number(IGNORE, mark)] = IGNORED
    return names, values, kinds == {True}


def _zero_is_taken(name: str, classes: Mapping[str, Any], *, is_colour: bool) -> str:
    """Return what to write where a class has the value of the background."""
    white = "#ffffff" if is_colour else 255
    message = (
        f"classes= gives {classes[name]!r} to {name!r}, and this is the background unless classes "
        "says what is. "
    )
    if len(classes) > 1:
        every = inline_table({**classes, BACKGROUND: []})
        return message + (
            f"If each pixel has one of these classes, write: classes = {every}. Else name the "
            f"values of the others in the place of [], inside classes."
        )
    other = inline_table({**classes, BACKGROUND: white})
    return message + (
        f"Name the value of all other pixels inside classes, such as: classes = {other}."
    )


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _number(name: str, value: Any) -> int:
    """Return a value, or a colour "#rrggbb" as 0xRRGGBB."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("#[0-9a-fA-F]{6}", value):
        return int(value[1:], 16)
    raise ValueError(
        f"Class {name!r} has the value {value!r}; allowed: whole numbers, or colours such as "
        "'#ff0000'."
    )
