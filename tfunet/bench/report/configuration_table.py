"""The table of a report that compares configurations: models, losses, other settings. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tfunet.bench.analysis.confidence_intervals import Estimate, Spread, spread
from tfunet.bench.analysis.configuration_scores import SPEED, Score
from tfunet.bench.analysis.configurations import (
    Configuration,
    Ranking,
    by_setting,
    rankings,
    speed_ranking,
)
from tfunet.bench.analysis.study_cell import Cell
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.bench.report import number_text as texts
from tfunet.config.case_metrics import is_share
from tfunet.config.keys import describe, show_setting
from tfunet.learning.student_t import CONFIDENCE, MIN_INTERVAL
from tfunet.process.terminal import counted

# More configurations that cannot be told from the best are counted, not listed.
MOST_NAMED = 3
OTHER_MASKS = (
    "The configurations have no finished repeat with the same validation masks in common, so their "
    "scores are not compared."
)


def configuration_section(families: Sequence[Family], said: str = "") -> list[dict[str, Any]]:
    """Return `heading`, `sentence` and `rows` for each ranking of configurations that differ in
    more than the way of training, which the tables of families compare.

    A sentence that is `said` already is empty.
    """
    found, has_several = rankings(families)
    shown = [ranking for ranking in found if _has_settings(ranking)]
    if not found and has_several and len(families) > 1 and OTHER_MASKS not in said:
        return [{"heading": "", "sentence": OTHER_MASKS, "rows": []}]
    return [
        {
            "heading": _heading(ranking),
            "sentence": "" if _sentence(ranking) in said else _sentence(ranking),
            "rows": _rows(ranking),
        }
        for ranking in shown
    ]


def configuration_facts(families: Sequence[Family]) -> list[dict[str, Any]]:
    """Return the rows of these tables with unrounded numbers, for programs."""
    return [
        row
        for ranking in rankings(families)[0]
        if _has_settings(ranking)
        for row in _facts(ranking)
    ]


def best_configurations(families: Sequence[Family], *, has_speeds: bool = False) -> str:
    """Return which configurations have the best scores, and which value of each setting; "" if none
    varies. Ways of training alone are compared here only without a comparison of their speeds.
    """
    if has_speeds and len(families) == 1:
        return ""  # Batches that grow with the replicas are no settings that were varied.
    found, has_several = rankings(families)
    if not found and has_several:
        return OTHER_MASKS
    found = tuple(ranking for ranking in found if _has_settings(ranking) or not has_speeds)
    parts = []
    for ranking in found[:MOST_NAMED]:
        parts.append(_where(ranking) + _sentence(ranking))
        parts += map(_sentence, by_setting(ranking))
    rest = len(found) - MOST_NAMED
    parts += [f"The tables have {rest} more such comparisons."] if rest > 0 else []
    return " ".join(parts)


def fastest_settings(families: Sequence[Family]) -> tuple[str, bool]:
    """Return which settings that change no score are the fastest, and whether this is a verdict; ""
    if none varies.
    """
    ranking = speed_ranking(families)
    if ranking is None:
        return "", False
    return _where(ranking) + _sentence(ranking), any(map(_is_behind, ranking.configurations[1:]))


def _has_settings(ranking: Ranking) -> bool:
    return any(each.settings for each in ranking.configurations)


def _where(ranking: Ranking) -> str:
    shared = _shared_text(ranking)
    return f"With {shared}: " if shared else ""


def _shared_text(ranking: Ranking) -> str:
    # An option of other data sets only is not worth a word.
    return describe({key: value for key, value in ranking.shared.items() if value is not None})


def _heading(ranking: Ranking) -> str:
    cases = counted(ranking.num_cases, "validation case") if ranking.num_cases else ""
    return ", ".join(filter(None, [_shared_text(ranking), ranking.label, cases]))


def _sentence(ranking: Ranking) -> str:
    """Return which configuration is the best, and whether chance explains it."""
    best, *others = ranking.configurations
    main = best.scores[0]
    name = texts.score_name(main.metric, main.region)
    most, beyond = ("lowest", "below") if main.mode == "min" else ("highest", "above")
    number = 1 + len(others)
    begin = (
        f"All else equal, of {number} values of {ranking.setting},"
        if ranking.setting
        else f"Of {number} configurations,"
    )
    begin = (
        f"{begin} {ranking.name_of(best)} has the {most} {name}, {_digits(main, main.mean.value)}"
    )
    next_ = _lead(others[0].scores[0])
    if next_ is None or any(each.scores[0].adjusted_p is None for each in others):
        return f"{begin}; whether by chance is known with {MIN_INTERVAL} or more repeats."
    lead = next_.within(-1, 1) if is_share(main.metric) else next_
    low, high = (_digits(main, end, "+") for end in (lead.low, lead.high))
    begin += f", {_digits(main, lead.value)} (95 % interval {low} to {high}) {beyond} the next"
    alike = [ranking.name_of(each) for each in others if not _is_behind(each)]
    if len(alike) > MOST_NAMED:
        return f"{begin}. It cannot be told from {len(alike)} others."
    if alike:
        return f"{begin}. It cannot be told from {' and '.join(alike)}."
    return f"{begin}, and is ahead of all others beyond chance.{_doubt_of_cases(ranking)}"


def _is_behind(configuration: Configuration) -> bool:
    score = configuration.scores[0]
    is_told = score.adjusted_p is not None and score.adjusted_p < 1 - CONFIDENCE
    # Means over unequal repeats can rank two the other way round than their common repeats.
    lead = _lead(score)
    return is_told and lead is not None and lead.effect > 0


def _lead(score: Score) -> Estimate | None:
    """Return how much better the best is than this one."""
    by = score.from_best
    if by is None or score.mode == "min":
        return by
    return replace(by, value=-by.value, low=-by.high, high=-by.low, effect=-by.effect)


def _digits(score: Score, value: float, sign: str = "") -> str:
    return f"{value:{sign}.1f}" if score.metric == SPEED else f"{value:{sign}.3f}"


def _doubt_of_cases(ranking: Ranking) -> str:
    """Return what the validation cases leave open although the repeats agree; "" if nothing."""
    for each in ranking.configurations[1:]:
        over_cases = each.scores[0].from_best_over_cases
        if over_cases is None:
            return ""  # An older record, without its cases.
        cases = counted(ranking.num_cases, "validation case")
        if not over_cases.has_interval:
            return f" But {cases} cannot tell whether other images would agree."
        if over_cases.high >= 0:
            ends = f"{-over_cases.high:+.3f} to {-over_cases.low:+.3f}"
            return (
                f" But other images may not agree: over the {cases}, the 95 % interval of its lead "
                f"over {ranking.name_of(each)} is {ends}."
            )
    return ""


def _rows(ranking: Ranking) -> list[dict[str, str]]:
    metrics = {score.metric for each in ranking.configurations for score in each.scores}
    regions = {score.region for each in ranking.configurations for score in each.scores}
    has_device = any(each.cell.device_bytes for each in ranking.configurations)
    name = "mean" if metrics - {"Dice"} else "Dice"
    rows = []
    for each in ranking.configurations:
        for score in each.scores:
            rows.append(
                {
                    **_names(ranking, each),
                    **({"region": score.region} if len(regions) > 1 else {}),
                    **({"metric": score.metric} if name == "mean" else {}),
                    "repeats": str(score.mean.repeats),
                    f"{name} (95 % interval)": _estimate_text(score, score.mean),
                    "difference from the best": _estimate_text(score, score.from_best),
                    "adjusted p": texts.p_value_text(score.adjusted_p),
                    "interval over cases": _interval_text(score.from_best_over_cases),
                    **_size(each, has_device),
                }
            )
    return rows


def _names(ranking: Ranking, configuration: Configuration) -> dict[str, str]:
    cell = configuration.cell
    way = {} if ranking.label else {"backend": cell.way, "replicas": str(cell.num_replicas)}
    settings = configuration.settings.items()
    return {**{key: show_setting(key, value) for key, value in settings}, **way}


def _size(configuration: Configuration, has_device: bool) -> dict[str, str]:
    """Return what a configuration costs, in a row of the table."""
    cell = configuration.cell
    parameters, seconds = _parameters(cell), _step_seconds(cell)
    resident, device = cell.resident_bytes, cell.device_bytes
    row = {
        "parameters": texts.NONE if parameters is None else f"{parameters:,}",
        "ms a step": texts.significant(seconds and seconds.scaled(1000)),
        "memory (GiB)": texts.gibibytes(resident),
    }
    return row | ({"device memory (GiB)": texts.gibibytes(device)} if has_device else {})


def _parameters(cell: Cell) -> int | None:
    return next((result.parameters for result in cell.results if result.parameters), None)


def _step_seconds(cell: Cell) -> Spread | None:
    seconds = [result.median_step_seconds for result in cell.results]
    known = [value for value in seconds if value is not None]
    return spread(known) if known else None


def _estimate_text(score: Score, estimate: Estimate | None) -> str:
    if estimate is None:
        return texts.NONE
    is_difference = estimate is score.from_best
    if is_share(score.metric):
        estimate = estimate.within(-1 if is_difference else 0, 1)
    return texts.estimate_text(estimate, 3, sign="+" if is_difference else "")


def _interval_text(estimate: Estimate | None) -> str:
    if estimate is None or not estimate.has_interval:
        return texts.NONE
    return f"{estimate.low:+.3f} to {estimate.high:+.3f}"


def _facts(ranking: Ranking) -> Iterator[dict[str, Any]]:
    for each in ranking.configurations:
        cell = each.cell
        resident, device = cell.resident_bytes, cell.device_bytes
        seconds = _step_seconds(cell)
        for score in each.scores:
            facts: dict[str, Any] = {
                **ranking.shared,
                **each.settings,
                "backend": cell.way,
                "num_replicas": cell.num_replicas,
                "region": score.region,
                "metric": score.metric,
                "repeats": score.mean.repeats,
                "mean": score.mean.value,
                **texts.interval_facts("mean", score.mean),
                "difference": None,
                "difference_low": None,
                "difference_high": None,
                "adjusted_p": score.adjusted_p,
            }
            if score.from_best is not None:
                facts["difference"] = score.from_best.value
                facts |= texts.interval_facts("difference", score.from_best)
            if score.from_best_over_cases is not None:
                facts |= texts.interval_facts("difference_over_cases", score.from_best_over_cases)
            yield {
                **facts,
                "cases": ranking.num_cases,
                "parameters": _parameters(cell),
                "step_seconds": seconds and seconds.median,
                "peak_resident_bytes": resident and resident.median,
                "peak_device_bytes": device and device.median,
            }
