"""Which processes a run starts on this machine: their places, cores, ports and environments."""

import contextlib
import dataclasses
import json
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfunet.backend import Launch, check_shares, num_processes
from tfunet.config.run import RunConfig
from tfunet.machine.cores import core_variables, share_cores
from tfunet.machine.environment import DEFAULTS


@dataclass(frozen=True)
class ProcessPlan:
    """One process to start."""

    launch: Launch
    cores: tuple[int, ...]


def plan_processes(config: RunConfig, cores: Sequence[int]) -> list[ProcessPlan]:
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
    """Return different free ports of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for port_socket in sockets:
            port_socket.bind(("127.0.0.1", 0))
        return [port_socket.getsockname()[1] for port_socket in sockets]


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
