"""Which processes a run starts on this machine: their places, cores, ports and environments."""

import contextlib
import dataclasses
import json
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfunet.backend import Launch, num_processes
from tfunet.config.run import RunConfig
from tfunet.machine.cores import core_variables, share_cores
from tfunet.machine.environment import DEFAULTS


@dataclass(frozen=True)
class ProcessPlan:
    """One process to start."""

    launch: Launch
    cores: tuple[int, ...]


def plan_processes(config: RunConfig, cores: Sequence[int]) -> list[ProcessPlan]:
    """Return the processes of a run on this machine, each with its cores and a free port."""
    count = num_processes(config)
    # Checks that the processes can share the replicas, before anything else needs it.
    Launch(process_count=count, num_replicas=config.num_replicas, addresses=("",) * count)
    shares = share_cores(cores, config.num_replicas, count, config.cores_per_replica)
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    return [
        ProcessPlan(
            Launch(
                process_index=index,
                process_count=count,
                num_replicas=config.num_replicas,
                addresses=addresses,
            ),
            shares[index],
        )
        for index in range(count)
    ]


def fewer(config: RunConfig) -> RunConfig | None:
    """Return the run with one process less, or as many less as its batch needs; None without any.

    Each process keeps its number of replicas, and the replicas share the same global batch.
    """
    count = num_processes(config)
    share = config.num_replicas // count
    for left in range(count - 1, 0, -1):
        samples, rest = divmod(config.global_samples, left * share)
        if not rest and samples % config.accumulation == 0:
            return dataclasses.replace(
                config,
                num_replicas=left * share,
                replica_batch=samples,
                processes=None if config.processes is None else left,
            )
    return None


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for port_socket in sockets:
            port_socket.bind(("127.0.0.1", 0))
        return [port_socket.getsockname()[1] for port_socket in sockets]


def child_environment(plan: ProcessPlan, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one process.

    TFUNET_LAUNCH tells it its place; TFUNET_TERMINAL is set if its standard error reaches a
    terminal, which it cannot see through the pipe.
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
    """Return what begins each line of a process on the terminal: nothing if it is alone."""
    return f"[{place.process_index}] " if place.process_count > 1 else ""
