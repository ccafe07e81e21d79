"""A process of a run from its start to its end: its backend and its folder."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import keras
import numpy as np
import psutil
import tensorflow as tf

from tfunet.backend import Backend, Exchange, Topology
from tfunet.config.run import RunConfig
from tfunet.machine.cpu_memory import check_cap
from tfunet.machine.environment import environment
from tfunet.parallel.host_exchange import exchange_of
from tfunet.parallel.mesh import Mesh
from tfunet.process.terminal import lines_of
from tfunet.record import RunFolder
from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.device_memory import join_regions
from tfunet.timing.spans import Spans
from tfunet.timing.stamps import Note
from tfunet.training import checkpoint


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process of a run from its start to its end; a run that was killed takes several.

    Args:
        started: Unix time at which the process began.
        began: The same by a clock that nobody sets, time.perf_counter.
        begin: Is told what this process begins, as `Pulse.begin`.
        is_quiet: Whether it prints nothing.
    """

    config: RunConfig
    backend: Backend
    topology: Topology
    folder: RunFolder
    started: float
    began: float
    begin: Callable[..., None]
    spans: Spans | None
    has_gpus: bool
    support: LargeModelSupport | None
    is_quiet: bool = False

    @property
    def mesh(self) -> Mesh:
        """The replicas, and the devices of each that share its samples."""
        config = self.config
        return Mesh(groups=config.num_replicas, split=config.split, stages=config.stages)

    @property
    def note(self) -> Note | None:
        """What is told of the parts of a step; None where the run is not traced."""
        return None if self.spans is None else self.spans.add

    @property
    def initial_weights(self) -> str | None:
        """The file of the weights to begin with; None where a checkpoint has later ones."""
        return None if checkpoint.exists(self.folder) else self.config.initial_weights

    def exchange(self, what: str) -> Exchange:
        """Return what exchanges tensors between devices, for `what`; all processes at once.

        Raises ValueError for a backend that cannot.
        """
        mesh, config = self.mesh, self.config
        # Where samples are split in stages, some pairs exchange while others do not, and one that
        # waits in memory would hold up all.
        in_pairs = mesh.is_split and mesh.stages > 1
        # A plan of large-model support knows what messages of a backend take.
        swaps = any("LargeModelSupport" in str(table.get("name")) for table in config.callbacks)
        is_other = in_pairs or config.xla or swaps or config.swap is not None
        may_share = config.shared_memory and not is_other
        return exchange_of(self.backend, self.topology, what=what, may_share=may_share)

    def say(self, line: str) -> None:
        """Print a line, once for all processes."""
        if self.topology.is_chief and not self.is_quiet:
            print(lines_of(line), flush=True)

    def stop(self) -> None:
        """Leave the other processes, once the chief has written all."""
        self.backend.sum(np.zeros(1))
        if self.spans is not None:
            self.spans.close()
        self.backend.stop()


def start(
    config: RunConfig, backend: Backend, path: str | Path, begin: Callable[..., None]
) -> Attempt:
    """Start the backend, seed the random numbers, and open the run's folder.

    Raises ValueError for what this process cannot do, before the data, which can take long.
    """
    started = psutil.Process().create_time()
    began = time.perf_counter() - max(0.0, time.time() - started)
    spans = Spans(started, begin) if config.trace else None
    topology = backend.start()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    folder = RunFolder(Path(path))
    if topology.is_chief:
        folder.create()
        folder.write_config(config)
        folder.write_env(environment())
        for line in folder.keep_programs(config):
            print(lines_of(f"warning: {line}"), flush=True)
    has_gpus = bool(tf.config.list_logical_devices("GPU"))
    check_cap(config.cpu_memory, os.environ, on_gpu=has_gpus)
    join_regions(config.swap)
    return Attempt(
        config=config,
        backend=backend,
        topology=topology,
        folder=folder,
        started=started,
        began=began,
        begin=begin if spans is None else spans.begin,
        spans=spans,
        has_gpus=has_gpus,
        # Each stage has a plan of its own, which its process tells.
        support=_support(config, tells=topology.is_chief or config.stages > 1),
    )


def _support(config: RunConfig, *, tells: bool) -> LargeModelSupport | None:
    if config.swap is None:
        return None
    return LargeModelSupport(
        config.swap,
        host=config.swap_host,
        disk=config.swap_disk,
        disk_size=config.swap_disk_size,
        weights="none" if config.zero else config.swap_weights or "auto",
        verbose=int(tells),
    )
