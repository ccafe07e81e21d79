"""Units of pixel sizes, one for all axes of an image."""

from collections.abc import Iterable, Mapping

METRES = {"nm": 1e-9, "µm": 1e-6, "mm": 1e-3, "m": 1.0}


def in_one_unit(
    sizes: Mapping[str, float], units: Mapping[str, str]
) -> tuple[dict[str, float], str]:
    """Return sizes by axis in the unit of x, and this unit: "" where it is none that we know.

    A size whose unit cannot be converted is left out.
    """
    unit = units.get("x", "")
    if unit not in METRES:
        alike = {letter: size for letter, size in sizes.items() if units.get(letter, "") == unit}
        return alike, ""
    known = {letter: units.get(letter, "") for letter in sizes}
    return {
        letter: size if known[letter] == unit else size * METRES[known[letter]] / METRES[unit]
        for letter, size in sizes.items()
        if known[letter] in METRES
    }, unit


def converted(size: float, unit: str, wanted: str) -> float:
    """Return a size in another unit; unchanged where one of the two is not known."""
    if unit == wanted or not {unit, wanted} <= METRES.keys():
        return size
    # Pixels of 250 nm are of 0.25 µm, not of 0.24999...
    return float(f"{size * METRES[unit] / METRES[wanted]:.12g}")


def sizes_in_words(values: Iterable[float]) -> str:
    """Return sizes along axes, such as "0.5 x 1"."""
    return " x ".join(f"{value:g}" for value in values)
