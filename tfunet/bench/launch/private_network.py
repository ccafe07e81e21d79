"""A network of a run's own on this machine, in which only its processes reach each other.

A process holds a network namespace of the kernel that has only a loopback interface; the processes
of the run enter it. No root is needed where the kernel lets users have namespaces. No TensorFlow.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

VARIABLE = "TFUNET_PRIVATE_NETWORK"
HOLDER = Path(__file__).with_name("hold_network.py")
START_SECONDS = 30.0


@contextlib.contextmanager
def private_network(environment: Mapping[str, str]) -> Iterator[int | None]:
    """Yield the process that holds a new network; None unless TFUNET_PRIVATE_NETWORK is 1.

    Raises ValueError where the kernel refuses.
    """
    if environment.get(VARIABLE, "0") in ("", "0"):
        yield None
        return
    holder = subprocess.Popen(
        [sys.executable, "-I", "-S", str(HOLDER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    # It ends with its standard input, however this process ends.
    with holder:
        said = holder.stdout.readline().strip() if holder.stdout else ""
        if said != "ready":
            raise ValueError(
                f"{VARIABLE}=1 needs a network namespace, but the kernel refuses: {said}. Unset "
                "it, and read docs/security.md."
            )
        yield holder.pid
