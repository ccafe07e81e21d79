"""The samples of a study: settings that vary together, from a file or drawn from a space."""

import csv
import itertools
import math
import random
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfunet.bench.study.space import Space, read_space
from tfunet.config.words import near_match
from tfunet.files.typed import DAMAGED, parse_toml, read_record

METHODS = ("grid", "random", "latin_hypercube", "sobol")
FROM_FILE = ("file", "columns")
DRAWN = ("method", "number", "seed", "space")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Kinds of NumPy: booleans, whole numbers, numbers, texts.
KINDS = "biufU"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of a study.

    Args:
        table: The table [samples] of the study.
        rows: The settings of each sample.
        source: What the rows come from, for messages: a file, or "[samples]".
        lines: Line of each row in a CSV file; empty for other samples.
    """

    table: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)
    source: str = "[samples]"
    lines: tuple[int, ...] = field(default=(), repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The settings that vary."""
        return tuple(self.rows[0])

    def place(self, number: int) -> str:
        """Return where a row is in its source: "line 3", "sample 2"."""
        return f"line {self.lines[number]}" if self.lines else f"sample {number + 1}"

    @property
    def note(self) -> str:
        """What weakens the choice of samples; empty if nothing does."""
        number = self.table.get("number", 1)
        if self.table.get("method") != "sobol" or number & (number - 1) == 0:
            return ""
        return (
            f"Sobol's points are balanced only if their number is a power of two: {number} are "
            f"not; {2 ** (number.bit_length() - 1)} or {2 ** number.bit_length()} are."
        )


def read_samples(table: Any, most: int) -> Samples | None:
    """Return the table [samples] of a study, with at most `most` rows; None without one."""
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise ValueError(f"[samples] must be a table, got {table!r}.")
    known = FROM_FILE if "file" in table else DRAWN
    for key in table:
        if key not in known:
            raise ValueError(
                f"Unknown key {key!r} in [samples].{near_match(key, known)} Give file (and columns "
                f"for a .npy), or {', '.join(DRAWN)}."
            )
    if "file" in table:
        return _from_file(table, most)
    return Samples(table=dict(table), rows=tuple(_drawn(table, most)))


def refuse_equal(samples: Samples) -> None:
    """Raise ValueError if two samples are the same."""
    seen: dict[str, int] = {}
    for number, row in enumerate(samples.rows):
        if (before := seen.setdefault(repr(sorted(row.items())), number)) != number:
            advice = "Remove one; repeats = n runs every sample n times."
            if samples.table.get("method"):
                advice = "Widen the space, or lower number."
            raise ValueError(
                f"{samples.source}: {samples.place(before)} and {samples.place(number)} are the "
                f"same sample. {advice}"
            )


def _drawn(table: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    method = table.get("method")
    if method not in METHODS:
        raise ValueError(
            f"method in [samples] must be one of {', '.join(METHODS)}, got {method!r}. Or give "
            'file = "designs.csv".'
        )
    space = read_space(table.get("space"), "[samples.space]")
    if method == "grid":
        if given := {"number", "seed"} & table.keys():
            raise ValueError(f"A grid has all combinations: leave out {', '.join(sorted(given))}.")
        try:
            values = [entry.every() for entry in space.values()]
        except ValueError as error:
            raise ValueError(f"[samples.space]: {error}.") from error
        _check_number(math.prod(map(len, values)), most)
        shares: Iterable[Sequence[Any]] = itertools.product(*values)
        return (dict(zip(space, row, strict=True)) for row in shares)
    for name in ("number", "seed"):
        value = table.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} in [samples] must be a whole number, got {value!r}.")
    number = table.get("number", 0)
    _check_number(number, most)
    points = _points(method, len(space), number, table.get("seed", 0))
    return (_sample(space, shares) for shares in points)


def _check_number(number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise ValueError(
            f"A study has 1 to {most} samples, got {number}: give [samples] a number in this range."
        )


def _sample(space: Space, shares: Sequence[float]) -> dict[str, Any]:
    return {
        key: entry.at(float(share))
        for (key, entry), share in zip(space.items(), shares, strict=True)
    }


def _points(method: str, dimensions: int, number: int, seed: int) -> Sequence[Sequence[float]]:
    """Return points in the unit cube."""
    if method == "random":
        dice = random.Random(seed)
        return [[dice.random() for _ in range(dimensions)] for _ in range(number)]
    try:
        from scipy.stats import qmc
    except ModuleNotFoundError as error:
        raise ValueError(
            f"method = {method!r} in [samples] needs scipy, which is not installed. Install it "
            "with: pip install 'tfunet[ensembles]'. Without it: grid, random, or a file."
        ) from error
    engine = {"latin_hypercube": qmc.LatinHypercube, "sobol": qmc.Sobol}[method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Samples.note says it.
        return engine(dimensions, rng=seed).random(number)


def _from_file(table: Mapping[str, Any], most: int) -> Samples:
    name, columns = table["file"], table.get("columns")
    if not isinstance(name, str) or Path(name).suffix not in (".csv", ".npy"):
        raise ValueError(
            f"file in [samples] must be the path of a .csv or .npy file, got {name!r}."
        )
    if not Path(name).is_file():
        raise ValueError(f"There is no file of samples {name!r} (in {Path.cwd()}).")
    if columns is not None and not (
        isinstance(columns, list) and columns and all(isinstance(entry, str) for entry in columns)
    ):
        raise ValueError(f"columns in [samples] must be a list of settings, got {columns!r}.")
    if name.endswith(".npy"):
        header, values, lines = _read_npy(name, columns, most)
    elif columns is None:
        header, values, lines = _read_csv(name)
    else:
        raise ValueError(f"Leave out columns in [samples]: the first line of {name} has them.")
    for column in header:
        if not column or header.count(column) > 1:
            fault = f"two columns {column!r}" if column else "a column without a name"
            raise ValueError(f"{name} has {fault}. Each column is one setting.")
    if not values:
        raise ValueError(f"{name} has no samples. A file of samples has one in each row.")
    _check_number(len(values), most)
    typed = [_whole(column) for column in zip(*values, strict=True)]
    rows = tuple(dict(zip(header, row, strict=True)) for row in zip(*typed, strict=True))
    samples = Samples(table=dict(table), rows=rows, source=name, lines=tuple(lines))
    for number, row in enumerate(rows):
        for column, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(
                    f"{name}, {samples.place(number)}: {column} is {value}. Every sample needs a "
                    "finite value of every setting."
                )
    return samples


def _read_csv(name: str) -> tuple[list[str], list[Sequence[Any]], list[int]]:
    """Return header, rows and their lines."""
    text = (read_record(Path(name)) or "").removeprefix("\ufeff")
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    rows: list[Sequence[Any]] = []
    lines: list[int] = []
    try:
        header = [column.strip() for column in next(reader, [])]
        for texts in reader:
            if not texts:
                continue
            if len(texts) != len(header):
                raise ValueError(
                    f"{name}, line {reader.line_num}: {len(texts)} values, but the first line "
                    f"names {len(header)} settings. Separate them by commas."
                )
            place = f"{name}, line {reader.line_num}"
            rows.append(
                [_value(text.strip(), place, at) for text, at in zip(texts, header, strict=True)]
            )
            lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(f"{name}, line {reader.line_num}: {error}.") from error
    if not header:
        raise ValueError(f"{name} is empty. Its first line names the settings.")
    return header, rows, lines


def _value(text: str, place: str, column: str) -> Any:
    if not text:
        raise ValueError(
            f"{place}: {column} is empty. Every sample needs a value of every setting."
        )
    if NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if text.lower() in ("nan", "inf", "+inf", "-inf", "infinity", "-infinity"):
        return float(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[0] in "[{":
        try:
            return parse_toml(f"value = {text}")["value"]
        except ValueError as error:
            raise ValueError(f"{place}: {column} is no TOML value: {error}.") from error
    return text


def _read_npy(
    name: str, columns: list[str] | None, most: int
) -> tuple[list[str], list[Sequence[Any]], list[int]]:
    import numpy as np

    try:
        # Mapped: a small file that claims a large array is shorter than it.
        array = np.load(name, mmap_mode="r", allow_pickle=False)
    except (OSError, *DAMAGED) as error:
        raise ValueError(
            f"{name} is not an array of numbers or texts that NumPy can read: {error}."
        ) from error
    names = array.dtype.names
    kinds = [array.dtype] if names is None else [array.dtype[field] for field in names]
    if any(kind.kind not in KINDS or kind.shape for kind in kinds):
        raise ValueError(
            f"{name} has the type {array.dtype}. Samples are numbers, texts, true or false."
        )
    if names is not None and columns is not None:
        raise ValueError(f"Leave out columns in [samples]: {name} names its columns itself.")
    if names is None and columns is None:
        raise ValueError(
            f"{name} does not name its columns. Add them to [samples], as columns = "
            '["learning_rate", "replica_batch"], or save an array with named fields.'
        )
    if array.ndim != (1 if names else 2) or (columns and array.shape[1] != len(columns)):
        wanted = f"(samples, {len(columns)})" if columns else "(samples,)"
        raise ValueError(f"{name} has the shape {array.shape}; expected: {wanted}.")
    if len(array):
        _check_number(len(array), most)
    return list(names or columns or ()), [tuple(row) for row in array.tolist()], []


def _whole(column: Sequence[Any]) -> Sequence[Any]:
    """Return whole numbers as such: 8.0 is the 8 of a file in which all numbers are floats."""
    if all(isinstance(value, float) and value.is_integer() for value in column):
        return [int(value) for value in column]
    return column
