"""Compares two runs: are they the same in settings, samples, losses, weights and scores?"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tfunet import exit_codes
from tfunet.bench.records.run_tables import read_steps
from tfunet.bench.records.trial_result import parse_result
from tfunet.config.keys import flat, show
from tfunet.files.table import read_rows
from tfunet.files.typed import FieldError, RecordError, read_json
from tfunet.record import RunFolder

# Losses of two devices differ by rounding, which a few steps let grow.
ROUNDING = 1e-4
# Rounding gives a pixel another label now and then.
SCORE_ROUNDING = 1e-2
SAME, ROUNDED, OTHER = "the same to the last bit", "the same but for rounding", "different"


@final
@dataclass(frozen=True, kw_only=True)
class RunsCompared:
    """Two runs compared.

    Args:
        rows: What differs, with the texts of both: (what, first, second).
        notes: What is the same, and from where on something differs.
        verdict: One of SAME, ROUNDED and OTHER.
    """

    folders: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    verdict: str

    @property
    def exit_code(self) -> int:
        """DIFFERENT if the runs did not compute the same."""
        return exit_codes.DIFFERENT if self.verdict == OTHER else exit_codes.OK


def are_runs(*folders: Path) -> bool:
    """Return whether folders are those of single runs."""
    return all((folder / "result.json").is_file() for folder in folders)


def compare_runs(first: Path, second: Path) -> RunsCompared:
    """Compare two finished runs. Raises RecordError for a record that cannot be read."""
    folders = (first, second)
    rows = [*_settings(folders), *_environment(folders)]
    epochs = [read_rows(folder / "epochs.csv") for folder in folders]
    samples = _note("samples", "samples_hash", epochs)
    weights = _note("weights", "weights_hash", epochs)
    words, largest = _losses(folders)
    scores = list(_scores(folders))
    apart = any(_is_apart(*texts) for _, *texts in scores)
    if largest == 0 and not scores and _same(samples) and _same(weights):
        verdict = SAME
    else:
        is_rounded = largest <= ROUNDING and _same(samples) and not apart
        verdict = ROUNDED if is_rounded else OTHER
    return RunsCompared(
        folders=(str(first), str(second)),
        rows=(*rows, *scores),
        notes=(samples, words, weights),
        verdict=verdict,
    )


def _settings(folders: tuple[Path, Path]) -> Iterator[tuple[str, str, str]]:
    ours, theirs = (_config(folder) for folder in folders)
    yield from _differences(ours, theirs)


def _config(folder: Path) -> dict[str, Any]:
    config = RunFolder(folder).read_config()
    return {} if config is None else flat(vars(config))


def _environment(folders: tuple[Path, Path]) -> Iterator[tuple[str, str, str]]:
    tables = [read_json(folder / "env.json", dict[str, Any]) or {} for folder in folders]
    kept = [
        {**(table.get("packages") or {}), **{key: table.get(key) for key in ("cpu", "gpus")}}
        for table in tables
    ]
    yield from _differences(*kept)


def _differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for key in dict.fromkeys([*ours, *theirs]):
        if ours.get(key) != theirs.get(key):
            yield key, show(ours.get(key)), show(theirs.get(key))


def _note(what: str, column: str, epochs: list[list[dict[str, str]]]) -> str:
    """Return up to which epoch the hashes of a column are the same."""
    pairs = list(zip(*epochs, strict=False))
    if not pairs:
        return f"{what}: no epoch is recorded"
    first = next(
        (at for at, pair in enumerate(pairs, 1) if len({row.get(column) for row in pair}) > 1), None
    )
    if first is not None:
        return f"{what}: not the same from epoch {first} on"
    same = f"{what}: the same in {len(pairs)} epochs"
    lengths = sorted(map(len, epochs))
    return same if lengths[0] == lengths[1] else f"{what}: {lengths[0]} and {lengths[1]} epochs"


def _same(note: str) -> bool:
    return "the same in" in note


def _losses(folders: tuple[Path, Path]) -> tuple[str, float]:
    """Return where the losses of steps differ, in words, and their largest relative difference."""
    ours, theirs = (read_steps(folder)["loss"] for folder in folders)
    if len(ours) != len(theirs):
        return f"losses: {len(ours)} and {len(theirs)} steps", math.inf
    apart = [
        abs(a - b) / max(abs(a), abs(b)) if a != b and not (a != a and b != b) else 0.0
        for a, b in zip(ours, theirs, strict=True)
    ]
    apart = [math.inf if math.isnan(value) else value for value in apart]
    largest = max(apart, default=0.0)
    if not largest:
        return f"losses: the same in {len(ours)} steps", 0.0
    first = next(at for at, value in enumerate(apart, 1) if value)
    return f"losses: different from step {first} on, by {largest:.2g} at most", largest


def _scores(folders: tuple[Path, Path]) -> Iterator[tuple[str, str, str]]:
    ours, theirs = (_numbers(folder) for folder in folders)
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            yield name, _text(ours.get(name)), _text(theirs.get(name))


def _numbers(folder: Path) -> dict[str, float | None]:
    try:
        result = parse_result(RunFolder(folder).read_result() or {})
    except FieldError as error:
        raise RecordError(folder / "result.json", error) from error
    numbers: dict[str, float | None] = {"loss": result.loss, "val_loss": result.val_loss}
    for kind in ("dice", "iou", "dataset_dice", "dataset_iou", "mae"):
        numbers |= {f"{kind}_{name}": value for name, value in getattr(result, kind).items()}
    return {**numbers, **result.metrics}


def _is_apart(first: str, second: str) -> bool:
    if "-" in (first, second):
        return True
    ours, theirs = float(first), float(second)
    return not math.isclose(ours, theirs, rel_tol=SCORE_ROUNDING, abs_tol=SCORE_ROUNDING)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"
