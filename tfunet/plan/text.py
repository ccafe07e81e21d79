"""A ranking in words, and as a table for JSON. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfunet.config.amount import MIB
from tfunet.plan.layout import Layout
from tfunet.plan.prediction import PARTS, Prediction
from tfunet.plan.rank import ALIKE, Ranking
from tfunet.process.terminal import columns, counted

# Rows of layouts that fit, and of those that do not.
ROWS, OTHER_ROWS = 8, 3
REFUSED_ROWS = 6
# A part of a step that takes less is not shown.
LEAST_SHARE = 0.005


def ranking_text(ranking: Ranking) -> str:
    """Return a ranking in words.

    Raises ValueError where no layout fits, which says what is nearest and what is missing.
    """
    if ranking.best is None:
        raise ValueError(nothing_fits(ranking))
    facts, machine = ranking.facts, ranking.machine
    shape = " x ".join(map(str, facts.patch))
    lines = [
        f"{facts.model}, {facts.num_parameters:,} parameters, "
        f"{counted(facts.global_samples, 'sample')} of {shape} a step, on {machine.name}",
        f"{len(ranking.fitting)} layouts fit, {len(ranking.others)} do not surely, "
        f"{ranking.num_refused} are refused.",
        "",
        *table(ranking),
        "",
        *_why(ranking),
        *_what_if(ranking),
        *_refused(ranking),
        *_estimates(ranking),
    ]
    return "\n".join(lines)


def line(ranking: Ranking, one: Prediction, run: str) -> str:
    """Return the line to type for a layout; `run` is the file of the run, as it was typed."""
    words = one.layout.words(ranking.config)
    return f"tfunet train {run} {words}".rstrip()


def table(ranking: Ranking) -> list[str]:
    """Return the best layouts, and those that nearly fit, as lines of a table."""
    shown = [*ranking.fitting[:ROWS], *ranking.others[:OTHER_ROWS]]
    parts = [
        name
        for name in PARTS
        if any(getattr(one.parts, name) > LEAST_SHARE * one.seconds for one in shown)
    ]
    rows: list[Sequence[str]] = [
        (
            *("", "layout", "step (ms)", *parts, "samples/s", "memory (MiB)", "of"),
            *("fits", "device-hours an epoch"),
        )
    ]
    for place, one in enumerate(shown, 1):
        sure = f"{one.sure:.0%}"
        rows.append(
            (
                str(place) if one.fits else "-",
                str(one.layout),
                _ms(one.seconds),
                *(_ms(getattr(one.parts, name)) for name in parts),
                f"{one.samples_per_second:.3g}",
                f"{one.num_bytes / MIB:,.0f}",
                f"{one.limit_bytes / MIB:,.0f}",
                sure,
                f"{one.device_hours:.2g}",
            )
        )
    return columns(rows)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def _why(ranking: Ranking) -> list[str]:
    best = ranking.fitting[0]
    largest = best.parts.largest
    share = getattr(best.parts, largest) / best.seconds if best.seconds else 1.0
    lines = [f"Why the first: {largest} is {share:.0%} of its step."]
    plain = next((one for one in ranking.fitting if one.layout.num_devices == 1), None)
    if plain is not None and plain is not best:
        lines[0] += f" It is {plain.seconds / best.seconds:.2f} times as fast as {plain.layout}."
    if best.note:
        lines.append(f"Large-model support: {best.note}.")
    if len(ranking.fitting) > 1:
        second = ranking.fitting[1]
        more = second.seconds / best.seconds - 1
        longer = max(PARTS, key=lambda name: _longer(best, second, name))
        verdict = f"{abs(more):.0%} {'longer' if more >= 0 else 'less'}"
        lines.append(
            f"The second, {second.layout}, takes {verdict}; most of the difference is {longer}."
        )
    return lines


def _longer(first: Prediction, second: Prediction, name: str) -> float:
    difference: float = getattr(second.parts, name) - getattr(first.parts, name)
    return difference


def _what_if(ranking: Ranking) -> list[str]:
    best = ranking.fitting[0].seconds
    given = [
        f"{name} {_ms(seconds)} ms (-{1 - seconds / best:.0%})"
        for name, seconds in ranking.what_if
        if seconds < best * (1 - ALIKE)
    ]
    if not given:
        return ["One device more, a faster link or more memory would hardly make it faster."]
    return [f"A step with {'; with '.join(given)}."]


def _refused(ranking: Ranking) -> list[str]:
    if not ranking.refused:
        return []
    rows = [(str(one.layout), one.reason.partition(". ")[0]) for one in ranking.refused]
    lines = ["", "Refused, one for each reason:"]
    lines += [f"  {name}: {reason}" for name, reason in rows[:REFUSED_ROWS]]
    if len(rows) > REFUSED_ROWS:
        lines.append(f"  and for {counted(len(rows) - REFUSED_ROWS, 'more reason')} (--json)")
    return lines


def _estimates(ranking: Ranking) -> list[str]:
    estimates = ranking.machine.estimates
    if not estimates:
        return []
    return ["", f"Estimated, not measured: {'; '.join(estimates)}."]


def nothing_fits(ranking: Ranking) -> str:
    """Return what is nearest to a fit, and what is missing, in a line."""
    if not ranking.others:
        reason = ranking.refused[0].reason if ranking.refused else "nothing was tried."
        return f"No layout of this run is possible. {reason}"
    near = ranking.others[0]
    more = near.num_bytes - near.limit_bytes
    missing = f"{more / MIB:,.0f} MiB are missing" if more > 0 else "too little is left to be sure"
    return (
        f"No layout fits surely. The nearest is {near.layout}: {near.num_bytes / MIB:,.0f} MiB of "
        f"{near.limit_bytes / MIB:,.0f} on each device, so {missing}. Give more --devices or "
        "--memory, a smaller patch, or a smaller network."
    )


def ranking_json(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking as a table for JSON."""
    machine, facts = ranking.machine, ranking.facts
    return {
        "model": facts.model,
        "parameters": facts.num_parameters,
        "patch": list(facts.patch),
        "global_batch": facts.global_samples,
        "machine": machine.name,
        "estimates": list(machine.estimates),
        "layouts": [prediction_json(one) for one in (*ranking.fitting, *ranking.others)],
        "refused": [
            {"layout": layout_json(one.layout), "reason": one.reason} for one in ranking.refused
        ],
        "num_refused": ranking.num_refused,
        "what_if": dict(ranking.what_if),
    }


def prediction_json(one: Prediction) -> dict[str, Any]:
    """Return a prediction as a table for JSON."""
    return {
        "layout": layout_json(one.layout),
        "step_seconds": one.seconds,
        "parts": dict(vars(one.parts)),
        "samples_per_second": one.samples_per_second,
        "memory_bytes": one.num_bytes,
        "limit_bytes": one.limit_bytes,
        "fits": one.fits,
        "sure": one.sure,
        "device_hours_per_epoch": one.device_hours,
        "note": one.note,
    }


def layout_json(layout: Layout) -> Mapping[str, Any]:
    """Return the keys of a layout that are not the defaults."""
    plain = Layout()
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in vars(layout).items()
        if value != getattr(plain, key) or key == "backend"
    }
