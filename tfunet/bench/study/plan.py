"""Turns a study into trials: every cell, every repeat, in the order in which they run."""

import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfunet.backend import Launch, facts_of, num_processes
from tfunet.bench.study.study import SkipRule, Study
from tfunet.config.keys import defaults, describe, flat, nested, show
from tfunet.config.run import RunConfig
from tfunet.machine.cores import share_cores, usable_cores
from tfunet.process.terminal import columns

PLAN_VERSION = 1
MAX_SLUG = 80


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of one cell.

    Args:
        id: Name of its folder: what varies in the study, the repeat, and a hash of the
            configuration.
        cell: Number of the cell; trials that differ in the seed only share it.
        repeat: From 1.
        scaling: "strong" where global_batch was given, else "weak".
        settings: The settings that vary over the study, dotted.
        config: The whole configuration.
    """

    id: str
    cell: int
    repeat: int
    scaling: str
    settings: Mapping[str, Any]
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A cell of the grid that is not run, and why."""

    settings: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials of a study in the order in which they run, and the cells that are not run."""

    study: Study
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cell:
    given: Mapping[str, Any]
    config: RunConfig


def plan(study: Study, num_cores: float | None = None) -> Plan:
    """Return the trials of `study` on a machine with `num_cores` (by default: this one).

    math.inf is a cluster, where each run gets the cores that it asks for.

    Each repeat is one shuffled block of all cells, so that a machine that becomes slower
    during the sweep does so for all cells alike.
    """
    cores = len(usable_cores()) if num_cores is None else num_cores
    cells, skipped, used_rules = _cells(study, cores)
    if not cells:
        reasons = "; ".join(sorted({one.reason for one in skipped}))
        raise ValueError(f"Nothing is left to run of study {study.name!r}: {reasons}.")
    settings = _varying(study, [cell.config for cell in cells])
    return Plan(
        study=study,
        trials=tuple(_trials(study, cells, settings)),
        skipped=tuple(skipped),
        notes=tuple(
            f"The [[skip]] rule {dict(rule.when)} ({rule.reason}) matches no cell."
            for number, rule in enumerate(study.skips)
            if number not in used_rules
        )
        + _idle_rule(study),
    )


def impossible(config: RunConfig, num_cores: float) -> str | None:
    """Return why a machine with `num_cores` cannot run `config`, or None."""
    if too_many := _too_many_replicas(vars(config)):
        return too_many
    try:
        count = num_processes(config)
        if num_cores != math.inf:
            cores = range(int(num_cores))
            share_cores(cores, config.num_replicas, count, config.cores_per_replica)
        Launch(process_count=count, num_replicas=config.num_replicas, addresses=("",) * count)
    except ValueError as error:
        # The advice that follows is for a single run.
        return str(error).partition(". ")[0].rstrip(".")
    return None


def plan_json(planned: Plan) -> dict[str, Any]:
    """Return the plan as it is written to plan.json; `base` and a trial's `changes` make its
    configuration."""
    base = vars(planned.trials[0].config)
    return {
        "schema_version": PLAN_VERSION,
        "study": planned.study.name,
        "repeats": planned.study.repeats,
        "seed": planned.study.seed,
        "base": base,
        "trials": [
            {
                "id": trial.id,
                "cell": trial.cell,
                "repeat": trial.repeat,
                "scaling": trial.scaling,
                "settings": dict(trial.settings),
                "changes": {
                    key: value for key, value in vars(trial.config).items() if value != base[key]
                },
            }
            for trial in planned.trials
        ],
        "skipped": [
            {"settings": dict(one.settings), "reason": one.reason} for one in planned.skipped
        ],
        "hopeless": vars(planned.study.hopeless) if planned.study.hopeless else None,
        "notes": list(planned.notes),
    }


def plan_table(planned: Plan) -> str:
    """Return the plan as text: a line a trial in the order in which they run, then the rest."""
    study = planned.study
    keys = [key for key in planned.trials[0].settings if key not in ("backend", "num_replicas")]
    rows = [["#", "trial", "backend", "replicas", "processes", *keys, "seed"]]
    for number, trial in enumerate(planned.trials, 1):
        config = trial.config
        shape = [config.backend, config.num_replicas, num_processes(config)]
        values = [show(trial.settings[key]) for key in keys]
        rows.append([str(one) for one in (number, trial.id, *shape, *values, config.seed)])
    cells = len({trial.cell for trial in planned.trials})
    lines = [
        f"Study {study.name}: {_count(len(planned.trials), 'trial')} "
        f"({_count(cells, 'cell')}, {_count(study.repeats, 'repeat')}; "
        f"order from seed {study.seed}).",
        "",
        *columns(rows),
        *(["", f"Hopeless cells: {study.hopeless}."] if study.hopeless else []),
    ]
    return "\n".join([*lines, *_skipped_lines(planned.skipped), *planned.notes])


def _idle_rule(study: Study) -> tuple[str, ...]:
    rule = study.hopeless
    if rule is None or rule.after < study.repeats:
        return ()
    return (
        f"[hopeless] has nothing to leave out: it waits for {_count(rule.after, 'repeat')} of "
        f"{study.repeats}. Raise repeats, or lower its after.",
    )


def _skipped_lines(skipped: Sequence[Skipped], most: int = 5) -> Iterator[str]:
    if skipped:
        yield ""
        yield f"Skipped: {_count(len(skipped), 'cell')}."
    for reason in dict.fromkeys(one.reason for one in skipped):
        cells = [describe(one.settings) for one in skipped if one.reason == reason]
        yield f"  {reason}:"
        yield from (f"    {cell}" for cell in cells[:most])
        if len(cells) > most:
            yield f"    and {len(cells) - most} more"


def _cells(study: Study, num_cores: float) -> tuple[list[_Cell], list[Skipped], set[int]]:
    cells: list[_Cell] = []
    skipped: list[Skipped] = []
    used_rules: set[int] = set()
    seen: set[str] = set()
    for given in _combinations(study):
        values = nested({**study.base, **given})
        config, reason = _build(values)
        lookup = flat(vars(config) if config else {**defaults(), **values})
        rules = [number for number, rule in enumerate(study.skips) if _matches(rule, lookup)]
        used_rules.update(rules)
        if config is not None:
            reason = impossible(config, num_cores)
            if reason is None and _canonical(config) in seen:
                reason = "the same settings as another cell"
        if rules:
            reason = study.skips[rules[0]].reason
        if config is None or reason:
            skipped.append(Skipped(settings=given, reason=reason or ""))
        else:
            seen.add(_canonical(config))
            cells.append(_Cell(given, config))
    return cells, skipped, used_rules


def _build(values: Mapping[str, Any]) -> tuple[RunConfig | None, str | None]:
    try:
        return RunConfig(**values), None
    except ValueError as error:
        return None, _too_many_replicas(values) or str(error).rstrip(".")


def _too_many_replicas(values: Mapping[str, Any]) -> str | None:
    backend, num_replicas = values.get("backend", RunConfig.backend), values.get("num_replicas", 1)
    if facts_of(backend).one_replica and num_replicas > 1:
        return f"{backend} trains one replica, not {num_replicas}"
    return None


def _combinations(study: Study) -> Iterator[dict[str, Any]]:
    for case in study.cases or ({},):
        for values in itertools.product(*study.grid.values()):
            yield {**case, **dict(zip(study.grid, values, strict=True))}


def _matches(rule: SkipRule, settings: Mapping[str, Any]) -> bool:
    for key, wanted in rule.when.items():
        value = settings.get(key)
        if isinstance(wanted, list) and value not in wanted and value != tuple(wanted):
            return False
        if not isinstance(wanted, list) and value != wanted:
            return False
    return True


def _varying(study: Study, configs: Sequence[RunConfig]) -> list[dict[str, Any]]:
    """Return, for each cell, backend, num_replicas and what else differs between cells."""
    given = {*study.base, *study.grid, *(key for case in study.cases for key in case)}
    derived = {"seed"}
    if "global_batch" not in given:
        derived.add("global_batch")
    elif "replica_batch" not in given:
        derived.add("replica_batch")
    rows = [flat(vars(config)) for config in configs]
    keys = ["backend", "num_replicas"]
    for key in dict.fromkeys(key for row in rows for key in row):
        values = {repr(row.get(key)) for row in rows}
        if key not in keys and key not in derived and len(values) > 1:
            keys.append(key)
    return [{key: row.get(key) for key in keys} for row in rows]


def _trials(
    study: Study, cells: Sequence[_Cell], settings: Sequence[Mapping[str, Any]]
) -> Iterator[Trial]:
    dice = random.Random(study.seed)
    texts = [_canonical(cell.config) for cell in cells]
    slugs = [_slug(one) for one in settings]
    for repeat in range(1, study.repeats + 1):
        block = list(range(len(cells)))
        dice.shuffle(block)
        for number in block:
            first = cells[number].config
            config = first if repeat == 1 else replace(first, seed=first.seed + repeat - 1)
            digest = hashlib.sha256(f"{texts[number]}{config.seed}".encode()).hexdigest()
            # A cut slug no longer tells the cells apart; a longer hash must.
            digits = 12 if len(slugs[number]) == MAX_SLUG else 6
            given = {**study.base, **cells[number].given}
            yield Trial(
                id=f"{slugs[number]}-r{repeat}-{digest[:digits]}",
                cell=number,
                repeat=repeat,
                scaling="strong" if "global_batch" in given else "weak",
                settings=settings[number],
                config=config,
            )


def _canonical(config: RunConfig) -> str:
    """Return the same text for equal configurations, the seed left out."""
    values = {key: value for key, value in vars(config).items() if key != "seed"}
    return json.dumps(values, sort_keys=True, default=str)


def _slug(settings: Mapping[str, Any]) -> str:
    parts = [_part(key, value) for key, value in settings.items() if value is not None]
    return "-".join(part for part in parts if part)[:MAX_SLUG]


def _part(key: str, value: Any) -> str:
    if key == "backend":
        return _plain(str(value).rpartition(":")[2] or str(value))
    if key == "num_replicas":
        return f"{value}r"
    words = key.rpartition(".")[2].split("_")
    if isinstance(value, bool):
        return _plain("".join(words)) if value else ""
    if isinstance(value, (str, dict)):
        return _plain(str(value))
    # A batch is named for what it is of: b4 for a replica's, g8 for the global one.
    name = {"replica_batch": "b", "global_batch": "g"}.get(key, "".join(one[:1] for one in words))
    return name + _plain(show(value))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", text.lower()).strip("_.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
