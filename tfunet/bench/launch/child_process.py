"""Starts a process of a run, and a guard that kills them all if the supervisor dies."""

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, final

import psutil

from tfunet import exit_codes
from tfunet.process.exec_on_cores import on_cores
from tfunet.process.watchdog import STACKS_SIGNAL, VARIABLE

# Each line lists the groups that are alive; the last line of a killed supervisor counts.
GUARD = 'while read -r line; do alive=$line; done; [ -z "$alive" ] || kill -s KILL -- $alive'

# Nobody presses Ctrl-C twice within so many seconds.
SAME_SECONDS = 0.3


@final
@dataclass
class Process:
    """A process that leads its own session and process group.

    `code` is None while it runs, then the exit code, negative for a signal.
    """

    index: int
    popen: subprocess.Popen[bytes]
    pulse: IO[bytes]
    code: int | None = None

    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return the pipes of its standard output and its standard error."""
        if self.popen.stdout is None or self.popen.stderr is None:
            raise ValueError("The process was started without pipes: use `start`.")
        return self.popen.stdout, self.popen.stderr

    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal."""
        try:
            return bool(psutil.Process(self.popen.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def dump_stacks(self) -> None:
        """Make it write its Python stacks to its standard error, even if it is stopped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.popen.pid, STACKS_SIGNAL)
            os.kill(self.popen.pid, signal.SIGCONT)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and its children."""
        # No new group gets this number before the process has been waited for.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def has_just_ended(self) -> bool:
        """Whether it has ended since the last call; if so, kill what is left of its group."""
        if self.code is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.popen.pid, flags) is None:
            return False
        self.signal_group(signal.SIGKILL)
        self.code = self.popen.wait()
        return True


def start(
    index: int,
    command: Sequence[str],
    cores: Sequence[int],
    environment: Mapping[str, str],
    network: int | None = None,
    passed: Sequence[int] = (),
) -> Process:
    """Start `command` on these cores, in the network that the process `network` holds.

    It dies with this process, and gets the descriptors `passed`.
    """
    pulse, told = os.pipe()
    where = ",".join(map(str, cores)) + ("" if network is None else f"@{network}")
    popen = subprocess.Popen(
        on_cores(where, command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, VARIABLE: str(told)},
        pass_fds=(told, *passed),
        start_new_session=True,
    )
    os.close(told)
    return Process(index, popen, os.fdopen(pulse, "rb", buffering=0))


@final
class Guard:
    """A shell that kills all process groups when the supervisor closes its pipe, or dies."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            ["/bin/sh", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, processes: Sequence[Process]) -> None:
        """Tell the guard which processes are alive."""
        groups = " ".join(f"-{process.popen.pid}" for process in processes if process.code is None)
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.write(f"{groups}\n".encode())
                self._popen.stdin.flush()

    def dismiss(self) -> None:
        """Close the pipe: the guard kills the processes that it last heard were alive, and ends."""
        with contextlib.suppress(OSError):
            self._popen.communicate()


@contextlib.contextmanager
def signals_noted() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list, instead of acting on them.

    One that comes again within the twinkling of an eye is the same one: `timeout` and some shells
    pass on a Ctrl-C that the terminal has sent to all of its processes.

    Signals that are ignored stay ignored (nohup). Outside the main thread nothing is collected,
    because Python allows no handler there.
    """
    noted: list[int] = []
    times: dict[int, float] = {}
    previous = {}

    def note(number: int, _: Any) -> None:
        now = time.monotonic()
        if now - times.get(number, -math.inf) > SAME_SECONDS:
            noted.append(number)
        times[number] = now

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                previous[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_code_of(noted: Sequence[int]) -> int:
    """Return the exit code of what was ended by the first of these signals."""
    ctrl_c = noted[0] == signal.SIGINT
    return exit_codes.INTERRUPTED if ctrl_c else exit_codes.TERMINATED
