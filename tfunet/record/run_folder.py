"""The folder of a run, and the files in it. No TensorFlow.

A file is either complete or missing: it is written under a temporary name and then renamed. A
table grows by complete lines.
"""

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from tfunet.config.kept_programs import FOLDER, copy_names, hashes, named_programs
from tfunet.config.run import SCHEMA_VERSION, RunConfig, config_of_record
from tfunet.config.trust import check_signed, programs, signature
from tfunet.files.atomic import replacing, write_atomic, writing
from tfunet.files.regular import open_regular
from tfunet.files.table import Table, csv_line
from tfunet.files.typed import (
    FieldError,
    RecordError,
    amount,
    check_fields,
    finite,
    read_json,
    read_record,
    typed_rows,
    whole,
)
from tfunet.record import lock
from tfunet.record.columns import (
    CASE_TABLES,
    DATA,
    MODEL,
    MORE_DATA,
    RESULT,
    ROUND_COLUMNS,
    SPAN_COLUMNS,
    SPLIT,
    STEP_COLUMNS,
    WEIGHTS,
    epoch_columns,
)
from tfunet.record.settings import (
    check_more_epochs,
    differing_keys,
    keys_that_may_change,
    other_settings,
)

SIGNATURE = ".signature"  # Signs config.json, if it names programs.


@final
@dataclass(frozen=True)
class RunFolder:
    """The files of one run. Methods raise WriteError for a file that cannot be written."""

    path: Path

    def create(self) -> None:
        """Create the folder and its parents."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def create_inside(self) -> None:
        """Create this folder of a record, which may be received: not where a link stands."""
        with writing(self.path):
            if self.path.is_symlink():
                raise OSError(errno.EEXIST, "it is a symbolic link", str(self.path))
        self.create()

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other runs out of this folder.

        Removes, before and after, the temporary files of processes that were killed while writing.

        Raises InUseError, which names the process, if another run has the folder.
        """
        return lock.locked(self.path)

    def is_locked(self) -> bool:
        """Whether a run is using this folder."""
        return lock.is_locked(self.path)

    def begin(self, config: RunConfig) -> None:
        """Write config.json for a run that starts or goes on.

        A finished run goes on if `config` has more epochs. Its result is kept under another name.

        Raises ValueError if the folder holds a finished run, or one with other settings.
        """
        if self.is_done():
            self._add_epochs(config)
        else:
            self.write_config(config)
        self.clear_failure()

    def has_done(self, config: RunConfig) -> bool:
        """Whether the folder holds a finished run of exactly these settings."""
        before = self.read_config() if self.is_done() else None
        return before is not None and not differing_keys(config, before)

    def _add_epochs(self, config: RunConfig) -> None:
        """Make a finished run an unfinished one of more epochs; ValueError for another change."""
        before = self.read_config() or config
        allowed = {"epochs", "steps", *keys_that_may_change(config)}
        if not set(differing_keys(config, before)) <= allowed:
            raise ValueError(other_settings(self.path, config, before))
        check_more_epochs(self.path, config, before)
        self._put_config(config)
        kept = self.path / f"result-{before.epochs}-epochs.json"
        with writing(kept):
            (self.path / "result.json").rename(kept)

    def write_config(self, config: RunConfig) -> None:
        """Write config.json.

        An unfinished run may go on with other values of the keys in MAY_CHANGE. One that ended
        before its first step, as with a wrong option, may begin with any.

        Raises ValueError if the folder holds a run with other settings.
        """
        before = self.read_config() or config
        differing = set(differing_keys(config, before))
        may_change = not self.is_done() and (
            differing <= keys_that_may_change(config) or not self._has_begun()
        )
        if differing and not may_change:
            raise ValueError(other_settings(self.path, config, before))
        self._put_config(config)

    def has_checkpoint(self) -> bool:
        """Whether a run can go on from what is here."""
        return (self.path / "checkpoint.npz").is_file()

    def _has_begun(self) -> bool:
        """Whether a step was taken, unless the run left no word of how it ended."""
        names = ("checkpoint.npz", "steps.csv", "epochs.csv")
        ended = (self.path / "failure.json").is_file()
        return not ended or any((self.path / name).is_file() for name in names)

    def _put_config(self, config: RunConfig) -> None:
        text = config.to_json() + "\n"
        write_atomic(self.path / "config.json", text)
        if named := programs(vars(config)):
            sign(self.path, text, named)

    def read_config(self) -> RunConfig | None:
        """Return config.json; None if it is missing. Raises RecordError."""
        path = self.path / "config.json"
        table = read_json(path, dict[str, Any])
        try:
            return None if table is None else config_of_record(table)
        except FieldError as error:
            raise RecordError(path, error) from error

    def check_programs(self, config: RunConfig, keys: Iterable[str]) -> None:
        """Raise ValueError if keys of config.json name programs, and another user may have done so.

        Args:
            config: What the file holds.
            keys: Keys whose programs are about to run.
        """
        path = self.path / "config.json"
        if programs({key: value for key, value in vars(config).items() if key in keys}):
            check_signed(
                path,
                read_record(path) or "",
                programs(vars(config)),
                read_record(self.path / SIGNATURE),
            )

    def keep_programs(self, config: RunConfig) -> list[str]:
        """Keep copies of the programs that a configuration names, and hashes in programs.json.

        A run that goes on keeps those that it began with. Returns a line for each that is another
        now.
        """
        contents = named_programs(vars(config))
        found = hashes(vars(config), contents)
        kept: dict[str, str] = {}
        if self.has_checkpoint():
            with contextlib.suppress(RecordError):
                kept = read_json(self.path / "programs.json", dict[str, str]) or {}
        names = copy_names({**kept, **contents})
        for file in contents:
            if file in kept:
                continue
            with writing(self.path / FOLDER):
                (self.path / FOLDER).mkdir(exist_ok=True)
            write_atomic(self.path / FOLDER / names[file], contents[file])
        table = {**kept, **found, **kept}  # The order of the first attempt names the copies.
        if table or (self.path / "programs.json").exists():
            self._write_json("programs.json", table)
        # The weights of a run that goes on are those of its checkpoint.
        return [
            f"{file} is another than the one that this run began with"
            f"{f' (kept: {self.path / FOLDER / names[file]})' if file in contents else ''}. Start "
            "a new run, or restore the file."
            for file in kept
            if found.get(file, kept[file]) != kept[file] and file != config.initial_weights
        ]

    def write_env(self, environment: Mapping[str, Any]) -> None:
        """Write env.json."""
        self._write_json("env.json", environment)

    def write_split(self, split: Mapping[str, Any]) -> None:
        """Write split.json: the case ids of both sides, and the cases that are left out."""
        self._write_json("split.json", split)

    def read_split(self) -> dict[str, Any] | None:
        """Return split.json; None if it is missing. Raises RecordError."""
        return self._read_json("split.json", SPLIT)

    def write_data(self, data: Mapping[str, Any]) -> None:
        """Write data.json: facts about the training data that `tfunet predict` needs."""
        self._write_json("data.json", data)

    def read_data(self) -> dict[str, Any] | None:
        """Return data.json; None if it is missing. Raises RecordError."""
        return self._read_json("data.json", {**DATA, **MORE_DATA})

    def steps_table(self, *, last: int = 0) -> Table:
        """Open steps.csv, keeping the rows up to step `last` of an earlier attempt."""
        return Table(self.path / "steps.csv", STEP_COLUMNS, last=last)

    def rounds_table(self, hyperparameters: Sequence[str] = (), *, last: int = 0) -> Table:
        """Open rounds.csv, keeping the rows up to round `last` of an earlier attempt.

        `hyperparameters` names those that change beside the learning rate: a column each.
        """
        return Table(self.path / "rounds.csv", (*ROUND_COLUMNS, *hyperparameters), last=last)

    def write_tournament(self, facts: Mapping[str, Any]) -> None:
        """Write tournament.json: which trainer of a population this is, and its cases."""
        self._write_json("tournament.json", facts)

    def spans_table(self, process_index: int) -> Table:
        """Open the spans of a process, keeping those of earlier attempts."""
        self.create()  # The folder may be missing on hosts other than the chief's.
        path = self.path / f"spans-{process_index}.csv"
        # A run may go on with more processes than it had.
        return Table(path, SPAN_COLUMNS, last=sys.maxsize if path.exists() else 0)

    def read_spans(self) -> dict[int, list[dict[str, Any]]]:
        """Return the spans of each process that wrote some, by process index.

        Raises RecordError.
        """
        paths = {
            int(match[1]): path
            for path in self.path.glob("spans-*.csv")
            if (match := re.fullmatch(r"spans-([0-9]{1,9})\.csv", path.name))
        }
        kinds: dict[str, Callable[[str], Any]]
        kinds = {"step": whole, "name": str, "begin_seconds": finite, "seconds": amount}
        return {process: list(typed_rows(path, kinds)) for process, path in sorted(paths.items())}

    def profile_path(self, process_index: int) -> Path:
        """Return the folder for the profiles of a process."""
        return self.path / "profile" / f"process-{process_index}"

    def epochs_table(
        self,
        regions: Iterable[str],
        targets: Iterable[str] = (),
        metrics: Iterable[str] = (),
        *,
        last: int = 0,
    ) -> Table:
        """Open epochs.csv, keeping the rows up to epoch `last` of an earlier attempt."""
        return Table(self.path / "epochs.csv", epoch_columns(regions, targets, metrics), last=last)

    def write_cases(
        self,
        rows: Iterable[Mapping[str, object]],
        table: str = "cases",
        metrics: Sequence[str] = (),
    ) -> None:
        """Replace a table of CASE_TABLES, with columns for metrics, by rows of an evaluation."""
        columns = (*CASE_TABLES[table], *metrics)
        lines = [csv_line([row[column] for column in columns]) for row in rows]
        write_atomic(self.path / f"{table}.csv", csv_line(columns) + "".join(lines))

    def replacing(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Return `tfunet.files.atomic.replacing` for a file of this folder."""
        return replacing(self.path / name)

    def log_path(self, process_index: int) -> Path:
        """Return the file for the output of a process."""
        return self.path / f"log-{process_index}.txt"

    def open_log(self, process_index: int) -> BinaryIO:
        """Open the log of a process, unbuffered, to append to it."""
        path = self.log_path(process_index)
        with writing(path):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            return os.fdopen(open_regular(path, flags), "ab", buffering=0)

    def write_plans(
        self,
        plans: Sequence[Mapping[str, Any]],
        measured: Mapping[str, Any] | None = None,
        *,
        evaluation_plans: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write swap.json: what large-model support did with each tensor.

        Args:
            plans: One plan for each traced step.
            measured: What a step took, beside what the plans predict
                (`tfunet.swap.report.measured`).
            evaluation_plans: The plans of evaluations.
        """
        table: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "plans": list(plans)}
        if evaluation_plans:
            table["evaluation_plans"] = list(evaluation_plans)
        if measured is not None:
            table["measured"] = measured
        self._write_json("swap.json", table)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write result.json, which marks the run as done, and remove an earlier failure.json."""
        self._write_json("result.json", {"schema_version": SCHEMA_VERSION, **result})
        self.clear_failure()

    def read_result(self) -> dict[str, Any] | None:
        """Return result.json; None if the run is not done. Raises RecordError."""
        return self._read_json("result.json", RESULT)

    def model_path(self) -> Path | None:
        """Return the file of the trained model or of its weights; None if it is missing."""
        paths = [self.path / name for name in (MODEL, WEIGHTS)]
        return next((path for path in paths if path.is_file()), None)

    def is_done(self) -> bool:
        """Whether the run has a result."""
        return (self.path / "result.json").is_file()

    def write_predicted(self, predicted: Mapping[str, Any]) -> None:
        """Write predicted.json: the layout that was chosen for a run, and what it should take."""
        self._write_json("predicted.json", predicted)

    def read_predicted(self) -> dict[str, Any] | None:
        """Return predicted.json; None if nobody chose a layout. Raises RecordError."""
        return self._read_json("predicted.json", {})

    def write_failure(self, reason: str, exit_code: int, process: int | None = None) -> None:
        """Write failure.json; `process` is the index of the process at fault, if it is known."""
        self._write_json(
            "failure.json", {"reason": reason, "exit_code": exit_code, "process": process}
        )

    def read_failure(self) -> dict[str, Any] | None:
        """Return failure.json; None if it is missing. Raises RecordError."""
        return self._read_json("failure.json", {})

    def clear_failure(self) -> None:
        """Remove failure.json, if it is there."""
        path = self.path / "failure.json"
        with writing(path):
            path.unlink(missing_ok=True)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_atomic(self.path / name, json.dumps(value, indent=1, default=_plain) + "\n")

    def _read_json(self, name: str, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
        table = read_json(self.path / name, dict[str, Any])
        try:
            check_fields(table or {}, kinds)
        except FieldError as error:
            raise RecordError(self.path / name, error) from error
        return table


def sign(folder: Path, text: str, named: Sequence[str]) -> None:
    """Note in a folder that this user made a file in it, and the programs that it names."""
    if (proof := signature(text, named)) is not None:
        write_atomic(folder / SIGNATURE, proof + "\n")


def as_recorded(value: Any) -> Any:
    """Return a value as it is read back from a record; ValueError for one that no record holds."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except TypeError as error:
        raise ValueError(str(error)) from error


def _plain(value: Any) -> Any:
    """Return a NumPy number or array, or a path, as a JSON value."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"A record holds numbers and text; {value!r} is neither a number nor text.")
