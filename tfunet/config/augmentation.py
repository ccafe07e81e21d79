"""Random changes of training samples, and their amounts. Imports no TensorFlow.

Amounts are degrees, pixels, factors, or shares of the patch. Brightness and noise are in the
image's own unit: its standard deviation if it was normalised with "zscore".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfunet.config.words import check_known, near_match

Axes = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AmountKind:
    """The amounts that one augmentation allows.

    Args:
        default: The range that `true` stands for.
        allowed: The least and the greatest amount.
        neutral: The amount that changes nothing: 1 for a factor.
        needs_axes: The least number of array axes that it acts on; 0 if it acts on grey values.
    """

    default: tuple[float, float]
    allowed: tuple[float, float]
    neutral: float = 0.0
    needs_axes: int = 0

    def around(self, amount: float) -> tuple[float, float]:
        """Return the range that a single number stands for."""
        if self.neutral == 1:
            return min(amount, 1 / amount), max(amount, 1 / amount)
        return (-abs(amount), abs(amount)) if self.allowed[0] < 0 else (0.0, amount)


SMALLEST_FACTOR = 0.01
# In the order in which they are applied. The default ranges of blur, contrast, gamma and noise are
# those of nnU-Net (Isensee et al. 2021, supplement).
KINDS = {
    "rotation": AmountKind(default=(-15, 15), allowed=(-180, 180), needs_axes=2),
    "scale": AmountKind(
        default=(0.8, 1.25), allowed=(SMALLEST_FACTOR, 100), neutral=1, needs_axes=1
    ),
    "shear": AmountKind(default=(-10, 10), allowed=(-60, 60), needs_axes=2),
    "translation": AmountKind(default=(-0.1, 0.1), allowed=(-1, 1), needs_axes=1),
    "elastic": AmountKind(default=(0, 2), allowed=(0, math.inf), needs_axes=1),
    "blur": AmountKind(default=(0.5, 1), allowed=(0, 20)),
    "brightness": AmountKind(default=(-0.25, 0.25), allowed=(-math.inf, math.inf)),
    "contrast": AmountKind(default=(0.75, 1.25), allowed=(SMALLEST_FACTOR, 100), neutral=1),
    "gamma": AmountKind(default=(0.7, 1.5), allowed=(SMALLEST_FACTOR, 100), neutral=1),
    "noise": AmountKind(default=(0, 0.1), allowed=(0, math.inf)),
}
TURNS = ("flips", "rotation90")
NAMES = (*TURNS, *KINDS)
ELASTIC_SIGMA = 10.0


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A random amount, drawn anew for every sample.

    Args:
        low: The least amount.
        high: The greatest amount.
        probability: Chance that a sample is changed at all.
        axes: Array axes that it acts on; all by default.
        sigma: Smoothness of an elastic deformation, in pixels.
    """

    low: float
    high: float
    probability: float = 1.0
    axes: Axes | None = None
    sigma: float = ELASTIC_SIGMA


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """The random changes of a sample; None, False or no axes mean no change.

    Args:
        flips: Axes to reverse, each with a chance of one half: all (True), none, or these.
        rotation90: Axes in whose planes to turn by a multiple of 90 degrees, with equal chances:
            all (True), none, or these. They must have equal lengths.
        rotation: Degrees, in each plane of two axes. Positive turns the first axis towards the
            second, as numpy.rot90 does.
        scale: Factor by which objects grow, the same along all axes.
        shear: Degrees by which the second axis of each plane leans towards the first.
        translation: Share of the patch's length, along each axis.
        elastic: Standard deviation of a smooth random displacement, along each axis, in pixels
            (Simard et al. 2003).
        blur: Standard deviation of a Gaussian filter for each channel, in pixels.
        brightness: Amount added to each channel.
        contrast: Factor of the distance from each channel's mean. The channel keeps its range.
        gamma: Exponent of each channel after scaling to 0..1. The channel keeps its mean and its
            standard deviation.
        noise: Standard deviation of Gaussian noise, for each channel.
    """

    flips: bool | Axes = True
    rotation90: bool | Axes = False
    rotation: Amount | None = None
    scale: Amount | None = None
    shear: Amount | None = None
    translation: Amount | None = None
    elastic: Amount | None = None
    blur: Amount | None = None
    brightness: Amount | None = None
    contrast: Amount | None = None
    gamma: Amount | None = None
    noise: Amount | None = None

    def __post_init__(self) -> None:
        elastic = self.elastic
        if elastic is not None and elastic.high > elastic.sigma / 2:
            raise ValueError(
                f"An elastic displacement of {elastic.high:g} pixels folds the image over itself; "
                f"with sigma = {elastic.sigma:g} at most {elastic.sigma / 2:g} are allowed. "
                "Choose a smaller range or a larger sigma."
            )

    @property
    def of_whole_samples(self) -> tuple[str, ...]:
        """Names of its changes that need all of a sample to change some rows of it.

        Flips need the rows that they mirror, and brightness only the rows themselves.
        """
        needy = (name for name in NAMES if name not in ("flips", "brightness"))
        return tuple(name for name in needy if getattr(self, name) not in (None, False, ()))

    def check_patch(self, patch: Sequence[int]) -> None:
        """Raise ValueError for axes that samples of this spatial shape do not have."""
        rank = len(patch)
        axes_of = {name: getattr(self, name) for name in TURNS}
        axes_of |= {name: amount.axes for name in KINDS if (amount := getattr(self, name))}
        for name, axes in axes_of.items():
            if not isinstance(axes, bool) and axes and max(axes) >= rank:
                raise ValueError(
                    f"The augmentation {name} names axis {max(axes)}; samples of shape "
                    f"{tuple(patch)} have axes 0 to {rank - 1}."
                )
        turned = chosen_axes(self.rotation90, rank)
        if len({patch[axis] for axis in turned}) > 1:
            raise ValueError(
                f"rotation90 turns axes {list(turned)}, whose lengths in a patch of "
                f"{tuple(patch)} differ. Name axes of equal length, as rotation90 = [0, 1], or "
                "choose another patch."
            )


def chosen_axes(axes: bool | Axes | None, rank: int) -> Axes:
    """Return the axes that a setting selects: True and None select all `rank` axes, False none."""
    if axes is None or axes is True:
        return tuple(range(rank))
    return () if axes is False else axes


def read_augmentation(table: Mapping[str, Any]) -> Augmentation:
    """Return the augmentation that a table of a configuration describes.

    An amount is a number, a range [low, high], true for the default range, or a table with
    `range` and optionally `probability`, `axes` and (for elastic) `sigma`.

    Raises ValueError for unknown names, with the near match, and for amounts that are not allowed.
    """
    for name in table:
        check_known("augmentation", name, NAMES)
    values: dict[str, Any] = {
        name: _turned_axes(name, table[name]) for name in TURNS if name in table
    }
    values |= {name: _amount(name, table[name]) for name in KINDS if name in table}
    return Augmentation(**values)


def _turned_axes(name: str, value: Any) -> bool | Axes:
    if isinstance(value, bool):
        return value
    return _axes(name, value, at_least=2 if name == "rotation90" else 1)


def _amount(name: str, value: Any) -> Amount | None:
    kind = KINDS[name]
    table = dict(value) if isinstance(value, Mapping) else {"range": value}
    known = ["range", "probability"]
    known += ["axes"] * (kind.needs_axes > 0) + ["sigma"] * (name == "elastic")
    for key in table:
        if key not in known:
            raise ValueError(
                f"The augmentation {name} has no {key!r}.{near_match(key, known)} "
                f"Known: {', '.join(known)}."
            )
    amounts = table.get("range", True)
    if amounts is False:
        return None
    low, high = kind.default if amounts is True else _range(name, amounts)
    probability = _number(f"{name}.probability", table.get("probability", 1.0))
    if not 0 <= probability <= 1:
        raise ValueError(f"{name}.probability must lie between 0 and 1, got {probability:g}.")
    sigma = _number(f"{name}.sigma", table.get("sigma", ELASTIC_SIGMA))
    if not sigma >= 1:
        raise ValueError(f"{name}.sigma must be at least 1 pixel, got {sigma:g}.")
    axes = _axes(name, table["axes"], at_least=kind.needs_axes) if "axes" in table else None
    if low == high == kind.neutral or not probability:
        return None
    return Amount(low=low, high=high, probability=probability, axes=axes, sigma=sigma)


def _range(name: str, amounts: Any) -> tuple[float, float]:
    kind = KINDS[name]
    least, greatest = kind.allowed
    if isinstance(amounts, list | tuple):
        bounds = tuple(_number(name, bound) for bound in amounts)
    else:
        number = _number(name, amounts)
        # `around` divides by a factor, which must not be 0.
        bounds = kind.around(number) if least <= abs(number) <= greatest else (number, number)
    if len(bounds) != 2 or not least <= bounds[0] <= bounds[1] <= greatest:
        raise ValueError(
            f"The augmentation {name} takes a number, or a range [low, high], between {least:g} "
            f"and {greatest:g}; got {amounts!r}."
        )
    return float(bounds[0]), float(bounds[1])


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"The augmentation {name} takes a number, a range [low, high], a table or true; got "
            f"{value!r}."
        )
    return float(value)


def _axes(name: str, value: Any, *, at_least: int) -> Axes:
    axes: list[int] = list(value) if isinstance(value, list | tuple) else [-1]
    if any(type(axis) is not int or not 0 <= axis <= 2 for axis in axes):
        raise ValueError(
            f"The augmentation {name} takes axes as a list of numbers from 0 (the first of the "
            f"image) to 1 in 2D, 2 in 3D; got {value!r}."
            f"{' Or write true or false.' if name in TURNS else ''}"
        )
    if len(set(axes)) != len(axes) or len(axes) < at_least:
        raise ValueError(
            f"The augmentation {name} takes {at_least} or more different axes; got {value!r}."
        )
    return tuple(sorted(axes))
