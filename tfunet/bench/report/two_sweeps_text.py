"""Shows how a second sweep compares with a first one: for a terminal, and as JSON."""

from typing import Any

from tfunet.bench.analysis.two_sweeps import SweepChange
from tfunet.bench.report.number_text import NONE, estimate_text, interval_facts
from tfunet.config.keys import describe
from tfunet.process.terminal import columns

COMPARISON_VERSION = 1


def change_text(change: SweepChange) -> str:
    """Return a line for each cell, then what only one sweep has, and doubts."""
    first, second = change.folders
    rows = [["cell", "images/s before", "after", "ratio", "adjusted p", "verdict"]]
    for cell in change.cells:
        before, after = (NONE if speed is None else f"{speed:.1f}" for speed in cell.speeds)
        p_value = NONE if cell.adjusted_p is None else f"{cell.adjusted_p:.2g}"
        ratio_text = estimate_text(cell.ratio)
        rows.append([describe(cell.settings), before, after, ratio_text, p_value, cell.verdict])
    blocks = [
        "\n".join([f"{second} against {first}, tolerance {change.tolerance:.1%}:", *columns(rows)])
    ]
    notes = [*change.unmatched, *change.doubts]
    blocks.append("\n".join(["Before you rely on this:", *(f"- {note}" for note in notes)]))
    return "\n\n".join(blocks)


def change_json(change: SweepChange) -> dict[str, Any]:
    """Return the comparison with unrounded numbers, for JSON."""
    return {
        "schema_version": COMPARISON_VERSION,
        "first": change.folders[0],
        "second": change.folders[1],
        "tolerance": change.tolerance,
        "exit_code": change.exit_code,
        "cells": [
            {
                "settings": dict(cell.settings),
                "images_per_second_first": cell.speeds[0],
                "images_per_second_second": cell.speeds[1],
                "ratio": None if cell.ratio is None else cell.ratio.value,
                **({} if cell.ratio is None else interval_facts("ratio", cell.ratio)),
                "adjusted_p": cell.adjusted_p,
                "verdict": cell.verdict,
            }
            for cell in change.cells
        ],
        "unmatched": list(change.unmatched),
        "doubts": list(change.doubts),
    }
