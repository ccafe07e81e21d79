"""Processes of this host that predict with this one, a device each.

The main process tells the others each prediction that it begins. They take images, and lines of
windows, that nobody has, as it does itself (`shared_lines`). So it need not wait for them, and what
one had that died is done by the others.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, final

import tensorflow as tf

from tfunet.inside.of_tensorflow import has_devices
from tfunet.machine.cores import share_cores, thread_limits, usable_cores
from tfunet.process.exec_on_cores import on_cores
from tfunet.process.terminal import lines_of


def take_device(index: int, threads: int) -> None:
    """Bind this process to one of the devices of this host, before TensorFlow begins."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index], True)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


@final
class Helpers:
    """So many devices: this process is the first one, the others end with it however it ends."""

    def __init__(self, count: int) -> None:
        self._others: list[_Helper] = []
        self._cores: list[tuple[int, ...]] = []
        if count == 1:
            return
        if has_devices():
            raise ValueError(
                "TensorFlow has taken all devices of this process, so they cannot be shared. "
                "Predict before anything else that uses TensorFlow, or leave out devices."
            )
        cores = usable_cores()
        has_gpus = bool(tf.config.list_physical_devices("GPU"))
        self._cores = [tuple(cores)] * count if has_gpus else share_cores(cores, count, count, None)
        take_device(0, len(self._cores[0]))

    def __bool__(self) -> bool:
        return bool(self._cores)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Compute on the first device in the block; the others end with an error of it."""
        if not self._cores:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores[0])
        try:
            self._begin()  # They import TensorFlow while this process plans.
            yield
        except BaseException:
            self._end()
            raise
        finally:
            os.sched_setaffinity(0, before)

    def tell(self, call: Mapping[str, Any]) -> None:
        """Have the others take part in a call of `predict`, by its arguments."""
        for other in self._others:
            other.tell(call)

    def say_ended(self) -> None:
        """Say which have ended, and why; nothing of theirs is missing."""
        for other in self._others:
            other.say_ended()

    def _begin(self) -> None:
        if any(other.has_ended() for other in self._others):
            self._end()
        if not self._others:
            self._others = [
                _Helper(index, cores) for index, cores in enumerate(self._cores) if index
            ]

    def _end(self) -> None:
        for other in self._others:
            other.end()
        self._others = []


class _Helper:
    def __init__(self, index: int, cores: Sequence[int]) -> None:
        self._index = index
        # Open for as long as the process, which writes to it.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        program = [sys.executable, "-m", "tfunet.prediction.helper", str(index)]
        self._popen = subprocess.Popen(
            on_cores(",".join(map(str, cores)), program),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, **thread_limits(len(cores))},
            # Ctrl-C is for the main process, with which it ends.
            start_new_session=True,
        )
        self._is_said = False
        self._writes = threading.Lock()

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def tell(self, call: Mapping[str, Any]) -> None:
        # Its pipe may be full until it has imported TensorFlow.
        threading.Thread(target=self._write, args=(json.dumps(call),), daemon=True).start()

    def _write(self, line: str) -> None:
        stdin = self._popen.stdin
        with self._writes, contextlib.suppress(OSError):  # It has ended.
            if stdin is not None:
                stdin.write(line.encode() + b"\n")
                stdin.flush()

    def say_ended(self) -> None:
        if self._is_said or not self.has_ended():
            return
        self._is_said = True
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        what = f"device {self._index} ended with exit code {self._popen.returncode}"
        line = f"warning: {what}{': ' * bool(last)}{last}. The other devices do its part."
        print(lines_of(line), file=sys.stderr, flush=True)

    def end(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._errors.close()


# By the number of devices: TensorFlow is bound to a device once.
_started: dict[int, Helpers] = {}


def helpers(asked: int | None) -> Helpers:
    """Return so many devices of this host: by default all GPUs, or one that has all cores.

    Raises ValueError for more than there are.
    """
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    most = num_gpus or len(usable_cores())
    if asked is None:
        # A notebook has its devices already.
        asked = next(iter(_started), 1 if has_devices() else max(1, num_gpus))
    if asked > most:
        kind = "GPUs" if num_gpus else "CPU cores, and a device needs one,"
        raise ValueError(f"--devices {asked}: there are {most} {kind} here. Give at most {most}.")
    if asked == 1:
        return Helpers(1)
    if asked not in _started:
        _started[asked] = Helpers(asked)
    return _started[asked]
