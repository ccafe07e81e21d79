"""What the chief writes and shows while it trains."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from tqdm import tqdm

from tfunet.files.atomic import write_atomic
from tfunet.files.typed import amount, number, typed_rows
from tfunet.learning.confusion import CONFUSION, confusion_csv
from tfunet.learning.dataset_scores import COUNTS, absent_line, dataset_iou_line, region_scores
from tfunet.learning.divergence import warning
from tfunet.process.terminal import Minutes, counted, shows_progress
from tfunet.record import scored
from tfunet.training.attempt import Attempt
from tfunet.training.earlier_first_step import earlier_first_step
from tfunet.training.evaluation import Scores
from tfunet.training.network import Network
from tfunet.training.progress import Progress, Resumed
from tfunet.training.run_data import RunData
from tfunet.training.trackers import Trackers

# Steps whose median says how long those take that are left.
RECENT = 50
CASE_COUNTS: dict[str, Callable[[str], Any]] = {"region": str, **dict.fromkeys(COUNTS, amount)}
SHOWN = ("loss", "val_loss", "val_dice", "val_iou", "val_mae")
SCORE_WORDS = {
    "dice": "Dice",
    "iou": "IoU",
    "dataset_dice": "dataset Dice",
    "dataset_iou": "dataset IoU",
}


@final
class Logbook:
    """Rows of steps.csv, epochs.csv and cases.csv, a progress bar, and trackers.

    A run that goes on drops the rows after its checkpoint. All processes have a logbook, but only
    the chief's does anything. `metrics` have the names that callbacks see.
    """

    def __init__(
        self,
        attempt: Attempt,
        data: RunData,
        network: Network,
        resumed: Resumed,
        metrics: Sequence[str],
    ) -> None:
        self._attempt, self._data, self._metrics = attempt, data, metrics
        self._progress = progress = resumed.progress
        self._steps = self._epochs = None
        attempt.say(f"{attempt.config.model}: {network.preflight}")
        if attempt.topology.is_chief:
            self._steps = attempt.folder.steps_table(last=progress.step)
            self._epochs = attempt.folder.epochs_table(
                data.task.source.regions,
                data.task.source.targets,
                metrics,
                last=progress.step // data.steps_per_epoch,
            )
        if resumed.was_begun:
            parts = progress.replicas_from_step
            has_changed = len(parts) > 1 and parts[-1][0] == progress.step + 1
            now = f", now with num_replicas={parts[-1][1]}" if has_changed else ""
            attempt.say(f"Going on from step {progress.step} of {data.last_step}{now}.")
        self._bar = tqdm(
            total=data.last_step,
            initial=progress.step,
            unit="step",
            disable=not (attempt.topology.is_chief and shows_progress()),
        )
        self._saving_in_rows = progress.seconds.get("saving", 0.0)
        self._minutes = Minutes()
        tracked = attempt.config.track if attempt.topology.is_chief else ()
        self._trackers = Trackers(tracked, attempt.folder.path, attempt.say)

    def announce(self) -> None:
        """Say what comes first: nothing else is heard of it until it is done."""
        task, config = self._data.task, self._attempt.config
        shape = " x ".join(map(str, (*task.patch, task.source.channels)))
        where = f" on each of {config.num_replicas} replicas" if config.num_replicas > 1 else ""
        what = f"{config.replica_samples} samples"
        if self._data.tiles is not None:
            shape = " x ".join(map(str, self._data.input_shape))
            what = f"{config.replica_tiles} tiles"
        self._bar.clear()
        self._attempt.say(
            f"Compiling the training step: {what} of {shape}{where}. The first step takes longer "
            f"than the others{self._took_elsewhere()}."
        )
        self._bar.refresh()

    def _took_elsewhere(self) -> str:
        """Return how long the first step took in another run, in words; empty if none is known."""
        attempt = self._attempt
        if not attempt.topology.is_chief:
            return ""
        found = earlier_first_step(attempt.folder.path, attempt.config)
        return f"; in {found[0]} it took {found[1]:.3g} s" if found else ""

    def show_step(self, loss: float) -> None:
        """Move the progress bar by a step; without a terminal say a line a minute."""
        self._bar.update()
        self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
        if self._bar.disable and self._minutes.have_passed():
            self._attempt.say(self._minute_line(loss))

    def _minute_line(self, loss: float) -> str:
        step, last = self._progress.step, self._data.last_step
        line = f"step {step} of {last}: loss {loss:.4f}"
        taken = self._progress.step_seconds[-RECENT:]
        recent = [
            seconds
            for number, seconds in enumerate(taken, step - len(taken) + 1)
            if number not in self._progress.traced_steps
        ]
        if not recent:
            return line
        seconds = statistics.median(recent)
        return f"{line}, {seconds:.3g} s a step, {_duration(seconds * (last - step))} of steps left"

    def write_steps(self, losses: Iterable[float]) -> None:
        """Write a row for each of the last steps."""
        if self._steps is None:
            return
        losses, progress = list(losses), self._progress
        for step, loss in enumerate(losses, start=progress.step - len(losses) + 1):
            row = {"step": step, "seconds": progress.step_seconds[step - 1], "loss": loss}
            self._steps.append({**row, "traced": int(step in progress.traced_steps)})

    def write_epoch(
        self,
        epoch: int,
        scores: Scores | None,
        training_seconds: float,
        evaluation_seconds: float,
    ) -> None:
        """Write and show an epoch, counted from 1, and the scores of its evaluation, if any."""
        if self._epochs is None:
            return
        progress = self._progress
        saving_seconds = progress.seconds.get("saving", 0.0)
        self._epochs.append(
            epoch_row(
                epoch,
                progress,
                self._epochs.columns,
                self._metrics,
                training_seconds=training_seconds,
                evaluation_seconds=evaluation_seconds,
                saving_seconds=saving_seconds - self._saving_in_rows,
                elapsed_seconds=time.perf_counter() - self._attempt.began,
            )
        )
        self._saving_in_rows = saving_seconds
        if scores is not None:
            self.write_scores(epoch, scores)
        self._bar.clear()
        regions = tuple(self._data.task.source.regions)
        endings = tuple(f"_{region}" for region in regions)
        means = [name for name in self._metrics if not name.endswith(endings)]
        score = self._attempt.config.epoch_score
        shown = shown_numbers(progress.logs, regions, score, means)
        numbers = f"{', '.join(shown)}, {training_seconds:.1f} s of training"
        if scores is not None:
            numbers += f", {evaluation_seconds:.1f} s of evaluation"
        self._attempt.say(f"epoch {epoch}: step {progress.step}, {numbers}")
        self._trackers.look()

    def write_scores(self, epoch: int, scores: Scores) -> None:
        """Write the scores of an evaluation after an epoch, counted from 1: those of each case."""
        if self._epochs is None:
            return
        rows = scores.case_rows(epoch, self._data.validation_ids)
        names = () if scores.metrics is None else scores.metrics.names
        if scores.scoring.table:
            self._attempt.folder.write_cases(rows, scores.scoring.table, names)
        if scores.confusion.size:
            labels = self._data.task.source.label_names().values()
            text = confusion_csv(scores.confusion, labels)
            write_atomic(self._attempt.folder.path / CONFUSION, text)

    def close_bar(self) -> None:
        """End the progress bar, after the last epoch: what comes then is no step of training."""
        self._bar.close()

    def say_end(self) -> None:
        """Say what came out: the scores of the last evaluation, or that the loss diverged."""
        if not self._attempt.topology.is_chief:
            return
        logs, source = self._progress.logs, self._data.task.source
        if source.samples is not None:
            names = ["val_loss", *(name for name in self._metrics if name.startswith("val_"))]
            shown = ", ".join(f"{name} {logs[name]:.4g}" for name in names)
            samples = counted(len(self._data.split.validation), "validation sample")
            self._attempt.say(f"Over {samples}: {shown}.")
            return self._say_divergence()
        scores = [f"{name} {logs[f'val_dice_{name}']:.3f}" for name in source.regions]
        scores += [f"{name} {logs[f'val_mae_{name}']:.3g}" for name in source.targets]
        measure = "Mean Dice" if source.regions else "Mean absolute error"
        cases = counted(len(self._data.split.validation), "validation case")
        self._attempt.say(f"{measure} over {cases}: {', '.join(scores)}.")
        if source.regions:
            found = region_scores(typed_rows(self._attempt.folder.path / "cases.csv", CASE_COUNTS))
            for line in filter(None, (dataset_iou_line(found), absent_line(found))):
                self._attempt.say(line)
        self._say_divergence()

    def _say_divergence(self) -> None:
        losses = typed_rows(self._attempt.folder.path / "steps.csv", {"loss": number})
        first = next((row["loss"] for row in losses), math.nan)
        if words := warning(first, self._progress.logs["loss"]):
            self._attempt.say(f"warning: {words}")

    def close(self) -> None:
        """End the tables."""
        for table in (self._steps, self._epochs):
            if table is not None:
                table.close()

    def end_tracking(self) -> None:
        """Tell trackers that the run has ended: the last of all, since it may take seconds."""
        self._trackers.end()


def shown_numbers(
    logs: Mapping[str, float], regions: Sequence[str], score: str, metrics: Sequence[str] = ()
) -> list[str]:
    """Return the numbers of an epoch: losses, scores, metrics, and a score of each region if there
    are more."""
    own = f"val_{score}"
    names = dict.fromkeys([*SHOWN, own, *metrics])
    shown = [f"{name} {logs[name]:.4f}" for name in names if name in logs]
    if len(regions) < 2 or "val_dice" not in logs:
        return shown
    by_region = [
        f"{region} {logs[key]:.4f}" if (key := f"{own}_{region}") in logs else f"{region} -"
        for region in regions
    ]
    return [*shown, f"{SCORE_WORDS[score]} of {', '.join(by_region)}"]


def _duration(seconds: float) -> str:
    """Return "45 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def epoch_row(
    epoch: int,
    progress: Progress,
    columns: Iterable[str],
    metrics: Iterable[str],
    **seconds: float,
) -> dict[str, object]:
    """Return a row of epochs.csv; scores are empty in an epoch without evaluation."""
    logs = progress.logs
    scores: dict[str, Any] = {
        name: logs.get(name, logs.get(f"val_{name}", "")) for name in scored(columns)
    }
    for name in metrics:
        if scores[name] != "" and not math.isfinite(scores[name]):
            scores[name] = ""  # It is not defined.
    return {
        "epoch": epoch,
        "steps": progress.step,
        "loss": logs["loss"],
        **scores,
        "learning_rate": logs["learning_rate"],
        "weights_hash": progress.weights_hash,
        "samples_hash": progress.samples_hash,
        "dropped_samples": " ".join(map(str, progress.dropped_samples)),
        **seconds,
    }
