"""Numbers, intervals and tables as texts, the same in every report."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfunet.bench.analysis.confidence_intervals import Estimate, Spread, speed_verdict, spread
from tfunet.bench.analysis.configuration_scores import DATASET_IOU, ERROR, MEAN
from tfunet.config.amount import GIB
from tfunet.files.printable import printable
from tfunet.files.table import csv_line
from tfunet.process.terminal import columns, counted

NONE = "-"
# The beginnings of a tag of HTML and of a formula in Markdown.
TAG_OR_FORMULA = re.compile(r"<(?=[A-Za-z/!?])|\$")


def significant(spread: Spread | None) -> str:
    """Return "412 [388, 430]": median, lowest and highest value, to three digits."""
    return _with_range(spread, three_digits)


def spread_text(spread: Spread | None, digits: int) -> str:
    """Return "20.9 [18.6, 22.9]": median, lowest and highest value, with `digits` decimals."""
    return _with_range(spread, lambda value: f"{value:.{digits}f}")


def values_text(values: Iterable[float], digits: int) -> str:
    """Return the same of the values of a quantity over repeats; "-" without any."""
    known = list(values)
    return spread_text(spread(known) if known else None, digits)


def _with_range(spread: Spread | None, text: Callable[[float], str]) -> str:
    if spread is None:
        return NONE
    if len(spread.values) == 1:
        return text(spread.median)
    low, high = text(spread.low), text(spread.high)
    return text(spread.median) if low == high else f"{text(spread.median)} [{low}, {high}]"


def estimate_text(estimate: Estimate | None, digits: int = 2, sign: str = "") -> str:
    """Return "1.89 (1.73 to 2.03)": with its interval if it has one; `sign` may be "+"."""
    if estimate is None:
        return NONE
    # No "-0.000".
    value, low, high = (
        round(each, digits) + 0.0 for each in (estimate.value, estimate.low, estimate.high)
    )
    ends = f" ({low:.{digits}f} to {high:.{digits}f})" if estimate.has_interval else ""
    return f"{value:{sign}.{digits}f}{ends}"


def interval_facts(name: str, estimate: Estimate) -> dict[str, float | None]:
    """Return the ends of an interval as `name`_low and `name`_high; None without an interval."""
    ends = (estimate.low, estimate.high) if estimate.has_interval else (None, None)
    return {f"{name}_low": ends[0], f"{name}_high": ends[1]}


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with a column for every key of any row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return "".join(map(csv_line, [names, *([row.get(name, "") for name in names] for row in rows)]))


def plain_text(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows as lines for a terminal, header first."""
    return columns([list(rows[0]), *(list(row.values()) for row in rows)]) if rows else []


def markdown_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as a Markdown table."""
    if not rows:
        return ""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    cells = (
        [markdown_line(cell.replace("\n", " ")).replace("|", "\\|") for cell in line]
        for line in lines
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def score_name(metric: str, region: str) -> str:
    """Return a score by which runs are ranked in words: "mean Dice", "MAE of age"."""
    if metric == DATASET_IOU and region == MEAN:
        return "mIoU"
    return {"Dice": "mean Dice", ERROR: f"{ERROR} of {region}"}.get(metric, metric)


def too_noisy_text(finest: float, repeats: int) -> str:
    """Return which differences cannot be told, to follow another word."""
    return (
        f"the machine is too noisy for differences below {percent_text(finest)}, even with "
        f"{repeats} repeats"
    )


def percent_text(finest: float) -> str:
    """Return a difference that can be told, rounded up: "43 %"."""
    return f"{math.ceil(100 * finest - 1e-9)} %"


def markdown_list(heading: str, lines: Iterable[str]) -> str:
    """Return lines as a Markdown list under a heading in bold."""
    listed = (f"- {markdown_line(line)}" for line in lines)
    return "\n".join([f"**{markdown_line(heading)}**\n", *listed])


def markdown_line(text: object) -> str:
    """Return a text of one line in which names are no tags of HTML and no formulas."""
    return TAG_OR_FORMULA.sub(r"\\\g<0>", printable(str(text)))


def gibibytes(spread: Spread | None) -> str:
    """Return the median alone: repeats differ in the third digit."""
    return NONE if spread is None else f"{spread.median / GIB:.2f}"


def three_digits(value: float) -> str:
    """Return a number to three digits, without an exponent: "0.00621", "11.5", "1440"."""
    if value == int(value):
        return str(int(value))
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def decimals(value: float) -> int:
    """Return how many decimals show three digits of a score: three, or more for a small one."""
    return max(3, 2 - math.floor(math.log10(abs(value)))) if value else 3


def interval_text(estimate: Estimate, digits: int = 2) -> str:
    """Return "95 % interval 0.99 to 1.07, 3 repeats", or "2 repeats: no interval"."""
    if not estimate.has_interval:
        return f"{counted(estimate.repeats, 'repeat')}: no interval"
    unpaired = "" if estimate.paired else " on each side, not paired"
    low, high = f"{estimate.low:.{digits}f}", f"{estimate.high:.{digits}f}"
    return f"95 % interval {low} to {high}, {estimate.repeats} repeats{unpaired}"


def verdict_text(ratio: Estimate, adjusted_p: float | None) -> str:
    """Return "(95 % interval 0.99 to 1.07, 3 repeats; adjusted p 0.3): not distinguishable"."""
    verdict = speed_verdict(ratio, adjusted_p)
    words = "more repeats are needed to tell" if verdict == "unknown" else verdict
    return f"({interval_text(ratio)}{p_text(adjusted_p)}): {words}"


def p_text(adjusted_p: float | None) -> str:
    """Return "; adjusted p 0.012", or an empty text without one."""
    return "" if adjusted_p is None else f"; adjusted p {p_value_text(adjusted_p)}"


def p_value_text(adjusted_p: float | None) -> str:
    """Return "0.012", or "-" without one."""
    if adjusted_p is None:
        return NONE
    return "below 0.001" if adjusted_p < 0.001 else f"{adjusted_p:.2g}"
