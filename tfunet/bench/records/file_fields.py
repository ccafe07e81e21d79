"""The fields of the JSON files of a sweep, with their types. Pure."""

from typing import Annotated, Any, Literal

import msgspec

from tfunet.files.typed import Amount, Count, Name, Positive

PLAN = {
    "study": Annotated[str, msgspec.Meta(min_length=1)],
    "base": dict[str, Any],
    "trials": list[Any],
    "working_folder": str,
    "samples": list[str],
    "objective": str,
    "direction": Literal["maximize", "minimize"],
}
PLANNED_TRIAL = {
    "id": Name,
    "cell": Count,
    "repeat": Positive,
    "scaling": Literal["strong", "weak"],
    "settings": dict[str, Any],
    "changes": dict[str, Any],
}
SKIPPED = {"settings": dict[str, Any], "reason": str}
MEASUREMENT = {"when": str, "median_seconds": Amount, "spread": Amount, "cores": Count | None}
ExitCode = Annotated[int, msgspec.Meta(ge=1, le=255)]
FAILURE = {"reason": str, "exit_code": ExitCode | None}
