"""The weight of each class in the loss, as a configuration gives it. Imports no TensorFlow."""

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfunet.config.run import RunConfig
from tfunet.config.words import check_known, near_match
from tfunet.data.cached_cases import CachedCases
from tfunet.data.class_lines import BACKGROUND, inline_table
from tfunet.data.source import DataSource
from tfunet.learning import LOSSES

KEY = "class_weights"
BALANCED = "balanced"


def given_weights(config: RunConfig) -> Any:
    """Return what a configuration says; () where it says nothing, or its loss is no one of ours."""
    return config.loss_options.get(KEY, ()) if config.loss in LOSSES else ()


def check_form(config: RunConfig) -> None:
    """Raise ValueError for weights that are neither a list, nor a table, nor "balanced"."""
    given = given_weights(config)
    several = list(given.values()) if isinstance(given, Mapping) else given
    is_several = isinstance(several, list | tuple)
    if given == BALANCED or (is_several and all(map(_is_weight, several))):
        return
    texts = [value for value in (several if is_several else [given]) if isinstance(value, str)]
    hint = near_match(texts[0], [BALANCED]) if texts else ""
    if texts and not hint:  # As "0.5,2.0" on a command line is one.
        hint = " On a command line write '[1, 2]' or '{\"NAME\": 2}'."
    raise ValueError(
        f"loss_options.{KEY} must be a list of numbers that are not negative, a table of them, "
        f"{{ NAME = 2.0 }}, or {BALANCED!r}, got {given!r:.80}.{hint}"
    )


def class_weights(
    config: RunConfig, source: DataSource, label_pixels: Sequence[int] | None = None
) -> tuple[float, ...]:
    """Return the weight of each label, background first; none where there are none, or no masks.

    Args:
        config: The configuration.
        source: Its data set.
        label_pixels: Pixels of each label in the training cases. Without them, as before the data
            are read, balanced weights are those of equal numbers of pixels.

    Raises ValueError for weights that do not fit the classes, and for balanced ones where a class
    has no pixel.
    """
    check_form(config)
    given = given_weights(config)
    if not given or not source.has_masks:
        return ()
    if isinstance(given, Mapping):
        return _by_name(given, source)
    if given == BALANCED:
        return _by_pixels(label_pixels or (1,) * source.num_classes, source)
    if len(given) != source.num_classes:
        raise ValueError(
            f"{KEY} has {len(given)} numbers, and there are {source.num_classes} classes, with "
            f"background. Give one for each, in this order: {', '.join(_classes(source))}. Or give "
            f"names: {_example(source)}."
        )
    return tuple(map(float, given))


def training_pixels(cases: CachedCases, train: Sequence[int]) -> tuple[int, ...]:
    """Return the pixels of each label in the training cases, background first.

    Pixels that count for nothing, and those with which small cases are padded, are left out. So
    are cases that nobody has read yet.
    """
    known = [signs.label_pixels for case in train if (signs := cases.signs(case)) is not None]
    return tuple(map(sum, zip(*known, strict=True)))


def weights_line(config: RunConfig, source: DataSource, weights: Sequence[float]) -> str:
    """Return the weight of each class in a line."""
    named = zip(_classes(source), weights, strict=True)
    way = ", balanced over the training cases" if given_weights(config) == BALANCED else ""
    return f"{KEY}{way}: {', '.join(f'{name} {weight:.6g}' for name, weight in named)}."


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def _by_pixels(label_pixels: Sequence[int], source: DataSource) -> tuple[float, ...]:
    """Return all pixels / (classes * pixels of the class) for each class, as scikit-learn does.

    A background that no pixel has is no class here. It weighs 0: only the zeros with which small
    images are padded have it.
    """
    first = 0 if source.has_background else 1
    names = _classes(source)
    absent = [names[label] for label in range(first, len(names)) if not label_pixels[label]]
    if absent:
        raise ValueError(
            f"{KEY} = {BALANCED!r} needs a pixel of every class in the training cases, and none "
            f"has one of {', '.join(absent)}. Give names and numbers instead: "
            f"{_example(source)}. Or train on cases that have it, with validation_groups or "
            "another split_seed."
        )
    num_pixels, num_classes = sum(label_pixels), len(names) - first
    return tuple(pixels and num_pixels / (num_classes * pixels) for pixels in label_pixels)


def _by_name(given: Mapping[str, float], source: DataSource) -> tuple[float, ...]:
    """Return the weight that a label's own class, or else the smallest of its regions, is given."""
    weights = [1.0] * source.num_classes
    labels_of = dict(_names(source))
    for name in given:
        check_known(f"class or region in {KEY}:", name, labels_of)
    for label in range(source.num_classes):
        sizes = {name: len(labels_of[name]) for name in given if label in labels_of[name]}
        least = [name for name, size in sizes.items() if size == min(sizes.values())]
        if len({given[name] for name in least}) > 1:
            raise ValueError(
                f"{KEY} gives the class {_classes(source)[label]} the weights "
                f"{' and '.join(f'{given[name]:g} ({name})' for name in least)}. Name the class."
            )
        if least:
            weights[label] = float(given[least[0]])
    return tuple(weights)


def _names(source: DataSource) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each name of classes and its labels: of the background, of regions, of classes."""
    yield BACKGROUND, (0,)
    yield from ((name, tuple(labels)) for name, labels in source.regions.items())
    for label, name in enumerate(source.class_names, start=1):
        yield name, (label,)


def _classes(source: DataSource) -> list[str]:
    """Return the number and name of each label."""
    empty = "" if source.has_background else " (no pixel has it)"
    return [f"0 {BACKGROUND}{empty}", *source.label_names().values()]


def _example(source: DataSource) -> str:
    *_, (name, _) = _names(source)
    return f"{KEY} = {inline_table({name: 2.0})}"
