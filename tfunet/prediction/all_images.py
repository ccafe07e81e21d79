"""Predicts images one after the other, with other processes that do the same."""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, final

from tfunet.files.typed import read_json
from tfunet.prediction.devices import Helpers
from tfunet.prediction.image_job import How, ImageJob, is_of_another, remove_work
from tfunet.prediction.jobs import Job, is_finished
from tfunet.prediction.shared_lines import WAIT_SECONDS, has_open
from tfunet.process.terminal import counted, lines_of
from tfunet.record import InUseError, RunFolder


class Image(NamedTuple):
    """An image to predict.

    Args:
        identity: All that its prediction depends on.
        by_parts: Whether it is read in parts; otherwise it is in memory as a whole.
    """

    job: Job
    identity: dict[str, Any]
    by_parts: bool


@final
class AllImages:
    """Predicts what is not there yet, with a line for each image.

    It takes images that nobody has, and helps with those of others when there are none. While an
    image is computed, the one before is written.
    """

    def __init__(self, images: Sequence[Image], how: How, devices: Helpers) -> None:
        self._how, self._devices = how, devices
        self._missing = list(images)
        self._writer = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None
        self._helped: ImageJob | None = None
        self._is_waiting = False

    def predict(self) -> None:
        """Predict them, and return when all are there."""
        for image in self._missing.copy():
            if is_finished(image.job, image.identity):
                self._missing.remove(image)
                remove_work(image.job)  # It was killed at the very end.
                _say(f"{image.job.name}: done already, {image.job.labels}")
        with self._writer:
            while self._missing:
                self._missing = [image for image in self._missing if not self._is_done(image)]
                self._devices.say_ended()
                if self._missing and not any(map(self._help, self._missing)):
                    self._wait()
            self._await_writer()

    def _is_done(self, image: Image) -> bool:
        """Predict an image that nobody has; return whether it is there, or will be."""
        job, identity, by_parts = image
        is_locked = RunFolder(job.unfinished).is_locked()
        if is_finished(job, identity):
            if is_locked:  # Another process is about to remove what it has left.
                return False
            remove_work(job)
            self._say_of_others(job)
            return True
        if is_locked and not is_of_another(job, identity):
            return False
        if not by_parts:
            self._await_writer()  # Two at once may not fit into memory.
        found = ImageJob(job, identity, self._how)
        try:
            if found.compute():
                self._write(found)
            else:
                self._say_of_others(job)
        except InUseError:
            if is_of_another(job, identity):
                raise
            return False
        return True

    def _write(self, image: ImageJob) -> None:
        try:
            self._await_writer()  # So that one image waits at most.
        except BaseException:
            image.release()
            raise
        self._written = self._writer.submit(_finish, image)

    def _await_writer(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _help(self, image: Image) -> bool:
        """Compute parts of an image that another process has; return whether there were any."""
        if not has_open(image.job.unfinished):
            return False
        try:
            if self._helped is None or self._helped.job != image.job:
                self._helped = None
                self._helped = ImageJob(image.job, image.identity, self._how)
            return self._helped.help()
        except ValueError:  # Such as one more copy of an image that does not fit into memory.
            return False

    def _wait(self) -> None:
        if not (self._is_waiting or self._devices):
            self._is_waiting = True
            names = ", ".join(image.job.name for image in self._missing[:3])
            _say(f"{names}: another process predicts it, and this one helps.")
        time.sleep(WAIT_SECONDS)

    def _say_of_others(self, job: Job) -> None:
        """Say what another device of this process predicted."""
        self._helped = None
        if self._devices:
            facts = read_json(job.facts, dict[str, Any]) or {}
            _warn(job, facts.get("warnings", []))
            _say(f"{job.name}: by another device, {facts.get('seconds', 0):.1f} s, {job.labels}")


def _finish(image: ImageJob) -> None:
    """Write a predicted image, and say so."""
    image.finish()
    _warn(image.job, image.notes)
    tiling = image.tiling
    size, windows = (" x ".join(map(str, shape)) for shape in (tiling.extent, tiling.window))
    count = counted(tiling.num_windows, "window")
    what = f"{size} in {count} of {windows}, {image.seconds:.1f} s"
    _say(f"{image.job.name}: {what}, {image.job.labels}")


def _warn(job: Job, notes: Sequence[str]) -> None:
    for note in notes:
        print(lines_of(f"warning: {job.files[0]}: {note}"), file=sys.stderr, flush=True)


def _say(line: str) -> None:
    print(lines_of(line), flush=True)
