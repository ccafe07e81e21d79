"""`tfunet.train`, `tfunet.predict` and `tfunet.evaluate`: one run, from Python.

TensorFlow is imported by the last two alone, when they are called.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tfunet import exit_codes
from tfunet.arguments import of_file
from tfunet.bench.launch.start_run import new_folder, start_run
from tfunet.bench.launch.supervisor import RunOutcome
from tfunet.bench.planned import in_best_layout, note_measured
from tfunet.bench.records.run_tables import read_history
from tfunet.config import trust as trusting
from tfunet.config.case_metrics import check_case_metrics
from tfunet.config.refs import reference
from tfunet.config.words import check_known
from tfunet.files.atomic import WriteError
from tfunet.prediction.options import checked_options
from tfunet.process.launcher_variables import Place
from tfunet.record import RunFolder

if TYPE_CHECKING:
    from tfunet.prediction.evaluate import Scored

SCORES = (
    "loss",
    "val_loss",
    "dice",
    "iou",
    "dataset_dice",
    "dataset_iou",
    "miou",
    "mae",
    "metrics",
)
ERRORS: dict[int, type[Exception]] = {
    exit_codes.BAD_INPUT: ValueError,
    exit_codes.NOT_WRITTEN: WriteError,
    exit_codes.CHECK_FAILED: exit_codes.CheckFailedError,
}


@final
@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A finished run.

    Attributes:
        folder: The folder of its record.
        scores: Losses and scores of the network that it keeps; those of regions by their names, and
            metrics by the names that callbacks see, such as "val_hd95".
        history: A list for each column of numbers in epochs.csv, with an entry for each epoch.
    """

    folder: Path
    scores: dict[str, Any]
    history: dict[str, list[Any]]


def train(
    run: str | Path | None = None,
    *,
    out: str | Path | None = None,
    verbose: bool = False,
    trust: bool = False,
    **keys: Any,
) -> TrainedRun:
    """Train one model with one backend, as `tfunet train` does, in processes of its own.

    A call with the same `out` resumes a run that was interrupted, and returns one that is done.
    Ctrl-C saves the run and ends its processes; a second one ends them at once.

    Args:
        run: The configuration file; without one, all keys have their defaults.
        out: Folder of the record; by default a new one in logs/runs.
        verbose: Show the output of all processes.
        trust: Run the programs that a file names, even if it is not yours.
        **keys: Keys of the run, over those of the file. An entry of a table is added to those of
            the file: `model_options={"filters": 8}`. A model, loss and so on can be a function at
            the top level of a file.

    Raises ValueError for a mistake in configuration or data, WriteError where the record cannot be
    written, CheckFailedError if the run did not compute what it should, RuntimeError if a process
    died, and KeyboardInterrupt after Ctrl-C.
    """
    with _trusted(trust):
        config = of_file(None if run is None else Path(run), _by_name(keys))
        folder = new_folder() if out is None else Path(out)
        if config.layout is not None:
            config = in_best_layout(config, RunFolder(folder), lambda line: None)
        outcome = start_run(config, folder, _join, verbose=verbose)
        if isinstance(outcome, RunOutcome):
            _raise_unless_done(outcome, folder)
            note_measured(RunFolder(folder))
        else:
            print(outcome, flush=True)
    result = RunFolder(folder).read_result() or {}
    return TrainedRun(
        folder=folder,
        scores={name: result[name] for name in SCORES if name in result},
        history=read_history(folder),
    )


def predict(
    run: str | Path,
    images: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    on_bad_sample: str = "refuse",
    trust: bool = False,
    **options: Any,
) -> list[Path]:
    """Predict whole images with the network of a finished run, as `tfunet predict` does.

    A call with the same `out` goes on where an earlier one was interrupted.

    Args:
        run: Folder of a finished run, or of a study with a best.json.
        images: Files, folders or patterns; join the files of one image by commas.
        out: Folder to write to.
        on_bad_sample: "refuse", or "skip": leave out images that do not fit, with a warning.
        trust: Run the programs that the record names, even if it is not yours.
        **options: Options of `tfunet.prediction.options.Options`, such as `tiles="halo"`.

    Returns the files with the labels. Raises ValueError for a mistake in run, images or options,
    and WriteError if a file cannot be written.
    """
    check_known("on_bad_sample", on_bad_sample, ("refuse", "skip"))
    several = [images] if isinstance(images, str | Path) else images
    with _trusted(trust):
        given = checked_options(Path(run), options)
        from tfunet.prediction import run as prediction

        skip = on_bad_sample == "skip"
        names = [str(one) for one in several]
        return prediction.predict(Path(run), names, Path(out), given, skip_bad=skip)


def evaluate(
    run: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    training_cases: bool = False,
    on_bad_sample: str = "refuse",
    pictures: str = "some",
    trust: bool = False,
    **options: Any,
) -> "Scored":
    """Score a run's predictions against given masks, as `tfunet evaluate` does.

    Args:
        run: Folder of a finished run, or of a study with a best.json.
        data: TOML file that describes a data set, or a folder that is laid out as the run's own.
        out: Folder for the predictions, scores.csv and pictures.
        metrics: Names of metrics of whole cases; by default those of the run.
        training_cases: Score the cases that the run was trained on, too.
        on_bad_sample: "refuse", or "skip": leave out cases that cannot be used, with a warning.
        pictures: "some" cases are drawn with their errors, or "all".
        trust: Run the programs that the record names, even if it is not yours.
        **options: Options of `tfunet.prediction.options.Options`, such as `tiles="halo"`.

    Returns the scores: `rows` of cases, `regions` and `table()`. Raises ValueError for a mistake in
    run, data or options, and WriteError if a file cannot be written.
    """
    metrics = [metrics] if isinstance(metrics, str) else metrics
    check_case_metrics(metrics or ())
    check_known("on_bad_sample", on_bad_sample, ("refuse", "skip"))
    check_known("pictures", pictures, ("some", "all"))
    with _trusted(trust):
        given = checked_options(Path(run), options)
        from tfunet.prediction import evaluate as evaluation

        scored = evaluation.evaluate(
            Path(run),
            str(data),
            Path(out),
            given,
            metrics=metrics,
            with_training_cases=training_cases,
            skip_bad=on_bad_sample == "skip",
        )
        if given.overlay:
            evaluation.draw_errors(scored, every=pictures == "all")
        return scored


def _join(place: Place) -> None:
    raise ValueError(
        "tfunet.train starts the processes of a run itself, and srun, mpirun or another launcher "
        f"started {place.count}. Use the command there: tfunet train."
    )


def _raise_unless_done(outcome: RunOutcome, folder: Path) -> None:
    """Raise what a run that has no result ended with."""
    code, words = outcome.exit_code, outcome.error or outcome.reason
    if code == exit_codes.TERMINATED:
        signal.raise_signal(signal.SIGTERM)  # It was for this process, which launched the run.
    if code == exit_codes.INTERRUPTED:
        raise KeyboardInterrupt(f"The run in {folder} was interrupted. The same call goes on.")
    if code != exit_codes.OK:
        raise ERRORS.get(code, RuntimeError)(words)


def _by_name(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys as a file has them: programs by their names, paths as texts."""
    values = dict(keys)
    for key, value in values.items():
        if key in trusting.KEYS and callable(value):
            values[key] = reference(value)
        elif key in trusting.KEYS and isinstance(value, list | tuple):
            values[key] = [reference(one) if callable(one) else one for one in value]
        elif isinstance(value, Path):
            values[key] = str(value)
    return values


@contextlib.contextmanager
def _trusted(trust: bool) -> Iterator[None]:
    """Let the block, and the processes that it starts, run the programs of others."""
    before = os.environ.get(trusting.VARIABLE)
    if trust:
        os.environ[trusting.VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(trusting.VARIABLE, None)
