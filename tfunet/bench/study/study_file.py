"""Reads a study file: base settings, what is varied, repeats, and which cells to skip."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfunet.arguments import base_file, file_and_bases, read_table
from tfunet.backend import BACKENDS
from tfunet.bench.study.samples import Samples, read_samples, refuse_equal
from tfunet.bench.study.search_settings import Search, read_search
from tfunet.bench.study.slurm_settings import Slurm, read_slurm
from tfunet.bench.study.space import Space
from tfunet.config.keys import GONE, KEYS, OPTIONS, beside, flat, nested, unknown_key
from tfunet.config.memory_keys import SWAP_KEYS
from tfunet.config.refs import expand
from tfunet.config.run import RunConfig
from tfunet.config.tournament import first_values, read_tournament
from tfunet.config.trust import KEYS as PROGRAM_KEYS
from tfunet.config.trust import check_own, programs
from tfunet.config.typed_values import check_keys, convert, kinds_of, read
from tfunet.config.words import near_match
from tfunet.data.description_file import described
from tfunet.files.printable import is_printable
from tfunet.files.typed import parse_toml, toml_text

MOST_TRIALS = 100_000
MOST_NAME = 200  # A file system takes 255, and files beside the folder have longer names.
TOP = (
    *("name", "repeats", "seed", "base", "grid", "case", "samples", "search"),
    *("skip", "slurm", "tournament"),
)
TABLE = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SkipRule:
    """Leaves out the cells whose settings match all of `when`."""

    when: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared: every case with every combination of the grid and every sample, `repeats`
    times.

    Args:
        repeats: Runs of every cell; the seed of repeat k is that of the base settings plus k - 1.
        grid: Values of each setting that varies. A setting is a key of RunConfig, or dotted for an
            entry of a table: "model_options.filters".
        search: How trials are chosen, from `space`, by the scores of earlier ones; None to run all.
        text: Text of the study file; empty for a study made in Python.
    """

    name: str
    repeats: int = 1
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    cases: tuple[Mapping[str, Any], ...] = ()
    samples: Samples | None = None
    search: Search | None = None
    space: Space = field(default_factory=dict)
    skips: tuple[SkipRule, ...] = ()
    slurm: Slurm = field(default_factory=Slurm)
    text: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}.")
        if self.repeats * self.num_cells > MOST_TRIALS:
            raise ValueError(
                f"The study has {self.repeats * self.num_cells} trials ({self.num_cells} cells, "
                f"{self.repeats} repeats); allowed: at most {MOST_TRIALS}. Lower repeats, or split "
                "the grid into several studies."
            )
        if any("elastic" in settings for settings in self._tables()):
            raise ValueError(
                "elastic cannot be set in a study: a trial that lost a process would no longer "
                "measure its cell. Leave it out: such a trial is run again."
            )
        if self.search is not None:
            others = {
                "[grid]": self.grid,
                "[[case]]": self.cases,
                "[samples]": self.samples,
                "[[skip]]": self.skips,
                "repeats": self.repeats > 1,
            }
            if given := [name for name, value in others.items() if value]:
                raise ValueError(
                    f"A study with [search] has no {given[0]}: the search chooses its trials. "
                    "Give it [base] and [search.space]."
                )
        is_name = bool(self.name) and not set(self.name) & set("/\\") and self.name[0] != "."
        if len(self.name.encode(errors="replace")) > MOST_NAME:
            raise ValueError(
                f"name must have at most {MOST_NAME} bytes, as the name of a folder, got "
                f"{self.name[:20]!r} and so on."
            )
        if not is_name or not is_printable(self.name):
            raise ValueError(
                "name must be the name of a folder, without / and control characters, got "
                f"{self.name!r}."
            )
        _refuse_double_settings(self)

    @property
    def sample_rows(self) -> Sequence[Mapping[str, Any]]:
        """The settings of each sample; one without settings if the study has no samples."""
        return self.samples.rows if self.samples is not None else ({},)

    @property
    def varied(self) -> set[str]:
        """The settings that the study gives, beside those of [base]."""
        return {key for settings in self._tables()[1:] for key in settings}

    def _tables(self) -> tuple[Mapping[str, Any], ...]:
        return (self.base, self.grid, *self.cases, self.sample_rows[0])

    @property
    def num_cells(self) -> int:
        """Number of combinations of cases, grid and samples."""
        combinations = max(1, len(self.cases)) * math.prod(map(len, self.grid.values()))
        return combinations * len(self.sample_rows)


def read_study(path: str | Path) -> Study:
    """Return the study in a TOML file; a ValueError names what is wrong in it."""
    if not Path(path).is_file():
        raise ValueError(f"There is no study {str(path)!r}.")
    try:
        text = toml_text(Path(path))
        table = parse_toml(text)
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from error
    table.setdefault("name", Path(path).stem)
    study = study_from_dict(table)
    included = [
        Path(value)
        for settings in _tables_with_programs(study)
        for value in _texts(settings.get("data"))
        if value.endswith(".toml")
    ]
    file = base_file(table.get("base"), " in [base]")
    if file is None:
        study = replace(study, text=text)  # A text that names a file would change with that file.
    else:
        included += file_and_bases(file)
    if study.samples is not None and "file" in study.samples.table:
        included.append(Path(study.samples.table["file"]))
    check_own(programs_of(study), [Path(path), *included], study.slurm.commands)
    return study


def programs_of(study: Study) -> list[str]:
    """Return the programs that a study names, also in the descriptions of its data."""
    named = []
    for settings in _tables_with_programs(study):
        data = [described(value, {})[0] for value in _texts(settings.get("data"))]
        named += programs({**settings, "data": data})
    return named


def _tables_with_programs(study: Study) -> list[Mapping[str, Any]]:
    rows = study.sample_rows
    columns = {key: [row[key] for row in rows] for key in PROGRAM_KEYS if key in rows[0]}
    # Each value once, in order: a column has thousands of the same.
    samples = {key: list(dict.fromkeys(map(str, values))) for key, values in columns.items()}
    space = {key: entry.ends() for key, entry in study.space.items()}
    return [study.base, study.grid, *study.cases, samples, space]


def _texts(value: Any) -> list[str]:
    return [
        text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)
    ]


def study_from_dict(table: Mapping[str, Any]) -> Study:
    """Return the study in a mapping with the keys of a study file; check all settings."""
    for key in table:
        if key in TOP:
            continue
        if key in KEYS:
            raise ValueError(
                f"{key} is a key of a run: put it into [base]. A file without [base] is a run: "
                "start it with tfunet train FILE."
            )
        if key in GONE:
            raise ValueError(unknown_key(key, " in the study"))
        raise ValueError(
            f"Unknown key {key!r} in the study.{near_match(key, TOP)} Known: {', '.join(TOP)}. "
            "Settings of a run go into [base]."
        )
    search, space = read_search(table.get("search")) or (None, {})
    study = Study(
        name=convert("name", str, table.get("name", "study")),
        repeats=convert("repeats", int, table.get("repeats", 1)),
        seed=convert("seed", int, table.get("seed", 0)),
        base=_base(table),
        grid={
            key: convert(f"{key} in [grid]", list[Any], value)
            for key, value in flat(convert("[grid]", TABLE, table.get("grid", {}))).items()
        },
        cases=tuple(flat(case) for case in _tables("case", table.get("case", []))),
        samples=read_samples(table.get("samples"), MOST_TRIALS),
        search=search,
        space=space,
        skips=tuple(_skip_rule(rule) for rule in _tables("skip", table.get("skip", []))),
        slurm=read_slurm(convert("[slurm]", TABLE, table.get("slurm", {}))),
    )
    file = base_file(table.get("base"), " in [base]")
    if file is not None:
        own = {*study.base, *study.varied, *study.space}
        study = replace(study, base={**beside(read_table(file), own), **study.base})
    return _checked(study)


def _base(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of [base], with the block [tournament] among them."""
    base = flat(convert("[base]", TABLE, table.get("base", {})))
    base.pop("file", None)
    block = convert("[tournament]", TABLE, table.get("tournament", {}))
    if block and any(key.startswith("tournament.") for key in base):
        raise ValueError("tournament is in [base] and in [tournament]. Give it in one of them.")
    return {**base, **flat({"tournament": block})}


def _skip_rule(table: Mapping[str, Any]) -> SkipRule:
    check_keys(table, kinds_of(SkipRule), "[[skip]]")
    if not table.get("when") or not table.get("reason"):
        raise ValueError('Each [[skip]] needs `when = {key = value}` and `reason = "..."`.')
    rule = read(SkipRule, table, "[[skip]]")
    when = flat(rule.when)
    for key in when:
        _check_key(key, " in a [[skip]] rule")
    return replace(rule, when=when)


def _tables(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"Write [[{name}]] with two brackets: it is a list of tables.")
    return value


def _refuse_double_settings(study: Study) -> None:
    in_cases = {key for case in study.cases for key in case}
    for key in study.grid:
        if key in study.base or key in in_cases:
            where = "[base]" if key in study.base else "[[case]]"
            raise ValueError(f"{key} is in [grid] and in {where}. Give it in one of them only.")
        if not study.grid[key]:
            raise ValueError(f"{key} in [grid] has no values.")
        if key == "seed":
            raise ValueError("Do not vary seed: `repeats = n` runs each cell with n seeds.")
    if "seed" in in_cases:
        raise ValueError(
            "Do not set seed in a [[case]]: give `repeats`, and the first seed in [base]."
        )
    for key in study.space:
        if key in study.base:
            raise ValueError(
                f"{key} is in [base] and in [search.space]. Give it in one of them only."
            )
        if key in ("seed", "elastic", "fold"):
            raise ValueError(f"Leave {key} out of [search.space]: it is no setting to search for.")
    if study.samples is None:
        return
    for key in study.samples.columns:
        tables = {"[base]": study.base, "[grid]": study.grid, "[[case]]": in_cases}
        for where, table in tables.items():
            if key in table:
                raise ValueError(
                    f"{key} is in {study.samples.source} and in {where}. Give it in one of them "
                    "only."
                )
        if key == "seed":
            raise ValueError(
                f"Leave seed out of {study.samples.source}: `repeats = n` runs each sample with n "
                "seeds."
            )


def _checked(study: Study) -> Study:
    """Check every setting alone, and convert it as the command line does."""
    base = {key: _check(key, value, " in [base]") for key, value in study.base.items()}
    grid = {
        key: [_check(key, value, " in [grid]") for value in values]
        for key, values in study.grid.items()
    }
    cases = tuple(
        {key: _check(key, value, f" in case {number}") for key, value in case.items()}
        for number, case in enumerate(study.cases, 1)
    )
    for key, entry in study.space.items():
        for value in entry.ends():
            _check(key, value, " in [search.space]")
    if study.search is not None and isinstance(base.get("metrics", ()), list | tuple):
        study.search.check_objective(base.get("metrics", ()))
    checked = replace(study, base=base, grid=grid, cases=cases, samples=_checked_samples(study))
    _check_tournaments(checked)
    return checked


def _checked_samples(study: Study) -> Samples | None:
    samples = study.samples
    if samples is None:
        return None
    checked: dict[tuple[str, str], Any] = {}
    rows = []
    for number, row in enumerate(samples.rows):
        settings = {}
        for key, value in row.items():
            at = key, repr(value)
            if at not in checked:
                where = f" in {samples.source}, {samples.place(number)}"
                checked[at] = _check(key, value, where)
            settings[key] = checked[at]
        rows.append(settings)
    samples = replace(samples, rows=tuple(rows))
    refuse_equal(samples)
    return samples


def _check_tournaments(study: Study) -> None:
    """Raise ValueError for a wrong tournament, which would otherwise be a cell that is skipped."""
    grid = {key: values for key, values in study.grid.items() if key.startswith("tournament.")}
    others = {**study.base, **{key: values[0] for key, values in study.grid.items()}}
    others |= study.sample_rows[0]
    most = 1
    for case in study.cases or ({},):
        for values in itertools.product(*grid.values()):
            settings = {**others, **case, **dict(zip(grid, values, strict=True))}
            tournament = read_tournament(nested(settings).get("tournament", {}))
            if tournament is not None:
                first_values(tournament, nested(settings))
            most = max(most, tournament.trainers if tournament else 1)
    if study.repeats * study.num_cells * most > MOST_TRIALS:
        raise ValueError(
            f"The study has {study.num_cells} cells with {study.repeats} repeats and up to {most} "
            f"trainers; allowed: at most {MOST_TRIALS} trials. Lower repeats or trainers."
        )


def _check(key: str, value: Any, where: str) -> Any:
    _check_key(key, where)
    option, _, entry = key.partition(".")
    if entry and option != "augmentation":
        return value
    try:
        if entry:
            RunConfig(augmentation={entry: value})
            return value
        converted = getattr(RunConfig(**{**_context(key, value), key: value}), key)
        if key == "backend":
            expand("backend", value, BACKENDS)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}{where}: {error}") from error
    # "none" stays a text: TOML has no None.
    return value if converted is None else converted


def _context(key: str, value: Any) -> dict[str, Any]:
    """Return what a setting needs beside it to be checked alone."""
    if key == "accumulation":  # It must divide the batch of a replica.
        return {"replica_batch": value}
    if key == "micro_batches":
        return {"replica_batch": value, "stages": 2}
    if key in ("schedule", "balance", "recompute", "batch_norm"):
        return {"stages": 1 + len(value) if isinstance(value, list) else 2}
    if key == "fold" and type(value) is int:  # It is one of so many parts.
        return {"folds": max(2, value + 1)}
    if key in SWAP_KEYS[1:]:
        return {"swap": "auto", "swap_host": "1GiB", "swap_disk": "."}
    return {}


def _check_key(key: str, where: str) -> None:
    option, dot, entry = key.partition(".")
    if dot and option in OPTIONS and entry:
        return
    if dot or key not in KEYS:
        if not dot:
            raise ValueError(unknown_key(key, where))
        advice = near_match(option, OPTIONS) or f" Known: {', '.join(OPTIONS)}."
        raise ValueError(f"Unknown key {key!r}{where}.{advice}")
