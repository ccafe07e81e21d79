"""Runs a command in its own place: on given cores, and killed with the process that started it.

Run it by its path: `python -I -S exec_on_cores.py PARENT CORES COMMAND...`. It is a program of its
own, because a `preexec_fn` may deadlock in a parent with threads, such as a notebook. The cores and
the death signal outlive the exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


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
    become(int(sys.argv[1]), {int(core) for core in sys.argv[2].split(",")}, sys.argv[3:])
