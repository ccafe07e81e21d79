"""Units of pixel sizes, one for all axes of an image."""

from collections.abc import Mapping

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
