"""Turns a study into its trials: every repeat of every cell, in the order in which they run."""

import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from tfunet.arguments import of_study
from tfunet.backend import check_shares, facts_of, num_processes
from tfunet.bench.study.study_file import SkipRule, Study
from tfunet.config.keys import defaults, flat, nested, show
from tfunet.config.run import RunConfig
from tfunet.config.tournament import read_tournament
from tfunet.machine.cores import share_cores, usable_cores
from tfunet.population.places import places
from tfunet.process.terminal import counted

MAX_SLUG = 80
DESCRIPTION = ".toml"

# Keys that came later, with the value that changes nothing: trials keep the names that they had.
LATER: Mapping[str, Any] = {
    "learning_rate_schedule": None,
    "tournament": {},
    "stages": 1,
    "micro_batches": 1,
    "schedule": "1f1b",
    "balance": "time",
    "recompute": False,
    "batch_norm": "micro_batch",
    "encoder_frozen_epochs": 0,
    "track": (),
    "tiling": (),
    "share_cores": False,
    "shared_memory": True,
    "store": "auto",
    "zero": 0,
    "swap_weights": None,
    "layout": None,
    "prove": True,
    "gpu_memory": None,
    "initial_weights": None,
    "epoch_score": "dice",
    "outputs": "classes",
}
# Keys that are gone, with the value that changed nothing: for the same reason.
FORMER: Mapping[str, Any] = {"swap_compression": None}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of one cell.

    Args:
        id: Name of its folder (`trial_name`).
        cell: Number of the cell; trials that differ only in the seed share it.
        scaling: "strong" where global_batch was given, else "weak".
        settings: The settings that vary over the study, with dotted keys.
    """

    id: str
    cell: int
    repeat: int
    scaling: str
    settings: Mapping[str, Any]
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A cell of the grid that is not run, with the reason."""

    settings: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The trials of a study in the order in which they run, and the cells that are not run."""

    study: Study
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cell:
    given: Mapping[str, Any]
    config: RunConfig


def plan_trials(study: Study, num_cores: float | None = None) -> StudyPlan:
    """Return the trials of `study` on a machine with `num_cores`, by default this one.

    math.inf stands for a cluster, where each run gets the cores that it asks for. Each repeat is a
    shuffled block of all cells, so that a machine that becomes slower does so for all cells alike.
    """
    if study.search is not None:
        raise ValueError(
            f"Study {study.name!r} is a search: its trials are known only as they run. Run it with "
            "`tfunet sweep run`, in as many processes or jobs at once as you like."
        )
    cores = len(usable_cores()) if num_cores is None else num_cores
    cells, skipped, used_rules = _cells(study, cores)
    if not cells:
        reasons = "; ".join(sorted({cell.reason for cell in skipped}))
        raise ValueError(f"Study {study.name!r} has no trial to run: {reasons}.")
    settings = _varying(study, cells)
    return StudyPlan(
        study=study,
        trials=tuple(_trials(study, cells, settings)),
        skipped=tuple(skipped),
        notes=tuple(
            f"The [[skip]] rule {dict(rule.when)} ({rule.reason}) matches no cell."
            for number, rule in enumerate(study.skips)
            if number not in used_rules
        )
        + ((study.samples.note,) if study.samples is not None and study.samples.note else ())
        + _turns(cells, cores),
    )


def impossible(config: RunConfig, num_cores: float) -> str | None:
    """Return why a machine with `num_cores` cannot run `config`, or None."""
    if too_many := _too_many_replicas(vars(config)):
        return too_many
    try:
        count = num_processes(config)
        if num_cores != math.inf:
            cores = range(int(num_cores))
            share_cores(
                cores,
                config.num_replicas,
                count,
                config.cores_per_replica,
                config.split,
                config.stages,
                may_share=config.share_cores,
            )
        check_shares(config.num_devices, count)
    except ValueError as error:
        # The rest of the message is advice for a single run.
        return str(error).partition(". ")[0].rstrip(".")
    return None


def _turns(cells: Sequence[_Cell], cores: float) -> tuple[str, ...]:
    """Return a note on the populations whose trainers are more than the places for them."""
    notes = []
    for cell in cells:
        tournament = read_tournament(cell.config.tournament)
        if tournament is None or cores == math.inf:
            continue
        count = len(places(cell.config, range(int(cores))))
        if count < tournament.trainers:
            notes.append(
                f"{counted(tournament.trainers, 'trainer')} share {counted(int(cores), 'core')}: "
                f"{count} train at the same time, and the others wait for their turn in each round."
            )
    return tuple(dict.fromkeys(notes))


def _cells(study: Study, num_cores: float) -> tuple[list[_Cell], list[Skipped], set[int]]:
    cells: list[_Cell] = []
    skipped: list[Skipped] = []
    used_rules: set[int] = set()
    seen: set[str] = set()
    for given in _combinations(study):
        values = nested({**study.base, **given})
        config, reason = _build(values)
        lookup = flat(vars(config) if config else {**defaults(), **values})
        lookup["data"] = values.get("data", lookup["data"])  # A rule says what the study says.
        rules = [number for number, rule in enumerate(study.skips) if _matches(rule, lookup)]
        used_rules.update(rules)
        if config is not None:
            reason = impossible(config, num_cores)
            if reason is None and settings_text(config) in seen:
                reason = "the same settings as another cell"
        if rules:
            reason = study.skips[rules[0]].reason
        if config is None or reason:
            skipped.append(Skipped(settings=given, reason=reason or ""))
        else:
            seen.add(settings_text(config))
            cells.append(_Cell(given, config))
    return cells, skipped, used_rules


def _build(values: Mapping[str, Any]) -> tuple[RunConfig | None, str | None]:
    try:
        return of_study(values), None
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
            for sample in study.sample_rows:
                yield {**case, **dict(zip(study.grid, values, strict=True)), **sample}


def _matches(rule: SkipRule, settings: Mapping[str, Any]) -> bool:
    for key, wanted in rule.when.items():
        value = settings.get(key)
        if isinstance(wanted, list) and value not in wanted and value != tuple(wanted):
            return False
        if not isinstance(wanted, list) and value != wanted:
            return False
    return True


def _settings(study: Study, cell: _Cell) -> dict[str, Any]:
    """Return the settings of a cell, with a data set as the study names it: by its description."""
    settings = flat(vars(cell.config))
    values = nested({**study.base, **cell.given})
    description = values.get("data", "")
    if not description.endswith(DESCRIPTION):
        return settings
    own = {f"data_options.{key}" for key in values.get("data_options", {})}
    return {
        **{
            key: value
            for key, value in settings.items()
            if key in own or not key.startswith("data_options.")
        },
        "data": description,
    }


def _varying(study: Study, cells: Sequence[_Cell]) -> list[dict[str, Any]]:
    """Return backend, num_replicas and the other settings that vary, for each cell."""
    given = {*study.base, *study.varied}
    derived = {"seed"}
    if "global_batch" not in given:
        derived.add("global_batch")
    elif "replica_batch" not in given:
        derived.add("replica_batch")
    rows = [_settings(study, cell) for cell in cells]
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
    for repeat in range(1, study.repeats + 1):
        block = list(range(len(cells)))
        dice.shuffle(block)
        for number in block:
            given = {**study.base, **cells[number].given}
            for count, config in _runs(cells[number].config, repeat):
                yield Trial(
                    id=trial_name(settings[number], config, count),
                    cell=number,
                    repeat=count,
                    scaling="strong" if "global_batch" in given else "weak",
                    settings=settings[number],
                    config=config,
                )


def _runs(first: RunConfig, repeat: int) -> Iterator[tuple[int, RunConfig]]:
    """Yield the runs of a repeat of a cell, each with its number among all: one, or the trainers
    of a population.
    """
    seed = first.seed + repeat - 1
    tournament = read_tournament(first.tournament)
    if tournament is None:
        yield repeat, first if repeat == 1 else replace(first, seed=seed)
        return
    for trainer in range(tournament.trainers):
        count = (repeat - 1) * tournament.trainers + trainer + 1
        yield count, replace(first, seed=tournament.seed_of(seed, trainer))


def trial_name(settings: Mapping[str, Any], config: RunConfig, repeat: int) -> str:
    """Return the name of a trial's folder, such as "horovod-2r-r1-7a445a"."""
    parts = [_part(key, value) for key, value in settings.items() if value is not None]
    slug = "-".join(part for part in parts if part)[:MAX_SLUG]
    digest = hashlib.sha256(f"{settings_text(config)}{config.seed}".encode()).hexdigest()
    # A slug that was cut no longer tells cells apart: the longer hash does.
    return f"{slug}-r{repeat}-{digest[: 12 if len(slug) == MAX_SLUG else 6]}"


def settings_text(config: RunConfig) -> str:
    """Return the same text for equal configurations, the seed left out."""
    left_out = {"seed", *(key for key, value in LATER.items() if getattr(config, key) == value)}
    values = {key: value for key, value in vars(config).items() if key not in left_out}
    return json.dumps({**FORMER, **values}, sort_keys=True, default=str)


def _part(key: str, value: Any) -> str:
    if key == "backend":
        return _plain(str(value).rpartition(":")[2] or str(value))
    if key == "num_replicas":
        return f"{value}r"
    if key == "data" and str(value).endswith(DESCRIPTION):
        return _plain(PurePath(value).stem)
    words = key.rpartition(".")[2].split("_")
    if isinstance(value, bool):
        return _plain("".join(words)) if value else ""
    if isinstance(value, (str, dict)):
        return _plain(str(value))
    # b4 is the batch of a replica, g8 the global batch.
    name = {"replica_batch": "b", "global_batch": "g"}.get(key, "".join(word[:1] for word in words))
    return name + _plain(show(value))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", text.lower()).strip("_.")
