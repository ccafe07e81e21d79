"""Trackers of experiments: processes of their own, which read the record of the run.

```
  chief ----> epochs.csv ----> tfunet.export.follow_run ----> MLflow, Weights & Biases
    |                                    ^
    +--- standard input, closed when the run ends
```

A tracker that is missing, dead, slow or without room ends alone. The run says so once.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, final

from tfunet.files.regular import open_regular

FOLLOWER = "tfunet.export.follow_run"
# The run has ended then, and waits for nothing else.
WAIT_SECONDS = 10.0
LONGEST = 300


@final
class Trackers:
    """The trackers of a run, in the chief's process.

    Args:
        names: The trackers that the configuration names.
        folder: Folder of the run.
        say: Prints a line.
        wait_seconds: For which `end` waits at most.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        say: Callable[[str], None],
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._folder, self._say, self._wait_seconds = folder, say, wait_seconds
        self._followers: dict[str, subprocess.Popen[bytes]] = {}
        for name in names:
            try:
                self._followers[name] = self._start(name)
            except OSError as error:
                self._give_up(name, str(error))

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        with self._output(name, "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", FOLLOWER, name, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                # It outlives the run by seconds, to say how the run ended.
                start_new_session=True,
            )

    def look(self) -> None:
        """Say which trackers have ended."""
        for name, follower in list(self._followers.items()):
            if follower.poll() is not None:
                del self._followers[name]
                if follower.returncode != 0:
                    self._give_up(name, self._last_words(name, follower.returncode))

    def end(self) -> None:
        """Tell them that the run has ended, and give them some seconds to write that down."""
        for follower in self._followers.values():
            if follower.stdin is not None:
                with contextlib.suppress(OSError):
                    follower.stdin.close()
        deadline = time.monotonic() + self._wait_seconds
        for name, follower in list(self._followers.items()):
            try:
                follower.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                follower.kill()
                follower.wait()
                del self._followers[name]
                self._give_up(name, f"it did not end within {self._wait_seconds:g} s")
        self.look()

    def _output(self, name: str, mode: str) -> IO[bytes]:
        path = self._folder / f"tracked-{name}.txt"
        flags = os.O_RDONLY if mode == "rb" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return os.fdopen(open_regular(path, flags), mode)

    def _last_words(self, name: str, code: int) -> str:
        with contextlib.suppress(OSError), self._output(name, "rb") as output:
            lines = output.read().decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1][:LONGEST].rstrip(".")
        return f"its process ended with code {code}"

    def _give_up(self, name: str, why: str) -> None:
        self._say(
            f"warning: {name} does not track this run any more: {why}. Nothing is lost: `tfunet "
            f"export {self._folder} --to {name}` tells it of the whole run."
        )
