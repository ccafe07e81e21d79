"""The names of files of a record, and what is in them."""

from collections.abc import Iterable
from typing import Any

from tfunet.files.typed import Amount, Count, Positive

# The trained model; or its weights alone, if it cannot be described.
MODEL = "model.keras"
WEIGHTS = "model.weights.h5"
SHOWN_CASES = "shown_cases.npz"  # Planes of three validation cases, for reports.
SPAN_COLUMNS = ("step", "name", "begin_seconds", "seconds")
# Folder beside those of the runs where the trainers of a tournament meet.
MEETINGS = "tournaments"
# Folder beside those of the runs with the records of failed attempts.
EARLIER = "earlier"
ROUND_COLUMNS = (
    *("round", "step", "trainer", "partner", "own_score", "partner_score", "model_of", "reason"),
    *("learning_rate", "training_seconds", "round_seconds", "waited_seconds"),
)
STEP_COLUMNS = ("step", "seconds", "loss", "traced")
# What is in the files, by key.
SPLIT = {
    "train": list[str],
    "validation": list[str],
    "left_out": list[dict[str, str | None]],
    "validation_groups": list[str],
}
DATA = {
    "name": str,
    "channels": Positive,
    "num_classes": Positive,
    "patch": list[Positive],
    "preparation": dict[str, Any] | None,
}
# Targets and arrays are only of data sets without masks, and regions of networks that predict them;
# earlier versions wrote less.
MORE_DATA = {
    "targets": list[str] | None,
    "arrays": bool | None,
    "regions": dict[str, list[Positive]] | None,
    "label_names": list[str] | None,
    "training_files": list[str] | None,
    "contents": str | None,
    "class_weights": list[Amount] | None,
    "mask_values": list[list[int | str]] | None,
    "pixel_sizes": list[list[float]] | None,
    "pixel_unit": str | None,
    "value_ends": list[float] | None,
}
RESULT = {"began_unix_seconds": list[tuple[Count, Amount]] | None}
CASE_COLUMNS = ("epoch", "case", "region", "true_positive", "false_positive", "false_negative")
ERROR_COLUMNS = ("epoch", "case", "target", "value", "predicted", "absolute_error")
# The tables with a row for each case: of regions of masks, and of predicted numbers.
CASE_TABLES = {"cases": CASE_COLUMNS, "errors": ERROR_COLUMNS}


# Columns of epochs.csv that are no scores of the validation cases, and no metrics.
EPOCH_BEGIN = ("epoch", "steps", "loss")
EPOCH_END = (
    *("learning_rate", "training_seconds", "evaluation_seconds", "saving_seconds"),
    *("elapsed_seconds", "weights_hash", "samples_hash", "dropped_samples"),
)


def epoch_columns(
    regions: Iterable[str], targets: Iterable[str] = (), metrics: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the columns of epochs.csv for a data set with these regions or targets.

    `metrics` have the names that callbacks see: "accuracy", "val_hd95", "val_hd95_cell".
    """
    regions = tuple(regions)
    of_dataset = [
        f"dataset_{score}{part}"
        for score in ("dice", "iou")
        for part in ("", *(f"_{region}" for region in regions))
        if regions
    ]
    return (
        *EPOCH_BEGIN,
        "val_loss",
        *(f"dice_{region}" for region in regions),
        *(f"iou_{region}" for region in regions),
        *of_dataset,
        *(f"mae_{target}" for target in targets),
        *metrics,
        *EPOCH_END,
    )


def scored(columns: Iterable[str]) -> list[str]:
    """Return the columns of epochs.csv that are scores of the validation cases, and metrics."""
    return [name for name in columns if name not in (*EPOCH_BEGIN, *EPOCH_END)]
