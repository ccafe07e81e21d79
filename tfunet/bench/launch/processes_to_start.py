"""Which processes a run starts on this machine: their places, cores, ports and environments."""

import contextlib
import dataclasses
import json
import random
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfunet.backend import Launch, check_shares, num_processes
from tfunet.config.placement_keys import PlacementKeys
from tfunet.config.run import RunConfig
from tfunet.machine.cores import core_variables, share_cores
from tfunet.machine.environment import DEFAULTS

FIRST_PORT, LAST_PORT = 10000, 65535
# In Linux: the first and the last port that the system gives by itself.
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class ProcessPlan:
    """One process to start."""

    launch: Launch
    cores: tuple[int, ...]


def plan_processes(config: PlacementKeys, cores: Sequence[int]) -> list[ProcessPlan]:
    """Return a run's processes on this machine, each with its cores and a free port."""
    count = num_processes(config)
    check_shares(config.num_devices, count)
    shares = share_cores(
        cores,
        config.num_replicas,
        count,
        config.cores_per_replica,
        config.split,
        config.stages,
        may_share=config.share_cores,
    )
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    return [
        ProcessPlan(
            Launch(
                process_index=index,
                process_count=count,
                num_replicas=config.num_devices,
                addresses=addresses,
            ),
            shares[index],
        )
        for index in range(count)
    ]


def fewer(config: RunConfig) -> RunConfig | None:
    """Return the run with fewer processes that share the same global batch; None if none can.

    It has one process less, or several if the batch does not divide. A process keeps its replicas.
    """
    count = num_processes(config)
    share = config.num_replicas // count
    for left in range(count - 1, 0, -1):
        # ValueError says that samples, tiles or passes cannot be shared out.
        with contextlib.suppress(ValueError):
            return dataclasses.replace(
                config,
                num_replicas=left * share,
                replica_batch=None,
                processes=None if config.processes is None else left,
            )
    return None


def free_ports(count: int) -> list[int]:
    """Return different free ports of this machine.

    A port is opened seconds later, when its process has started. So it is none of those that the
    system gives by itself meanwhile, to whoever asks for any port.
    """
    ephemeral = _ephemeral_ports()
    others = [port for port in range(FIRST_PORT, LAST_PORT + 1) if port not in ephemeral]
    # Not the numbers of `random`, which a program may seed: its runs would take the same ports.
    chosen = random.SystemRandom().sample(others, len(others))
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        # 0 is any port, where all others are taken.
        for port in (*chosen, *[0] * count):
            if len(ports) == count:
                break
            port_socket = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                port_socket.bind(("127.0.0.1", port))
                ports.append(port_socket.getsockname()[1])
    return ports


def _ephemeral_ports() -> range:
    """Return the ports that the system gives by itself; none where it does not say which."""
    try:
        first, last = map(int, EPHEMERAL_PORTS.read_text().split())
    except OSError:
        return range(0)
    return range(first, last + 1)


def child_environment(plan: ProcessPlan, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one process.

    TFUNET_LAUNCH holds its Launch. TFUNET_TERMINAL is set if its standard error goes to a terminal,
    which the process cannot see through the pipe.
    """
    environment = {
        **DEFAULTS,
        "PYTHONIOENCODING": "utf-8",
        **inherited,
        "PYTHONUNBUFFERED": "1",
        "TFUNET_LAUNCH": json.dumps(dataclasses.asdict(plan.launch)),
        **core_variables(plan.cores),
    }
    environment.pop("TFUNET_TERMINAL", None)
    if plan.launch.process_index == 0 and sys.stderr is not None and sys.stderr.isatty():
        columns, lines = shutil.get_terminal_size()
        width = columns - len(prefix(plan.launch))
        environment.update(TFUNET_TERMINAL="1", COLUMNS=str(width), LINES=str(lines))
    return environment


def prefix(place: Launch) -> str:
    """Return the beginning of each line that a process prints; empty if it is the only one."""
    return f"[{place.process_index}] " if place.process_count > 1 else ""
