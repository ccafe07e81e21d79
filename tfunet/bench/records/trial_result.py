"""The numbers of a finished run, read from result.json."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from tfunet.config.run import SCHEMA_VERSION, RunConfig
from tfunet.files.typed import MOST, Amount, Count, FieldError, Finite, Positive, check_fields

READ_APART = (
    *("peak_resident_bytes", "peak_device_bytes", "dice", "iou", "mae", "checks", "metrics"),
    "scores",
    *("dataset_dice", "dataset_iou"),
    "replicas_from_step",
    *("real_seconds", "synthetic_seconds", "slowest_alone_seconds", "fastest_alone_seconds"),
    *("exchanging_seconds", "crossing_seconds", "mean_alone_seconds", "num_parts"),
    "redundancy",
    "average_seconds",
    *("is_proved", "why_not_proved"),
)
# Slower or faster than this is no machine, and overflows what is computed from it.
LEAST = 1 / MOST
Seconds = Annotated[list[Amount], msgspec.Meta(min_length=1)]
# Fields of result.json from which several of Result are computed.
KINDS_APART = {
    "synthetic_pairs_seconds": list[tuple[Amount, Amount]] | None,
    "alone_seconds": list[Seconds] | None,
    "exchanging_seconds": list[Seconds] | None,
    "crossing_seconds": list[Seconds] | None,
    "pipeline": dict[str, Any] | None,
    "split": list[Positive] | None,
    "tiling": dict[str, Any] | None,
    "average_seconds": list[Amount] | None,
    "peak_resident_bytes": list[Count | None] | None,
    "peak_device_bytes": list[Count | None] | None,
    "dice": dict[str, Finite] | None,
    "iou": dict[str, Finite] | None,
    "mae": dict[str, Finite] | None,
    "metrics": dict[str, Finite | None] | None,
    "scores": dict[str, Literal["max", "min"] | None] | None,
    "dataset_dice": dict[str, Finite | None] | None,
    "dataset_iou": dict[str, Finite | None] | None,
    "checks": dict[str, Any] | None,
    "replicas_from_step": list[tuple[Count, Positive]] | None,
    "proved": dict[str, Any] | None,
}
# What is read of `proved`; the rest is for people.
KINDS_OF_PROOF = {"is_proved": bool, "why_not": str}


@dataclass(frozen=True, kw_only=True)
class Result:
    """The numbers of a finished run from result.json; None for those that it does not have."""

    images_per_second: float
    num_replicas: int
    process_count: Count | None
    parameters: Count | None
    steps: Count | None
    start_seconds: Amount | None
    first_step_seconds: Amount | None
    median_step_seconds: Amount | None
    training_seconds: Amount | None
    evaluation_seconds: Amount | None
    saving_seconds: Amount | None
    elapsed_seconds: Amount | None
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
    warm_up_steps: Count | None = None
    # Time of a step with data in memory / time of a step; None in older records.
    synthetic_share: Amount | None = None
    # Medians of both times. With time_parts also: the step without averaging gradients, on the
    # slowest and on the fastest process; the averaging alone; and the bytes that it averages. Where
    # samples are shared, or the network is in stages, steps alone exchange nothing either;
    # exchanging_seconds is the step that does, on the slowest process; crossing_seconds that which
    # exchanges across stages, and no borders.
    real_seconds: float | None = None
    synthetic_seconds: float | None = None
    slowest_alone_seconds: float | None = None
    fastest_alone_seconds: float | None = None
    exchanging_seconds: float | None = None
    crossing_seconds: float | None = None
    mean_alone_seconds: float | None = None
    # How long stages wait for each other in a step, if messages took no time; None without stages.
    bubble_seconds: Amount | None = None
    average_seconds: float | None = None
    gradient_bytes: Count | None = None
    # Energy of the training loop, from so many CPU packages and GPUs of all hosts.
    energy_joules: Amount | None = None
    energy_packages: Amount | None = None
    energy_gpus: Amount | None = None
    # (first step, replicas) of each part of the run; empty in older records.
    replicas_from_step: tuple[tuple[int, int], ...] = ()
    # Devices that share a sample.
    num_parts: int = 1
    # Pixels that are computed for each pixel of a sample; more than 1 on tiles.
    redundancy: float = 1.0
    # Mean absolute error of each predicted number; empty for masks.
    mae: Mapping[str, float] = field(default_factory=dict)
    # Metrics of batches and means of those of whole cases, by the names that callbacks see: those
    # that are defined.
    metrics: Mapping[str, float] = field(default_factory=dict)
    # Scores of a run on arrays, the main one first: which way is better of each, "max" or "min", or
    # None if it is not known.
    scores: Mapping[str, str | None] = field(default_factory=dict)
    # Scores of all cases together, and the mean of the IoU over regions; missing in older records,
    # and where no pixel has a region.
    dataset_dice: Mapping[str, float] = field(default_factory=dict)
    dataset_iou: Mapping[str, float] = field(default_factory=dict)
    miou: Finite | None = None
    # Whether the run proved that its step is that of one device; None where it is by itself, and in
    # older records.
    is_proved: bool | None = None
    # Why it did not; "" if it did.
    why_not_proved: str = ""

    @property
    def mean_dice(self) -> float | None:
        """Mean over regions of the mean over cases."""
        return sum(self.dice.values()) / len(self.dice) if self.dice else None

    def value_of(self, score: str) -> float | None:
        """Return one of `scores`; None if it is not defined."""
        return self.val_loss if score == "val_loss" else self.metrics.get(score)

    @property
    def main_score(self) -> float | None:
        """The score by which runs are compared: the mean Dice, or the main one on arrays."""
        return self.value_of(next(iter(self.scores))) if self.scores else self.mean_dice


def parse_result(table: Mapping[str, Any]) -> Result:
    """Return result.json as a Result; raise FieldError if it cannot be used."""
    if table.get("schema_version") != SCHEMA_VERSION:
        raise FieldError(
            f"its schema_version is {table.get('schema_version')!r}, and this tfunet reads "
            f"{SCHEMA_VERSION}"
        )
    if table.get("images_per_second") is None:
        raise FieldError("no steady step was measured; train for more steps")
    for name in ("images_per_second", "num_replicas"):
        value = table.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not LEAST < value < MOST:
            raise FieldError(f"{name} must be a positive number, got {value!r}")
    check_fields(table, {**get_type_hints(Result, include_extras=True), **KINDS_APART})
    plain: dict[str, Any] = {
        name: table.get(name) for name in Result.__dataclass_fields__ if name not in READ_APART
    }
    proof = table.get("proved") or {}
    check_fields(proof, KINDS_OF_PROOF, "proved")
    pairs = table.get("synthetic_pairs_seconds") or ()
    alone, exchanging, crossing = (
        [statistics.median(seconds) for seconds in table.get(key) or ()]
        for key in ("alone_seconds", "exchanging_seconds", "crossing_seconds")
    )
    averages = table.get("average_seconds")
    in_stages = table.get("bubble_seconds") is not None
    return Result(
        **plain,
        real_seconds=statistics.median(pair[0] for pair in pairs) if pairs else None,
        synthetic_seconds=statistics.median(pair[1] for pair in pairs) if pairs else None,
        slowest_alone_seconds=max(alone, default=None),
        fastest_alone_seconds=min(alone, default=None),
        mean_alone_seconds=statistics.fmean(alone) if alone and in_stages else None,
        exchanging_seconds=max(exchanging, default=None),
        crossing_seconds=max(crossing, default=None),
        num_parts=math.prod(table.get("split") or ()) * _num_stages(table),
        redundancy=_redundancy(table),
        average_seconds=statistics.median(averages) if averages else None,
        peak_resident_bytes=_bytes(table, "peak_resident_bytes"),
        peak_device_bytes=_bytes(table, "peak_device_bytes"),
        dice=_by_name(table.get("dice")),
        iou=_by_name(table.get("iou")),
        mae=_by_name(table.get("mae")),
        metrics=_by_name(table.get("metrics")),
        scores=dict(table.get("scores") or {}),
        dataset_dice=_by_name(table.get("dataset_dice")),
        dataset_iou=_by_name(table.get("dataset_iou")),
        checks=dict(table.get("checks") or {}),
        is_proved=proof.get("is_proved"),
        why_not_proved=proof.get("why_not", ""),
        replicas_from_step=tuple(
            (int(step), int(count)) for step, count in table.get("replicas_from_step") or ()
        ),
    )


def check_result(result: Result, config: RunConfig) -> None:
    """Raise FieldError if the result belongs to another number of replicas."""
    if result.num_replicas != config.num_replicas:
        raise FieldError(
            f"it belongs to a run with num_replicas={result.num_replicas}, but the plan has "
            f"{config.num_replicas}"
        )


def _by_name(scores: Mapping[str, Any] | None) -> dict[str, float]:
    return {str(name): float(value) for name, value in (scores or {}).items() if value is not None}


def _num_stages(table: Mapping[str, Any]) -> int:
    stages = (table.get("pipeline") or {}).get("stages", 1)
    if not isinstance(stages, int) or isinstance(stages, bool) or not 1 <= stages < MOST:
        raise FieldError(f"pipeline.stages must be a positive number, got {stages!r}")
    return stages


def _redundancy(table: Mapping[str, Any]) -> float:
    redundancy = (table.get("tiling") or {}).get("redundancy", 1.0)
    is_number = isinstance(redundancy, int | float) and not isinstance(redundancy, bool)
    if not is_number or not 1 <= redundancy < MOST:
        raise FieldError(f"tiling.redundancy must be a number of at least 1, got {redundancy!r}")
    return float(redundancy)


def _bytes(table: Mapping[str, Any], name: str) -> tuple[int, ...]:
    return tuple(int(value) for value in table.get(name) or () if value is not None)
