"""Reports the epochs of a running trial to a search, and ends the trial if it is to be pruned."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from tfunet.bench.records.epoch_times import epoch_times
from tfunet.bench.records.objectives import objective_of
from tfunet.bench.study.search_settings import Search
from tfunet.files.typed import RecordError

POLL_SECONDS = 0.2
# How often epochs.csv of a running trial is looked at.
WATCH_SECONDS = 1.0


@final
class EpochWatch:
    """Watches the trial of Optuna that runs in a folder.

    Args:
        noted: Signals to this process, which go on to the trial.
        signals: Receives them, and SIGTERM for a trial that is to be pruned.
    """

    def __init__(
        self, trial: Any, folder: Path, search: Search, noted: Sequence[int], signals: list[int]
    ) -> None:
        self._trial, self._folder, self._search = trial, folder, search
        self._noted, self._signals = noted, signals
        self._reported = 0
        self._ended = threading.Event()
        self.pruned = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch during the block."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            if self._search.pruner != "none":
                self._report(may_prune=False)  # Others are compared with its last epochs, too.

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(POLL_SECONDS):
            self._signals += self._noted[len(self._signals) :]
            is_time = time.monotonic() - last >= WATCH_SECONDS
            if is_time and self._search.pruner != "none" and not self.pruned and not self._noted:
                last = time.monotonic()
                self._report()

    def _report(self, may_prune: bool = True) -> None:
        score_of = objective_of(self._search.objective).of_epoch
        with contextlib.suppress(RecordError):
            for epoch in epoch_times(self._folder)[self._reported :]:
                self._reported += 1
                score = None if score_of is None else score_of(epoch)
                if score is None:
                    continue
                self._trial.report(score, epoch.epoch)
                if may_prune and self._trial.should_prune():
                    self.pruned = (
                        f"pruned after epoch {epoch.epoch}: {self._search.objective} {score:.4g}"
                    )
                    self._signals.append(signal.SIGTERM)
                    return
