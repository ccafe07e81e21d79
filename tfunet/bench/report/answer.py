"""The sentences on top of a report: what became of all that a study varied. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tfunet.bench.analysis.confidence_intervals import mean
from tfunet.bench.analysis.folds import held_out_groups, num_folds
from tfunet.bench.analysis.sweep_summary import Family, SpeedComparison, Summary
from tfunet.bench.analysis.trial_noise import (
    FEASIBLE_REPEATS,
    finest_precision,
    noise_of_records,
)
from tfunet.bench.records.ways_of_training import by_repeat
from tfunet.bench.report.configuration_table import best_configurations, fastest_settings
from tfunet.bench.report.lone_run import lone_answer
from tfunet.bench.report.number_text import too_noisy_text
from tfunet.bench.study.machine_noise import unsteadiness
from tfunet.learning.student_t import CONFIDENCE, MIN_INTERVAL
from tfunet.process.terminal import counted

PRECISION = 0.05
MORE = (
    f"More repeats tell smaller differences: tfunet sweep plan STUDY.toml --precision "
    f"{PRECISION:.0%} says how many."
)
# More groups of settings than this are counted, not listed.
MOST_FAMILIES = 3
# With more groups in all folds, none is named.
MOST_GROUPS = 12


@dataclass(frozen=True, kw_only=True)
class _Ranking:
    """The ways at the largest number of replicas that more than one way has.

    Args:
        first: The fastest, and those that cannot be told from it.
        slower: Ways that are slower than the fastest.
        is_known: Whether there are enough repeats for every verdict.
    """

    num_replicas: int
    num_repeats: int
    first: tuple[str, ...]
    slower: tuple[str, ...]
    is_known: bool

    @property
    def words(self) -> str:
        """What the ranking says, to follow "with these settings"."""
        where = f"at {counted(self.num_replicas, 'replica')}"
        if not self.is_known:
            return f"too few repeats to compare {_and(self.first)} {where}"
        if not self.slower:
            return f"no difference in speed can be told between {_and(self.first)} {where}"
        those = f"slower than {'it' if len(self.first) == 1 else 'the fastest of them'}"
        slower = f"{_and(self.slower)} {'is' if len(self.slower) == 1 else 'are'} {those}"
        if len(self.first) == 1:
            return f"{self.first[0]} is the fastest {where}, {slower}"
        return f"{_and(self.first)} are the fastest {where} and cannot be told apart, {slower}"


def answer(summary: Summary) -> str:
    """Return what the sweep says on each question that its study asked: which settings to take, and
    which backend.
    """
    if summary.lone_run is not None:
        return lone_answer(summary.lone_run)
    if all(trial.result is None for trial in summary.sweep.trials):
        return "No answer yet: no trial has numbers. The table of trials has the reasons."
    rankings = {
        family.title: ranking
        for family in summary.families
        if (ranking := _ranking(family)) is not None
    }
    settings = best_configurations(summary.families, has_speeds=bool(rankings))
    fastest, is_verdict = fastest_settings(summary.families)
    fastest = " ".join(filter(None, (_unsteady(summary) if is_verdict else "", fastest)))
    if not rankings:
        return (
            " ".join(filter(None, (settings, _held_out(summary) if settings else "", fastest)))
            or _cross_validation(summary)
            or "Nothing to choose: no two backends have numbers for the same settings and number "
            "of replicas."
        )
    known = [ranking for ranking in rankings.values() if ranking.is_known]
    if not known:
        if summary.num_unfinished:
            return (
                f"No answer yet: {counted(summary.num_unfinished, 'trial')} of "
                f"{len(summary.sweep.trials)} have not ended. Run the study to its end with the "
                "same command."
            )
        few = (
            f"No answer yet: chance cannot be told from a difference with fewer than "
            f"{MIN_INTERVAL} repeats. Give the study repeats = {MIN_INTERVAL} or more and run it "
            "again."
        )
        return " ".join(filter(None, (settings, few)))
    is_firm = any(ranking.slower for ranking in known) and not is_verdict
    parts = (
        settings,
        fastest,
        _unsteady(summary) if is_firm else "",
        _speed(rankings),
        _scores(summary, " between the backends" if settings else ""),
        _more(summary, known),
    )
    return " ".join(filter(None, parts))


def _unsteady(summary: Summary) -> str:
    """Return why no difference in speed is to be relied on; "" on a quiet machine."""
    spread, change = unsteadiness(summary.sweep.noise)
    if not spread and not change:
        return ""
    ways = [f"varied by {spread:.0%}"] if spread else []
    ways += [f"changed by {change:.0%} during the sweep"] if change else []
    return (
        f"Not to be relied on: the machine was not quiet (its speed {' and '.join(ways)}). Run the "
        "study again on a quiet machine. Measured was:"
    )


def _cross_validation(summary: Summary) -> str:
    """Return the mean Dice of each configuration over its folds; "" without folds."""
    parts = []
    for family in summary.families:
        for cell in family.cells:
            dice = by_repeat(cell.trials, lambda result: result.mean_dice)
            if cell.num_folds < 2 or not dice:
                continue
            estimate, done = mean(dice).within(0, 1), num_folds(cell.done)
            interval = (
                f" (95 % interval {estimate.low:.3f} to {estimate.high:.3f})"
                if estimate.has_interval
                else ""
            )
            some = "" if done == cell.num_folds else f"{done} of "
            folds = f"{some}{cell.num_folds} folds"
            name = family.label_of(cell)
            parts.append(f"{name} has a mean Dice of {estimate.value:.3f}{interval} over {folds}")
    if not parts:
        return ""
    rest = len(parts) - MOST_FAMILIES
    parts = [*parts[:MOST_FAMILIES], *([f"{rest} more are in the tables"] if rest > 0 else [])]
    held_out = " ".join(
        filter(None, (_held_out(summary), "Folds are repeats of one configuration."))
    )
    return f"{'; '.join(parts)}. {held_out}"


def _held_out(summary: Summary) -> str:
    """Return which groups each fold held out, where they are few."""
    folds = held_out_groups(
        [trial for family in summary.families for cell in family.cells for trial in cell.done]
    )
    if not folds or sum(map(len, folds.values())) > MOST_GROUPS:
        return ""
    named = [f"fold {fold} {', '.join(groups)}" for fold, groups in folds.items()]
    return f"Held out: {'; '.join(named)}."


def _speed(rankings: dict[str, _Ranking]) -> str:
    if len({ranking.words for ranking in rankings.values()}) == 1:
        ranking = next(iter(rankings.values()))
        advice = "" if ranking.slower else ": take any"
        everywhere = ", with all settings" if len(rankings) > 1 else ""
        return f"{_capital(ranking.words)}{everywhere}{advice}."
    if not any(ranking.slower for ranking in rankings.values()):
        return "No difference in speed can be told between the backends: take any."
    if len(rankings) <= MOST_FAMILIES:
        parts = [f"with {title}, {ranking.words}" for title, ranking in rankings.items()]
        return f"Which backend is the fastest depends on the settings: {'; '.join(parts)}."
    fastest: dict[tuple[str, ...], int] = {}
    for ranking in rankings.values():
        if ranking.slower:
            fastest[ranking.first] = fastest.get(ranking.first, 0) + 1
    parts = [f"{_and(ways)} in {count}" for ways, count in fastest.items()]
    equal = len(rankings) - sum(fastest.values())
    parts += [f"no difference can be told in {equal}"] if equal else []
    which = "Which backend is the fastest depends on the settings"
    return f"{which}. Of {len(rankings)} groups: {'; '.join(parts)}."


def _scores(summary: Summary, between: str) -> str:
    judged = [cell for family in summary.families for cell in family.cells if cell.score_p]
    different = [cell for cell in judged if cell.score_p is not None and cell.score_p < _LIMIT]
    if different:
        return f"Scores differ: see there for {_and([cell.label for cell in different[:3]])}."
    return f"No difference in scores can be told{between}." if judged else ""


def _more(summary: Summary, known: Sequence[_Ranking]) -> str:
    """Return what would tell the fastest apart: more repeats, unless no number of them would."""
    if all(len(ranking.first) == 1 for ranking in known):
        return ""
    noise = noise_of_records(summary)
    if noise is None:
        return MORE
    repeats = max(FEASIBLE_REPEATS, *(ranking.num_repeats for ranking in known))
    finest = finest_precision(noise, repeats, summary.num_comparisons)
    if finest <= PRECISION:
        return MORE
    return f"More repeats hardly help: {too_noisy_text(finest, repeats)}."


_LIMIT = 1 - CONFIDENCE


def _ranking(family: Family) -> _Ranking | None:
    if not family.comparisons:
        return None
    largest = max(pair.upper.num_replicas for pair in family.comparisons)
    pairs = [pair for pair in family.comparisons if pair.upper.num_replicas == largest]
    wins: dict[str, int] = {}
    for pair in pairs:
        wins[pair.upper.way] = wins.get(pair.upper.way, 0) + 1
        wins.setdefault(pair.lower.way, 0)
    order = sorted(wins, key=lambda way: -wins[way])
    slower = [way for way in order[1:] if _is_slower(way, order[0], pairs)]
    return _Ranking(
        num_replicas=largest,
        num_repeats=min(pair.ratio.repeats for pair in pairs),
        first=tuple(way for way in order if way not in slower),
        slower=tuple(slower),
        is_known=all(pair.verdict != "unknown" for pair in pairs),
    )


def _is_slower(way: str, fastest: str, pairs: Sequence[SpeedComparison]) -> bool:
    return any(
        pair.verdict == "faster" and (pair.upper.way, pair.lower.way) == (fastest, way)
        for pair in pairs
    )


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _capital(text: str) -> str:
    # Names of ways keep their case.
    return text[:1].upper() + text[1:] if text.startswith(("no ", "too ")) else text
