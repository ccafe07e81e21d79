"""Lines of a configuration that name classes, and what a class of most pixels means for scores.

Imports no TensorFlow.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

BACKGROUND = "background"
# A single class with a larger share of the pixels may be the background.
MOST_SHARE = 0.5


def toml_key(name: str) -> str:
    """Return a key as a configuration has it."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else toml_value(name)


def inline_table(table: Mapping[str, Any]) -> str:
    """Return a table of values as a configuration has it."""
    entries = (f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items())
    return f"{{ {', '.join(entries)} }}"


def dice_everywhere(share: float) -> float:
    """Return the Dice of a class with this share of a case, if all pixels are taken for it."""
    return 2 * share / (1 + share)


def toml_value(value: Any) -> str:
    """Return a number, a text, a list or a table as a configuration has it."""
    if isinstance(value, Mapping):
        return inline_table(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
