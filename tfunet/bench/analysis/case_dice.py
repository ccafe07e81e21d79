"""Dice and masks of the single cases of a run. Pure but for reading."""

import contextlib
from pathlib import Path

import numpy as np

from tfunet.bench.records.run_tables import read_cases
from tfunet.files.typed import RecordError
from tfunet.learning import scores
from tfunet.record import RunFolder

COUNTS = ("true_positive", "false_positive", "false_negative")


def dice_by_case(run: Path) -> dict[str, dict[str, float]]:
    """Return the Dice of every case and region of a run's last evaluation."""
    table = read_cases(run)
    counts = np.array([table[name] for name in COUNTS], float).T.reshape(-1, 3)
    by_case: dict[str, dict[str, float]] = {}
    for case, region, value in zip(
        table["case"], table["region"], scores.dice(counts).tolist(), strict=True
    ):
        by_case.setdefault(case, {})[region] = value
    return by_case


def truth_by_case(run: Path) -> dict[str, dict[str, float]]:
    """Return how many voxels the mask of every case has of each region.

    Runs in which these are equal were validated on the same masks. Of arrays, each validation
    sample has the hash of all.
    """
    with contextlib.suppress(RecordError):
        folder = RunFolder(run)
        facts = folder.read_data() or {}
        if facts.get("arrays"):
            split = folder.read_split() or {}
            return {case: {str(facts.get("contents")): 0.0} for case in split.get("validation", ())}
    table = read_cases(run)
    by_case: dict[str, dict[str, float]] = {}
    for case, region, hit, missed in zip(
        *(table[name] for name in ("case", "region", "true_positive", "false_negative")),
        strict=True,
    ):
        by_case.setdefault(case, {})[region] = hit + missed
    return by_case
