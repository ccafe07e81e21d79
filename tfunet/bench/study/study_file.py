"""Reads a study file: base settings, what is varied, repeats, and which cells to skip."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfunet.arguments import from_dict
from tfunet.backend import BACKENDS
from tfunet.bench.study.hopeless import HopelessRule, read_rule
from tfunet.bench.study.slurm_settings import Slurm, read_slurm
from tfunet.config.keys import KEYS, OPTIONS, flat
from tfunet.config.refs import expand, near_match
from tfunet.config.run import RunConfig
from tfunet.config.trust import check_own, programs
from tfunet.data.description_file import described
from tfunet.files.printable import is_printable
from tfunet.files.typed import parse_toml, toml_text

MOST_TRIALS = 100_000
TOP = ("name", "repeats", "seed", "base", "grid", "case", "skip", "hopeless", "slurm")
Scalar = (str, int, float, bool)


@dataclass(frozen=True, kw_only=True)
class SkipRule:
    """Leaves out the cells whose settings match all of `when`."""

    when: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is compared: every case with every combination of the grid, `repeats` times.

    Args:
        repeats: Runs of every cell; the seed of repeat k is that of the base settings plus k - 1.
        grid: Values of each setting that varies. A setting is a key of RunConfig, or dotted for an
            entry of a table: "model_options.filters".
        hopeless: When the remaining repeats of a cell are not run; None to run all.
        text: Text of the study file; empty for a study made in Python.
    """

    name: str
    repeats: int = 1
    seed: int = 0
    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    cases: tuple[Mapping[str, Any], ...] = ()
    skips: tuple[SkipRule, ...] = ()
    hopeless: HopelessRule | None = None
    slurm: Slurm = field(default_factory=Slurm)
    text: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}.")
        num_cells = max(1, len(self.cases)) * math.prod(map(len, self.grid.values()))
        if self.repeats * num_cells > MOST_TRIALS:
            raise ValueError(
                f"The study has {self.repeats * num_cells} trials ({num_cells} cells, "
                f"{self.repeats} repeats); allowed: at most {MOST_TRIALS}. Lower repeats, or split "
                "the grid into several studies."
            )
        if any("elastic" in settings for settings in (self.base, self.grid, *self.cases)):
            raise ValueError(
                "elastic cannot be set in a study: a trial that lost a process would no longer "
                "measure its cell. Leave it out: such a trial is run again."
            )
        is_name = bool(self.name) and not set(self.name) & set("/\\") and self.name[0] != "."
        if not is_name or not is_printable(self.name):
            raise ValueError(
                "name must be the name of a folder, without / and control characters, got "
                f"{self.name!r}."
            )
        _refuse_double_settings(self)


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
    study = replace(study_from_dict(table), text=text)
    descriptions = [
        Path(value)
        for settings in (study.base, study.grid, *study.cases)
        for value in _texts(settings.get("data"))
        if value.endswith(".toml")
    ]
    check_own(programs_of(study), [Path(path), *descriptions])
    return study


def programs_of(study: Study) -> list[str]:
    """Return the programs that a study names, also in the descriptions of its data."""
    named = []
    for settings in (study.base, study.grid, *study.cases):
        data = [described(value, {})[0] for value in _texts(settings.get("data"))]
        named += programs({**settings, "data": data})
    return named


def _texts(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def study_from_dict(table: Mapping[str, Any]) -> Study:
    """Return the study in a mapping with the keys of a study file; check all settings."""
    for key in table:
        if key not in TOP:
            raise ValueError(
                f"Unknown key {key!r} in the study.{near_match(key, (*TOP, *KEYS))} "
                f"Known: {', '.join(TOP)}. Settings of a run go into [base]."
            )
    study = Study(
        name=_typed("name", table.get("name", "study"), str),
        repeats=_typed("repeats", table.get("repeats", 1), int),
        seed=_typed("seed", table.get("seed", 0), int),
        base=flat(_typed("[base]", table.get("base", {}), dict)),
        grid={
            key: _typed(f"{key} in [grid]", value, list)
            for key, value in flat(_typed("[grid]", table.get("grid", {}), dict)).items()
        },
        cases=tuple(flat(case) for case in _tables("case", table.get("case", []))),
        skips=tuple(_skip_rule(rule) for rule in _tables("skip", table.get("skip", []))),
        hopeless=read_rule(table.get("hopeless")),
        slurm=read_slurm(_typed("[slurm]", table.get("slurm", {}), dict)),
    )
    return _checked(study)


def _skip_rule(table: Mapping[str, Any]) -> SkipRule:
    for key in table:
        if key not in ("when", "reason"):
            raise ValueError(
                f"Unknown key {key!r} in [[skip]].{near_match(key, ('when', 'reason'))} "
                "Known: when, reason."
            )
    if not table.get("when") or not table.get("reason"):
        raise ValueError('Each [[skip]] needs `when = {key = value}` and `reason = "..."`.')
    when = flat(_typed("when in [[skip]]", table["when"], dict))
    for key in when:
        _check_key(key, " in a [[skip]] rule")
    return SkipRule(when=when, reason=_typed("reason in [[skip]]", table["reason"], str))


def _tables(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"Write [[{name}]] with two brackets: it is a list of tables.")
    return value


def _typed(label: str, value: Any, kind: type) -> Any:
    # In Python a bool is an int, but `repeats = true` is a mistake.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {str: "text", int: "a whole number", list: "a list", dict: "a table"}
        raise ValueError(f"{label} must be {words[kind]}, got {value!r}.")
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


def _checked(study: Study) -> Study:
    """Check every setting alone, and convert it as the command line does."""
    known = _known_types(study)
    base = {key: _check(key, value, " in [base]", known) for key, value in study.base.items()}
    grid = {
        key: [_check(key, value, " in [grid]", known) for value in values]
        for key, values in study.grid.items()
    }
    cases = tuple(
        {key: _check(key, value, f" in case {number}", known) for key, value in case.items()}
        for number, case in enumerate(study.cases, 1)
    )
    return replace(study, base=base, grid=grid, cases=cases)


def _known_types(study: Study) -> set[tuple[str, type]]:
    """Return pairs of (key, type) that are known to be right.

    A call of the parser takes some milliseconds, and a grid can have hundreds of values. The parser
    only looks at the type of a scalar, so one call with one value for every key is enough. If that
    fails, each setting is checked alone to name the wrong one.
    """
    sample = {**study.base}
    for case in study.cases:
        sample.update(case)
    sample.update({key: values[0] for key, values in study.grid.items()})
    scalars = {key: value for key, value in sample.items() if type(value) in Scalar and key in KEYS}
    try:
        config = from_dict(scalars)
    except ValueError:
        return set()
    return {
        (key, type(value))
        for key, value in scalars.items()
        if type(getattr(config, key)) is type(value)
    }


def _context(key: str, value: Any) -> dict[str, Any]:
    """Return other keys with which a key can be checked alone."""
    if key == "accumulation":  # Must divide the batch of a replica, as micro_batches.
        return {"replica_batch": value}
    if key == "micro_batches":
        return {"replica_batch": value, "stages": 2}
    if key in ("schedule", "balance"):
        return {"stages": 1 + len(value) if isinstance(value, list) else 2}
    return {}


def _check(key: str, value: Any, where: str, known: set[tuple[str, type]]) -> Any:
    _check_key(key, where)
    option, _, entry = key.partition(".")
    if entry and option != "augmentation":
        return value
    context = _context(key, value)
    try:
        if entry:
            RunConfig(augmentation={entry: value})
        elif (key, type(value)) not in known:
            converted = getattr(from_dict({**context, key: value}), key)
            if type(converted) is type(value) and type(value) in Scalar:
                known.add((key, type(value)))
            # "none" stays a text: TOML has no None.
            value = value if converted is None else converted
        else:
            RunConfig(**{**context, key: value})
        if key == "backend":
            expand("backend", value, BACKENDS)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key}{where}: {_first_lines(error)}") from error
    return value


def _check_key(key: str, where: str) -> None:
    option, dot, entry = key.partition(".")
    if dot and option in OPTIONS and entry:
        return
    if dot or key not in KEYS:
        known: Iterable[str] = OPTIONS if dot else KEYS
        advice = near_match(option, known) or f" Known: {', '.join(known)}."
        raise ValueError(f"Unknown key {key!r}{where}.{advice}")


def _first_lines(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())
