"""Runs a command in its own place: on given cores, and killed with the process that started it.

Run it by its path: `python -I -S exec_on_cores.py PARENT CORES COMMAND...`. With CORES@PROCESS the
command gets the network that the process holds (`hold_network.py`). It is a program of its own,
because a `preexec_fn` may deadlock in a parent with threads, such as a notebook. The cores, the
network and the death signal outlive the exec.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def on_cores(where: str, command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` on cores, and dies with the thread that starts it.

    Args:
        where: CORES or CORES@PROCESS.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), where, *command]


def enter_network(holder: str) -> None:
    """Enter the namespaces of a process: of users first, which allows to enter that of networks."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("user", "net"):
        with open(f"/proc/{holder}/ns/{kind}", "rb") as namespace:
            if libc.setns(namespace.fileno(), 0):
                sys.exit(f"Cannot enter the private network: {os.strerror(ctypes.get_errno())}.")


def become(parent: int, cores: set[int], command: list[str]) -> None:
    """Replace this program by `command`."""
    os.sched_setaffinity(0, cores)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before prctl.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    # Python ignores SIGPIPE, and an ignored signal stays ignored after an exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"Cannot start {command[0]!r}: {error.strerror}.")


if __name__ == "__main__":
    given_cores, _, network = sys.argv[2].partition("@")
    if network:
        enter_network(network)
    become(int(sys.argv[1]), {int(core) for core in given_cores.split(",")}, sys.argv[3:])
