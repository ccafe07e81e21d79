"""Names of the metrics of whole cases: "hd95", "nsd@1mm", "instance_f1@0.7". No TensorFlow."""

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import final

from tfunet.config.words import check_reference, near_match

# Metrics of single objects; they may say how much of two objects must overlap.
INSTANCES = (
    *("instance_precision", "instance_recall", "instance_f1", "instance_ap", "panoptic_quality"),
)
# Predicted objects less true ones.
INSTANCE_DIFFERENCE = "instance_difference"
# Predicted volume less the true one.
VOLUME_DIFFERENCE = "volume_difference"
# Metrics of cells that membranes keep apart.
SEGMENTS = ("arand", "vi_split", "vi_merge")
# Metrics that need no tolerance.
PLAIN = (
    *("dice", "iou", "hd", "hd95", "assd"),
    *("lesion_precision", "lesion_recall", "lesion_f1", VOLUME_DIFFERENCE),
    *INSTANCES,
    INSTANCE_DIFFERENCE,
    "cldice",
    *SEGMENTS,
)
# Metrics that are no shares between 0 and 1.
NO_SHARES = (
    *("hd", "hd95", "assd", VOLUME_DIFFERENCE, INSTANCE_DIFFERENCE, "vi_split", "vi_merge"),
)
# Metrics in the unit of the pixel size.
LENGTHS = ("hd", "hd95", "assd", VOLUME_DIFFERENCE)
TOLERANT = "nsd"
OWN = "own"
# What other columns and scores are called, and what else scores begin with.
COLUMNS = (
    *("epoch", "case", "group", "region", "cases", "present", "empty", "score", "mean"),
    *("steps", "loss", "Dice"),
    *("learning_rate", "training_seconds", "evaluation_seconds", "saving_seconds"),
    *("elapsed_seconds", "weights_hash", "samples_hash", "dropped_samples"),
    *("true_positive", "false_positive", "false_negative"),
)
# What tables of scores have of each metric beside its mean.
SPREAD = ("cases", "sd", "median", "low", "high")
# The scores of every epoch.
EPOCH_SCORES = ("dice", "iou", "dataset_dice", "dataset_iou")
PREFIXES = (*PLAIN, TOLERANT, "mae", "dataset")
# An object can overlap by more than this, as IoU, with one other only.
LEAST_OVERLAP = 0.5
# Metres in each unit of a tolerance; of "px" there are none.
UNITS = {"nm": 1e-9, "um": 1e-6, "µm": 1e-6, "mm": 1e-3, "m": 1.0}
PIXELS = "px"


@final
@dataclass(frozen=True, kw_only=True)
class CaseMetric:
    """A metric of whole cases.

    Args:
        name: As the user wrote it.
        kind: One of PLAIN, or TOLERANT, or OWN.
        tolerance: For `nsd`, in `unit`.
        unit: Unit of the tolerance; "px" for pixels.
        overlap: For INSTANCES: two objects are the same if their IoU is larger. None for
            `instance_ap` without a number, the mean over many.
        ref: For OWN: where the user's function is; its name is that of the metric.
    """

    name: str
    kind: str
    tolerance: float = 0.0
    unit: str = ""
    overlap: float | None = LEAST_OVERLAP
    ref: str = ""


def case_metrics(names: Iterable[str]) -> tuple[CaseMetric, ...]:
    """Return the metrics of whole cases among names; the others are those of Keras.

    Raises ValueError for a tolerance that is missing or wrong, and for a function of the user's own
    whose name is that of another score.
    """
    different = dict.fromkeys(names)
    metrics = tuple(metric for name in different if (metric := _metric(name)) is not None)
    columns = [metric.name for metric in metrics]
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(
            f"metrics names two functions {twice[0]!r}, and each has a column. Rename one."
        )
    of_spread = {f"{name}_{part}": name for name in columns for part in SPREAD}
    if taken := [name for name in columns if name in of_spread]:
        raise ValueError(
            f"metrics names the function {taken[0]!r}, and tables of scores have a column "
            f"{taken[0]!r} for {of_spread[taken[0]]!r}. Rename one."
        )
    return metrics


def check_score_names(names: Iterable[str], regions: Iterable[str]) -> None:
    """Raise ValueError if two scores of an epoch have one name: "f_cell", and "f" of "cell"."""
    kinds = dict.fromkeys([*EPOCH_SCORES, *(metric.name for metric in case_metrics(names))])
    found = {kind: f"{kind!r}" for kind in kinds}
    for region in regions:
        for kind in kinds:
            name, words = f"{kind}_{region}", f"{kind!r} of the region {region!r}"
            if name in found:
                raise ValueError(
                    f"metrics gives two scores of an epoch the name {name!r}: {found[name]}, and "
                    f"{words}. Rename a function of your own, or the region."
                )
            found[name] = words


def own_metrics(names: Iterable[str]) -> list[str]:
    """Return the references to functions of the user's own."""
    return [name for name in names if ":" in name]


def is_share(name: str) -> bool:
    """Whether a metric of tfunet lies between 0 and 1, whatever is measured."""
    kind = name.partition("@")[0]
    return kind in (*PLAIN, TOLERANT, "Dice", "dataset IoU") and kind not in NO_SHARES


def possible_range(name: str) -> tuple[float, float]:
    """Return the least and the largest value that a score of a case can have."""
    if is_share(name):
        return 0.0, 1.0
    has_sign = name in (VOLUME_DIFFERENCE, INSTANCE_DIFFERENCE)
    is_known = not has_sign and name.partition("@")[0] in (*PLAIN, TOLERANT)
    return 0.0 if is_known else -math.inf, math.inf


def check_case_metrics(names: Iterable[str]) -> None:
    """Raise ValueError for a name that is no metric of whole cases."""
    for name in names:
        if _metric(name) is None:
            raise ValueError(
                f"{name!r} is no metric of whole cases.{near_match(name, (*PLAIN, TOLERANT))} "
                f"Known: {', '.join(PLAIN)}, nsd@1mm, and 'file.py:function' of your own. See "
                "docs/metrics.md."
            )


def has_lengths(metrics: Iterable[CaseMetric]) -> bool:
    """Return whether a metric is a distance or a volume, in the unit of the pixel size."""
    return any(metric.kind in LENGTHS for metric in metrics)


def keras_metrics(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are not of whole cases."""
    return tuple(name for name in names if _metric(name) is None)


def _metric(name: str) -> CaseMetric | None:
    if ":" in name:
        return _own(name)
    kind, at, amount = name.partition("@")
    if kind in PLAIN and not at:
        overlap = None if kind == "instance_ap" else LEAST_OVERLAP
        return CaseMetric(name=name, kind=kind, overlap=overlap)
    if kind in INSTANCES:
        return CaseMetric(name=name, kind=kind, overlap=_overlap(name, amount))
    if kind != TOLERANT and not at:
        return None
    number = re.fullmatch(r"([0-9]*\.?[0-9]+) *([A-Za-zµ]+)", amount)
    known = (*UNITS, PIXELS)
    if kind != TOLERANT or number is None or number[2] not in known or not float(number[1]) > 0:
        advice = near_match(kind, (*PLAIN, TOLERANT)) if kind != TOLERANT else ""
        raise ValueError(
            f"metrics names {name!r}.{advice} A normalised surface Dice has its tolerance in the "
            f"name: 'nsd@1mm', 'nsd@0.2um', 'nsd@2px'. Units: {', '.join(known)}. Without a "
            f"tolerance: {', '.join(PLAIN)}."
        )
    return CaseMetric(name=name, kind=kind, tolerance=float(number[1]), unit=number[2])


def _own(ref: str) -> CaseMetric:
    check_reference("metric", ref)
    name = ref.rpartition(":")[2]
    check_own_name(ref, name)
    return CaseMetric(name=name, kind=OWN, ref=ref)


def check_own_name(ref: str, name: str) -> None:
    """Raise ValueError for a metric of the user's with a name of tfunet's own scores."""
    taken = [known for known in (*PREFIXES, "val") if f"{name}_".startswith(f"{known}_")]
    if taken or name in COLUMNS:
        raise ValueError(
            f"metrics names {ref!r}, which is called {name!r}, and {(*taken, name)[0]!r} is a name "
            "of tfunet's own scores. Give it another name."
        )


def _overlap(name: str, amount: str) -> float:
    if re.fullmatch(r"0?\.[0-9]+", amount) and LEAST_OVERLAP <= float(amount) < 1:
        return float(amount)
    kind = name.partition("@")[0]
    raise ValueError(
        f"metrics names {name!r}. The overlap (IoU) above which two objects are the same must be "
        f"at least {LEAST_OVERLAP} and less than 1: '{kind}@0.7'. Without it, it is "
        f"{LEAST_OVERLAP}."
    )


def unknown_metric(name: str, known: Collection[str]) -> ValueError:
    """Return the error for a metric that neither we nor Keras know."""
    return ValueError(
        f"Unknown metric {name!r}.{near_match(name, (*PLAIN, TOLERANT, *known))} Name a metric of "
        "whole cases, such as 'dice' or 'hd95', or one of keras.metrics."
    )
