"""The numbers of a finished run, read from result.json."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfunet.config.run import SCHEMA_VERSION, RunConfig

READ_APART = (
    *("peak_resident_bytes", "peak_device_bytes", "dice", "iou", "checks"),
    "replicas_from_step",
    *("real_seconds", "synthetic_seconds", "slowest_alone_seconds", "fastest_alone_seconds"),
    "average_seconds",
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The numbers of a finished run from result.json; None for those that it does not have."""

    images_per_second: float
    num_replicas: int
    process_count: int | None
    parameters: int | None
    steps: int | None
    start_seconds: float | None
    first_step_seconds: float | None
    median_step_seconds: float | None
    training_seconds: float | None
    evaluation_seconds: float | None
    saving_seconds: float | None
    elapsed_seconds: float | None
    peak_resident_bytes: tuple[int, ...]
    peak_device_bytes: tuple[int, ...]
    loss: float | None
    val_loss: float | None
    dice: Mapping[str, float]
    iou: Mapping[str, float]
    samples_hash: str | None
    weights_hash: str | None
    checks: Mapping[str, bool]
    # First steps that do not count for the speed; None in older records.
    warm_up_steps: int | None = None
    # Time of a step with data in memory / time of a step; None in older records.
    synthetic_share: float | None = None
    # Medians of both times. With time_parts also: the step without averaging gradients, on the
    # slowest and on the fastest process; the averaging alone; and the bytes that it averages.
    real_seconds: float | None = None
    synthetic_seconds: float | None = None
    slowest_alone_seconds: float | None = None
    fastest_alone_seconds: float | None = None
    average_seconds: float | None = None
    gradient_bytes: int | None = None
    # Energy of the training loop, from so many CPU packages and GPUs of all hosts.
    energy_joules: float | None = None
    energy_packages: float | None = None
    energy_gpus: float | None = None
    # (first step, replicas) of each part of the run; empty in older records.
    replicas_from_step: tuple[tuple[int, int], ...] = ()

    @property
    def mean_dice(self) -> float | None:
        """Mean over regions of the mean over cases."""
        return sum(self.dice.values()) / len(self.dice) if self.dice else None


def parse_result(table: Mapping[str, Any]) -> Result:
    """Return result.json as a Result; raise ValueError if its speed cannot be used."""
    if table.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"its schema_version is {table.get('schema_version')!r}, and this tfunet reads "
            f"{SCHEMA_VERSION}"
        )
    if table.get("images_per_second") is None:
        raise ValueError("no steady step was measured; train for more steps")
    for name in ("images_per_second", "num_replicas"):
        value = table.get(name)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    plain: dict[str, Any] = {
        name: table.get(name) for name in Result.__dataclass_fields__ if name not in READ_APART
    }
    pairs = table.get("synthetic_pairs_seconds") or ()
    alone = [statistics.median(seconds) for seconds in table.get("alone_seconds") or ()]
    averages = table.get("average_seconds")
    return Result(
        **plain,
        real_seconds=statistics.median(pair[0] for pair in pairs) if pairs else None,
        synthetic_seconds=statistics.median(pair[1] for pair in pairs) if pairs else None,
        slowest_alone_seconds=max(alone, default=None),
        fastest_alone_seconds=min(alone, default=None),
        average_seconds=statistics.median(averages) if averages else None,
        peak_resident_bytes=_bytes(table, "peak_resident_bytes"),
        peak_device_bytes=_bytes(table, "peak_device_bytes"),
        dice={str(region): float(value) for region, value in (table.get("dice") or {}).items()},
        iou={str(region): float(value) for region, value in (table.get("iou") or {}).items()},
        checks=dict(table.get("checks") or {}),
        replicas_from_step=tuple(
            (int(step), int(count)) for step, count in table.get("replicas_from_step") or ()
        ),
    )


def check_result(result: Result, config: RunConfig) -> None:
    """Raise ValueError if the result belongs to another number of replicas."""
    if result.num_replicas != config.num_replicas:
        raise ValueError(
            f"it belongs to a run with num_replicas={result.num_replicas}, but the plan has "
            f"{config.num_replicas}"
        )


def _bytes(table: Mapping[str, Any], name: str) -> tuple[int, ...]:
    return tuple(int(value) for value in table.get(name) or () if value is not None)
