"""The keys of a run that say which device computes what. Imports no TensorFlow."""

import json
import math
from dataclasses import dataclass, field, fields
from typing import Any

from tfunet.config.section import FIXED, IS_WAY, Section, fixed, free
from tfunet.config.words import check_known

SCHEDULES = ("gpipe", "1f1b", "v")
LAYOUTS = ("auto",)
BATCH_NORMS = ("micro_batch", "deferred")
ZEROS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class StageKeys(Section):
    """The network in stages, each on a device of its own (pipeline parallelism).

    Args:
        stages: Number of consecutive parts of the network. Each replica then takes one device for
            each part.
        micro_batches: Number of equal parts of a replica's batch, which follow each other through
            the stages. With tiling, number of tiles that do so; it divides those of a step.
        schedule: "gpipe" runs all forward passes first; "1f1b" runs each backward pass as early
            as possible, and keeps fewer micro-batches in memory; "v" gives each device two
            chunks of the network, the first with the last and so on inwards, so that devices wait
            less. All give the same result.
        balance: "time" measures the layers, and cuts the network so that the slowest stage is as
            fast as can be within the memory of a device. Otherwise the names of the layers with
            which the later stages begin; with schedule "v" the later chunks.
        recompute: Stages keep only what they are given of a micro-batch that waits, and run its
            forward pass again before its backward pass. The result is the same.
        batch_norm: When moving statistics of batch normalization change: "micro_batch" once for
            each micro-batch, by its statistics; "deferred" once a step, by those of the whole
            batch. Both normalize each micro-batch by its own.
    """

    stages: int = free(1, **IS_WAY)
    micro_batches: int = fixed(1, **IS_WAY)
    schedule: str = free("1f1b", **IS_WAY)
    balance: tuple[str, ...] | str = free("time", **IS_WAY)
    recompute: bool = free(False, **IS_WAY)
    batch_norm: str = fixed("micro_batch")

    def _check(self) -> None:
        self._at_least(1, "stages", "micro_batches")
        check_known("schedule", self.schedule, SCHEDULES)
        check_known("batch_norm", self.batch_norm, BATCH_NORMS)
        if isinstance(self.balance, str) and self.balance.startswith("["):
            raise ValueError(
                'balance must be "time", or a list of names of layers, such as ["a", "b"], got '
                f"{self.balance}."
            )
        if isinstance(self.balance, str) and self.balance != "time":
            raise ValueError(
                f'balance must be "time", or a list of layers, got {self.balance!r}. To cut before '
                f"a layer of this name, write balance = [{json.dumps(self.balance)}]."
            )
        if self.stages == 1:
            for key in fields(StageKeys):
                if getattr(self, key.name) != key.default:
                    raise ValueError(
                        f"{key.name} = {json.dumps(getattr(self, key.name))} has an effect only on "
                        "a network in stages. Give stages, or leave it out. Without stages, "
                        "accumulation cuts a batch into parts."
                    )
            return
        if self.recompute and self.schedule == "v":
            raise ValueError(
                'recompute = true is not built for schedule = "v". Choose schedule "1f1b" or '
                '"gpipe", or leave out recompute.'
            )
        if self.balance == "time":
            return
        needed = self.chunks - 1
        if len(set(self.balance)) != needed or len(self.balance) != needed:
            parts = "stages" if self.chunks == self.stages else "chunks"
            raise ValueError(
                f"balance = {json.dumps(self.balance)} must name as many different layers as "
                f"stages={self.stages} needs, {needed}: those with which {parts} 2 and later begin."
            )

    @property
    def chunks(self) -> int:
        """Consecutive parts of the network, of which a stage has one or two."""
        return self.stages * (2 if self.schedule == "v" else 1)


@dataclass(frozen=True, kw_only=True)
class PlacementKeys(StageKeys):
    """The backend, its replicas and processes, and each replica's share of the batch.

    Args:
        backend: single, mirrored, multiworker, horovod, or 'package.module:Class'.
        backend_options: Keyword arguments for the backend.
        num_replicas: Number of model replicas in all processes together.
        split: Number of parts of each sample along each of its spatial axes, such as [2, 1]. Each
            replica then takes one device for each part.
        processes: Number of processes to start. By default as many as the backend needs.
        cores_per_replica: Number of CPU cores for each replica. By default an equal share of all
            cores.
        share_cores: Let devices share CPU cores where there are fewer cores than devices, to try
            out a run. Its times are not those of a machine with a core for each.
        shared_memory: Let processes of one host that compute on CPUs exchange borders, and what
            crosses between stages, through memory that they share. The result is that of the
            backend's exchange, which false keeps.
        replica_batch: Number of samples of each replica in an optimizer step (weak scaling).
        global_batch: Number of samples of all replicas together in an optimizer step (strong
            scaling).
        accumulation: Number of equal passes into which a replica's batch is cut, to save memory.
            Their gradients are averaged.
        tiling: Number of tiles along each axis of a sample, such as [8, 8]. A step then takes whole
            samples tile by tile, each with the halo that the network needs. The tiles of a step
            are shared out equally among the replicas. With stages each tile is a micro-batch; with
            split each is cut into parts.
        zero: What the devices that hold the same weights share out among them, as ZeRO's stages
            say: 1 the states of optimizers, of which each device then has a part; 2 also the
            gradients, of which each device averages its part. Weights stay on all devices. The
            result is the same; with 2, on more than two devices, but for rounding.
        layout: "auto" takes the best layout that `tfunet plan` finds on this machine: it chooses
            the backend, num_replicas, split, stages, tiling, accumulation and swap, for the samples
            of a step that replica_batch or global_batch gives.
    """

    backend: str = fixed("single", **IS_WAY)
    backend_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED | IS_WAY)
    num_replicas: int = free(1)
    split: tuple[int, ...] = free((), **IS_WAY)
    processes: int | None = free(None, **IS_WAY)
    cores_per_replica: int | None = free(None)
    share_cores: bool = free(False)
    shared_memory: bool = free(True, **IS_WAY)
    replica_batch: int | None = free(None)
    global_batch: int | None = fixed(None)
    accumulation: int = fixed(1)
    tiling: tuple[int, ...] = fixed((), **IS_WAY)
    zero: int = free(0, **IS_WAY)
    layout: str | None = free(None)

    def _check(self) -> None:
        self._at_least(1, "num_replicas", "processes", "cores_per_replica")
        self._check_layout()
        self._check_zero()
        for key in ("split", "tiling"):
            parts = getattr(self, key)
            if parts and min(parts) < 1:
                raise ValueError(
                    f"{key} must be positive numbers, one for each axis of a sample, got "
                    f"{list(parts)}. 1 leaves an axis whole."
                )
            if len(parts) not in (0, 2, 3):
                raise ValueError(
                    f"{key} must have a number for each of the 2 or 3 axes of a sample, got "
                    f"{list(parts)}. 1 leaves an axis whole."
                )
        self._at_least(1, "replica_batch", "global_batch", "accumulation")
        if self.replica_batch is None and self.global_batch is None:
            self._set("replica_batch", 4)
        if self.global_batch is None:
            self._set("global_batch", (self.replica_batch or 1) * self.num_replicas)
        elif self.tiling:
            self._check_tiles_of_step()
        elif self.global_batch % self.num_replicas:
            raise ValueError(
                f"global_batch={self.global_batch} cannot be divided by num_replicas="
                f"{self.num_replicas}. Choose a multiple, or give replica_batch instead."
            )
        if self.replica_batch is None:
            self._set("replica_batch", self.replica_samples)
        elif self.replica_batch != self.replica_samples:
            raise ValueError(
                f"replica_batch={self.replica_batch} x num_replicas={self.num_replicas} is not "
                f"global_batch={self.global_batch}. Give one of the two."
            )
        if self.replica_samples % self.accumulation:
            raise ValueError(
                f"replica_batch={self.replica_samples} cannot be cut into accumulation="
                f"{self.accumulation} equal passes. Choose a divisor of it."
            )
        self._check_micro_batches()

    def _check_layout(self) -> None:
        if self.layout is None:
            return
        check_known("layout", self.layout, LAYOUTS)
        chosen = ("backend", "num_replicas", "split", "stages", "tiling", "accumulation")
        usual = {key.name: key.default for key in fields(PlacementKeys)}
        for key in chosen:
            if getattr(self, key) != usual[key]:
                raise ValueError(
                    f"layout = 'auto' chooses {key}, and {json.dumps(getattr(self, key))} is "
                    "given. Leave out one of them."
                )

    def _check_zero(self) -> None:
        if self.zero not in ZEROS:
            raise ValueError(
                f"zero must be one of {', '.join(map(str, ZEROS))}, got {self.zero}. 1 shares out "
                "the states of optimizers among devices, 2 also the gradients."
            )
        if self.zero < 2:
            return
        if self.stages > 1:
            raise ValueError(
                f"zero = 2 cannot be combined with stages={self.stages}: a stage averages its "
                "gradients in one exchange. Choose zero = 1."
            )
        for option in ("adasum", "compression"):
            if self.backend_options.get(option, "none") not in ("none", False):
                raise ValueError(
                    f"zero = 2 cannot be combined with backend_options.{option}: gradients are "
                    "exchanged, and not averaged by the backend. Choose zero = 1, or leave out "
                    f"{option}."
                )

    def _check_micro_batches(self) -> None:
        if self.tiling and self.replica_tiles % self.micro_batches:
            raise ValueError(
                f"micro_batches={self.micro_batches} must divide the {self.replica_tiles} tiles "
                "that each replica takes in a step, of which each is a micro-batch. Choose a "
                "divisor of that number."
            )
        if not self.tiling and self.replica_samples % self.micro_batches:
            raise ValueError(
                f"replica_batch={self.replica_samples} cannot be cut into micro_batches="
                f"{self.micro_batches} of as many samples each. Choose a divisor of it."
            )

    def _check_tiles_of_step(self) -> None:
        if self.global_samples * self.num_tiles % self.num_replicas:
            raise ValueError(
                f"tiling = {list(self.tiling)} makes {self.global_samples * self.num_tiles} tiles "
                f"of a step's global_batch={self.global_samples} samples, which cannot be shared "
                f"out equally among num_replicas={self.num_replicas}. Choose another tiling, or a "
                "global_batch that can be divided by num_replicas."
            )

    @property
    def num_tiles(self) -> int:
        """Tiles of a sample."""
        return math.prod(self.tiling)

    @property
    def replica_tiles(self) -> int:
        """Tiles that each replica takes in an optimizer step."""
        return self.global_samples * self.num_tiles // self.num_replicas

    @property
    def num_devices(self) -> int:
        """Devices of all replicas."""
        return self.num_replicas * math.prod(self.split) * self.stages

    @property
    def replica_samples(self) -> int:
        """Samples of each replica in an optimizer step; with tiling, some may be shared."""
        return -(-self.global_samples // self.num_replicas)

    @property
    def global_samples(self) -> int:
        """Samples of all replicas in an optimizer step."""
        return self.global_batch or (self.replica_batch or 1) * self.num_replicas
