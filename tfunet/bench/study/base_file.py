"""The configuration of a run that a study is based on: `file` in its [base]."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tfunet.arguments import read_table
from tfunet.config.keys import flat
from tfunet.files.home import expand_home

# Keys that say the same in other ways: one of a study replaces those of the file.
ALTERNATIVES = (
    ("replica_batch", "global_batch"),
    ("epochs", "steps"),
    ("validation_groups", "validation_share", "folds"),
)


def file_of_base(base: Any) -> Path | None:
    """Return the file that [base] names; None without one. ValueError for what is no path."""
    if not isinstance(base, dict) or "file" not in base:
        return None
    if not isinstance(base["file"], str):
        raise ValueError(
            f"file in [base] must be the path of a run's configuration, got {base['file']!r}."
        )
    return expand_home(base["file"])


def settings_beside(file: Path, own: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file, under dotted keys, that a study with `own` keys leaves to it.

    Raises ValueError for a file that is no configuration of a run.
    """
    replaced = {*own, *(key for keys in ALTERNATIVES if {*own} & {*keys} for key in keys)}
    return {
        key: value
        for key, value in flat(read_table(file)).items()
        if key not in replaced and key.partition(".")[0] not in replaced
    }
