"""The folder of a run, and the files in it. No TensorFlow.

A file is either complete or missing: it is written under a temporary name and then renamed. A
table grows by complete lines.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, final

from tfunet.config.kept_programs import FOLDER, copy_names, hashes, named_programs
from tfunet.config.keys import MAY_CHANGE
from tfunet.config.run import SCHEMA_VERSION, RunConfig, config_of_record
from tfunet.config.trust import check_signed, programs, signature
from tfunet.files.atomic import PARTIAL, WriteError, replacing, write_atomic, writing
from tfunet.files.regular import open_regular
from tfunet.files.table import Table, csv_line
from tfunet.files.typed import (
    Amount,
    Count,
    FieldError,
    Positive,
    RecordError,
    amount,
    check_fields,
    finite,
    read_json,
    read_record,
    typed_rows,
    whole,
)

LOCK = ".lock"
# The trained model; or its weights alone, if it cannot be described.
MODEL = "model.keras"
WEIGHTS = "model.weights.h5"
SHOWN_CASES = "shown_cases.npz"  # Planes of three validation cases, for reports.
SIGNATURE = ".signature"  # Signs config.json, if it names programs.
LOCK_SECONDS = 0.2
SPAN_COLUMNS = ("step", "name", "begin_seconds", "seconds")
# Folder beside those of the runs where the trainers of a tournament meet.
MEETINGS = "tournaments"
# Folder beside those of the runs with the records of failed attempts.
EARLIER = "earlier"
ROUND_COLUMNS = (
    *("round", "step", "trainer", "partner", "own_score", "partner_score", "model_of", "reason"),
    *("learning_rate", "training_seconds", "round_seconds", "waited_seconds"),
)
STEP_COLUMNS = ("step", "seconds", "loss", "traced")
# What is in the files, by key.
SPLIT = {
    "train": list[str],
    "validation": list[str],
    "left_out": list[dict[str, str | None]],
    "validation_groups": list[str],
}
DATA = {
    "name": str,
    "channels": Positive,
    "num_classes": Positive,
    "patch": list[Positive],
    "preparation": dict[str, Any] | None,
}
# Targets are only of data sets without masks, and regions of networks that predict them; earlier
# versions wrote less.
MORE_DATA = {
    "targets": list[str] | None,
    "regions": dict[str, list[Positive]] | None,
    "label_names": list[str] | None,
    "training_files": list[str] | None,
    "contents": str | None,
    "class_weights": list[Amount] | None,
    "mask_values": list[list[int | str]] | None,
    "pixel_sizes": list[list[float]] | None,
    "pixel_unit": str | None,
    "value_ends": list[float] | None,
}
RESULT = {"began_unix_seconds": list[tuple[Count, Amount]] | None}
CASE_COLUMNS = ("epoch", "case", "region", "true_positive", "false_positive", "false_negative")
ERROR_COLUMNS = ("epoch", "case", "target", "value", "predicted", "absolute_error")
# The tables with a row for each case: of regions of masks, and of predicted numbers.
CASE_TABLES = {"cases": CASE_COLUMNS, "errors": ERROR_COLUMNS}


# Columns of epochs.csv that are no scores of the validation cases, and no metrics.
EPOCH_BEGIN = ("epoch", "steps", "loss")
EPOCH_END = (
    *("learning_rate", "training_seconds", "evaluation_seconds", "saving_seconds"),
    *("elapsed_seconds", "weights_hash", "samples_hash", "dropped_samples"),
)


def epoch_columns(
    regions: Iterable[str], targets: Iterable[str] = (), metrics: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the columns of epochs.csv for a data set with these regions or targets.

    `metrics` have the names that callbacks see: "accuracy", "val_hd95", "val_hd95_cell".
    """
    regions = tuple(regions)
    of_dataset = [
        f"dataset_{score}{part}"
        for score in ("dice", "iou")
        for part in ("", *(f"_{region}" for region in regions))
        if regions
    ]
    return (
        *EPOCH_BEGIN,
        "val_loss",
        *(f"dice_{region}" for region in regions),
        *(f"iou_{region}" for region in regions),
        *of_dataset,
        *(f"mae_{target}" for target in targets),
        *metrics,
        *EPOCH_END,
    )


def scored(columns: Iterable[str]) -> list[str]:
    """Return the columns of epochs.csv that are scores of the validation cases, and metrics."""
    return [name for name in columns if name not in (*EPOCH_BEGIN, *EPOCH_END)]


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

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of this folder.

        Removes, before and after, the temporary files of processes that were killed while writing.

        Raises ValueError, which names the process, if another run has the folder.
        """
        path = self.path / LOCK
        descriptor = _lock(path)
        try:
            self._remove_partial()
            yield
        finally:
            self._remove_partial()
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a run is using this folder."""
        try:
            descriptor = open_regular(self.path / LOCK, os.O_RDONLY)
        except (FileNotFoundError, FileExistsError):  # None, or a link or a pipe: not a run's.
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

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
        return before is not None and not _differing(config, before)

    def _add_epochs(self, config: RunConfig) -> None:
        """Make a finished run an unfinished one of more epochs; ValueError for another change."""
        before = self.read_config()
        differing = [] if before is None else _differing(config, before)
        if before is None or not set(differing) <= {"epochs", "steps", *_may_change(config)}:
            self.write_config(config)  # Says what differs.
        falls = config.learning_rate_schedule is not None
        steps = config.steps if before is None else before.steps
        is_more = before is not None and config.steps is None and config.epochs > before.epochs
        if before is None or not is_more or steps is not None or falls:
            advice = "To train it further, give more epochs, or choose"
            if steps is not None:
                advice = (
                    f"It ended after steps = {steps}, which may be in the middle of an "
                    "epoch, so it cannot be trained further: only runs of epochs can. Choose"
                )
            elif falls:
                advice = (
                    f"With learning_rate_schedule = {config.learning_rate_schedule!r} its learning "
                    "rate fell to 0, so it cannot be trained further. Choose"
                )
            raise ValueError(
                f"{self.path} holds a finished run. {advice} another folder with --out."
                f"{self._from_its_weights()}"
            )
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
        differing = _differing(config, before)
        may_change = not self.is_done() and (
            set(differing) <= _may_change(config) or not self._has_begun()
        )
        if differing and not may_change:
            ours, theirs = _as_json(config), _as_json(before)
            shown = [
                f"{name}={ours.get(name)!r} (there: {theirs.get(name)!r})" for name in differing
            ]
            hint = ""
            if "num_replicas" in differing and "global_batch" in differing:
                hint = (
                    f" To go on with num_replicas={config.num_replicas}, give "
                    f"global_batch={theirs.get('global_batch')}."
                )
            raise ValueError(
                f"{self.path} holds a run with other settings: {', '.join(shown)}. Choose another "
                f"folder with --out.{hint}{self._from_its_weights()}"
            )
        self._put_config(config)

    def _from_its_weights(self) -> str:
        """Return how a run with other settings begins with the weights of this one."""
        weights = self.path / "model.keras"
        if not weights.is_file():
            return ""
        return (
            f" To begin there with the weights of this run, also give --initial_weights {weights}"
        )

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

    def _remove_partial(self) -> None:
        for partial in self.path.glob(f"{PARTIAL}*"):
            with contextlib.suppress(OSError):
                partial.unlink()

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_atomic(self.path / name, json.dumps(value, indent=1, default=_plain) + "\n")

    def _read_json(self, name: str, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
        table = read_json(self.path / name, dict[str, Any])
        try:
            check_fields(table or {}, kinds)
        except FieldError as error:
            raise RecordError(self.path / name, error) from error
        return table


def _as_json(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as JSON, where a tuple among a model's options is a list."""
    return json.loads(json.dumps(asdict(config)))


def _differing(config: RunConfig, before: RunConfig) -> list[str]:
    """Return the keys in which two configurations differ.

    A key that a record lacks is newer than it, and had its default.
    """
    ours, theirs = _as_json(config), _as_json(before)
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def _may_change(config: RunConfig) -> set[str]:
    """Return the keys that an unfinished run may change when it goes on."""
    # The number of replicas may change unless the learning rate depends on it.
    tied = {"num_replicas"} if config.scale_learning_rate else set()
    return set(MAY_CHANGE) - tied


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


def _lock(path: Path) -> int:
    """Return the descriptor that holds the lock. The kernel frees it however the process ends."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with writing(path):
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous run may have removed the file between our open and our lock.
            if _is_file(descriptor, path):
                break
        except BlockingIOError:
            # Try for a while: `is_locked` of another process holds the lock for an instant.
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace")
                raise ValueError(
                    f"{path.parent} is in use by {holder or 'another run'}. Wait until it ends, "
                    "end it, or choose another folder."
                ) from None
            time.sleep(LOCK_SECONDS / 10)
        except OSError as error:
            # Some shared disks do not support locks.
            print(f"tfunet: {path.parent} cannot be locked ({error.strerror}).", file=sys.stderr)
            break
        os.close(descriptor)
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        with writing(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
    except WriteError:
        os.close(descriptor)
        raise
    return descriptor


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
