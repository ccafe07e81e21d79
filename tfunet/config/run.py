"""What one run does: a frozen dataclass, checked when made. Imports no TensorFlow."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tfunet.config import amount, compression
from tfunet.config.amount import whole_mib
from tfunet.config.augmentation import check_kinds, read_augmentation
from tfunet.config.refs import near_match

SCHEMA_VERSION = 1
BAD_SAMPLES = ("refuse", "skip")
PIPELINES = ("tf", "device", "dali")
# What large-model support may use; the first one asks for it.
SWAP_KEYS = ("swap", "swap_host", "swap_disk", "swap_disk_size", "swap_compression")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, fully described. Two runs with equal fields compute the same thing.

    Args:
        model: A name from `tfunet models`, 'package.module:build', 'file.py:build' or a
            .keras file.
        model_options: Keyword arguments of the model's builder.
        data: A name from the table of data sets, a TOML file that describes one,
            'package.module:open' or 'file.py:open'.
        data_options: Keyword arguments of the data set.
        patch: Spatial shape that the network sees; larger images are cropped, smaller padded.
            By default the data set's own.
        patches_per_case: Training patches drawn from each case in an epoch.
        foreground_share: Share of these patches that is centred on a voxel of a foreground class,
            each class of the case being equally likely (nnU-Net: 0.33).
        validation_share: Share of the groups (cases, where there are none) held out.
        validation_groups: The groups to hold out, by name, instead of a share.
        folds: Cut the groups into so many equal parts instead, for cross-validation.
        fold: The part to hold out, from 0 to `folds` - 1.
        on_bad_sample: "refuse" to train with a data set that has defects, or "skip" the cases
            that cannot be used, and record which.
        split_seed: Draws the groups that a share or a fold holds out; runs that differ only in
            `seed` have the same split.
        augmentation: Random changes of the training samples, by name: flips, rotation90,
            rotation, scale, shear, translation, elastic, blur, brightness, contrast, gamma,
            noise. By default flips along every axis.
        pipeline: What augments the training samples: "tf", on the cores of the process,
            "device", inside the step, or "dali" (NVIDIA DALI, on the GPU where there is one).
            Samples, crops and amounts are the same.
        cache_dir: Folder for decoded cases. By default $TFUNET_CACHE, else ~/.cache/tfunet.
        backend: single, mirrored, multiworker, horovod, or 'package.module:Class'.
        backend_options: Tunables of the backend.
        num_replicas: Model replicas over all processes.
        processes: Processes to start. By default what the backend needs.
        cores_per_replica: CPU cores for each replica. By default an equal share of all.
        replica_batch: Samples per replica and optimizer step (weak scaling).
        global_batch: Samples of all replicas per optimizer step (strong scaling).
        accumulation: Passes into which a replica's batch is cut, their gradients averaged.
        loss: A name from the table of losses, a Keras loss or 'package.module:Class'.
        loss_options: Keyword arguments of the loss.
        optimizer: A Keras optimizer's name or 'package.module:Class'.
        optimizer_options: Keyword arguments of the optimizer.
        learning_rate: For one replica; see `scale_learning_rate`.
        scale_learning_rate: Multiply the learning rate by the number of replicas (linear
            scaling rule, Goyal et al. 2017).
        warmup_epochs: Epochs over which the rate rises linearly from the one-replica rate to
            the scaled one.
        decay_epochs: Epochs at which the rate is multiplied by `decay_factor`.
        decay_factor: See `decay_epochs`.
        metrics: Keras metrics computed on the training batches.
        callbacks: Keras callbacks: tables with `name` ('package.module:Class' or a name in
            keras.callbacks) and its keyword arguments.
        epochs: Passes over the training cases.
        steps: Optimizer steps instead of `epochs`.
        evaluate_every: Epochs between evaluations; the last epoch is always evaluated.
        evaluation_halo: Voxels at each border of an evaluation window that only give context,
            for images larger than `patch`.
        seed: Of the weights, the order of the samples and the augmentation.
        precision: float32, mixed_bfloat16 or mixed_float16.
        xla: Compile the step with XLA.
        swap: Device memory that a replica may use: "auto" (what the device has), "12GiB", or a
            share, "0.5"; tensors that do not fit are moved to host memory or computed again.
            "none", the default, is no limit of ours.
        swap_host: Host memory for the swapped tensors of each process, "64GiB". By default there
            is no limit.
        swap_disk: Folder for swapped tensors beyond `swap_host`, on a disk of each machine; they
            are gone with the process. `~` and `$VARIABLES` are those of each process.
        swap_disk_size: What each process may take there, "500GiB". By default there is no limit,
            and a disk without room ends the run before its first step.
        cpu_memory: What TensorFlow may take of a CPU's memory in each process, "400MiB": the CPU
            then plays a device that is too small, for trying large-model support without one. By
            default there is no cap.
        swap_compression: "bfloat16" rounds swapped tensors to 16 bits: they take half of host
            memory, disk and copies, and losses and weights are not those without support. "none",
            the default, swaps them as they are.
        deterministic: Use only deterministic ops (slower on GPUs), and add gradients up in one
            order.
        checkpoint_steps: Optimizer steps between checkpoints; one is also written after every
            epoch.
        synthetic: Feed the first batch again and again: the bound of what any pipeline can do.
        elastic: Go on from the last checkpoint with the processes that are left, when one is killed
            or hangs; the global batch stays, and so do the samples of every step.
        hang_seconds: A run is ended, and what hangs is named, when a process has given no sign for
            so long, or all wait for so long; 0 waits for ever.
        time_parts: After the run, also time steps that do not average gradients, and that average
            alone, so that a report can say where efficiency is lost.
        trace: Record what each process did when, for `tfunet export`.
        profile: Also have TensorFlow, and Horovod, profile a few steps; such a run's times are
            not compared with others.
    """

    model: str = "unet"
    model_options: dict[str, Any] = field(default_factory=dict)
    data: str = "cells"
    data_options: dict[str, Any] = field(default_factory=dict)
    patch: tuple[int, ...] | None = None
    patches_per_case: int = 1
    foreground_share: float = 0.0
    validation_share: float = 0.2
    validation_groups: tuple[str, ...] = ()
    folds: int | None = None
    fold: int = 0
    on_bad_sample: str = "refuse"
    split_seed: int = 0
    augmentation: dict[str, Any] = field(default_factory=dict)
    pipeline: str = "tf"
    cache_dir: str | None = None
    backend: str = "single"
    backend_options: dict[str, Any] = field(default_factory=dict)
    num_replicas: int = 1
    processes: int | None = None
    cores_per_replica: int | None = None
    replica_batch: int | None = None
    global_batch: int | None = None
    accumulation: int = 1
    loss: str = "dice_crossentropy"
    loss_options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adam"
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    learning_rate: float = 1e-3
    scale_learning_rate: bool = False
    warmup_epochs: float = 0.0
    decay_epochs: tuple[int, ...] = ()
    decay_factor: float = 0.1
    metrics: tuple[str, ...] = ()
    callbacks: tuple[dict[str, Any], ...] = ()
    epochs: int = 5
    steps: int | None = None
    evaluate_every: int = 1
    evaluation_halo: int = 0
    seed: int = 0
    precision: str = "float32"
    xla: bool = False
    swap: str | None = None
    swap_host: str | None = None
    swap_disk: str | None = None
    swap_disk_size: str | None = None
    cpu_memory: str | None = None
    swap_compression: str | None = None
    deterministic: bool = False
    checkpoint_steps: int | None = None
    elastic: bool = False
    hang_seconds: float = 600.0
    synthetic: bool = False
    time_parts: bool = False
    trace: bool = False
    profile: bool = False

    def __post_init__(self) -> None:
        for name in ("num_replicas", "accumulation", "epochs", "patches_per_case"):
            _at_least(name, getattr(self, name), 1)
        for name in ("processes", "cores_per_replica", "replica_batch", "global_batch", "steps"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        _at_least("evaluate_every", self.evaluate_every, 1)
        _at_least("evaluation_halo", self.evaluation_halo, 0)
        if self.checkpoint_steps is not None:
            _at_least("checkpoint_steps", self.checkpoint_steps, 1)
        if not 0 <= self.foreground_share <= 1:
            raise ValueError(
                f"foreground_share must lie between 0 and 1, got {self.foreground_share}."
            )
        if not 0 < self.validation_share < 1:
            raise ValueError(
                f"validation_share must lie between 0 and 1, got {self.validation_share}."
            )
        if self.on_bad_sample not in BAD_SAMPLES:
            raise ValueError(
                f"Unknown on_bad_sample {self.on_bad_sample!r}. Known: {', '.join(BAD_SAMPLES)}."
            )
        self._check_folds()
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}.")
        if self.hang_seconds < 0:
            raise ValueError(f"hang_seconds must not be negative, got {self.hang_seconds}.")
        if self.warmup_epochs < 0:
            raise ValueError(f"warmup_epochs must not be negative, got {self.warmup_epochs}.")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"Unknown precision {self.precision!r}. Known: {', '.join(PRECISIONS)}."
            )
        if self.patch is not None and (len(self.patch) not in (2, 3) or min(self.patch) < 1):
            raise ValueError(
                f"patch must be 2 or 3 positive sizes (height, width[, depth]), got {self.patch}."
            )
        if self.profile:
            object.__setattr__(self, "trace", True)
        self._check_swap()
        if self.cpu_memory is not None:
            whole_mib(self.cpu_memory)
        if self.elastic and self.scale_learning_rate:
            raise ValueError(
                "elastic changes the number of replicas, by which scale_learning_rate multiplies "
                "the learning rate. Give learning_rate for the global batch instead."
            )
        augmentation = read_augmentation(self.augmentation)
        if self.pipeline not in PIPELINES:
            raise ValueError(
                f"Unknown pipeline {self.pipeline!r}.{near_match(self.pipeline, PIPELINES)} "
                f"Known: {', '.join(PIPELINES)}."
            )
        if self.pipeline == "dali":
            check_kinds(augmentation)
        self._check_batch()

    def _check_swap(self) -> None:
        if self.swap == "none":
            # Also the rest: in a grid with and without support, the latter are runs like any other.
            for name in SWAP_KEYS:
                object.__setattr__(self, name, None)
        if self.swap_compression == "none":
            object.__setattr__(self, "swap_compression", None)
        for name in SWAP_KEYS[1:]:
            if getattr(self, name) is not None and self.swap is None:
                raise ValueError(f"{name} is for swapped tensors: give swap too, such as 'auto'.")
        for name in ("swap_host", "swap_disk_size"):
            if getattr(self, name) is not None:
                amount.in_bytes(name, getattr(self, name))
        if self.swap_disk is not None and self.swap_host is None:
            raise ValueError(
                "swap_disk is for tensors beyond swap_host, and there is none. Give swap_host too, "
                "such as '64GiB', or '0' to have all that is swapped on disk."
            )
        if self.swap_disk == "":
            raise ValueError("swap_disk is an empty name. Write '.' for the current folder.")
        if self.swap_disk_size is not None and self.swap_disk is None:
            raise ValueError("swap_disk_size is of no disk. Give swap_disk, a folder, too.")
        compression.check("swap_compression", self.swap_compression)
        if self.swap is not None:
            amount.parse(self.swap)
        if self.swap is not None and self.xla:
            raise ValueError(
                "swap cannot move tensors out of a step that XLA compiles as a whole: leave out "
                "swap or xla."
            )

    def _check_folds(self) -> None:
        if self.folds is None:
            if self.fold:
                raise ValueError(f"fold={self.fold} is one of how many? Give folds too.")
            return
        _at_least("folds", self.folds, 2)
        if self.validation_groups:
            raise ValueError("validation_groups and folds both say what is held out: give one.")
        if not 0 <= self.fold < self.folds:
            raise ValueError(
                f"fold must lie between 0 and {self.folds - 1}, the last of folds={self.folds}; "
                f"got {self.fold}."
            )

    def _check_batch(self) -> None:
        if self.replica_batch is None and self.global_batch is None:
            object.__setattr__(self, "replica_batch", 4)
        if self.global_batch is None:
            object.__setattr__(self, "global_batch", (self.replica_batch or 1) * self.num_replicas)
        elif self.global_batch % self.num_replicas:
            raise ValueError(
                f"global_batch={self.global_batch} cannot be divided by num_replicas="
                f"{self.num_replicas}. Choose a multiple, or give replica_batch instead."
            )
        share = (self.global_batch or 1) // self.num_replicas
        if self.replica_batch is None:
            object.__setattr__(self, "replica_batch", share)
        elif self.replica_batch != share:
            raise ValueError(
                f"replica_batch={self.replica_batch} x num_replicas={self.num_replicas} is not "
                f"global_batch={self.global_batch}. Give one of the two."
            )
        if share % self.accumulation:
            raise ValueError(
                f"replica_batch={share} cannot be cut into accumulation={self.accumulation} "
                "equal passes. Choose a divisor of it."
            )

    @property
    def skips_bad(self) -> bool:
        """Whether cases that cannot be used are left out."""
        return self.on_bad_sample == "skip"

    @property
    def replica_samples(self) -> int:
        """Samples per replica and optimizer step."""
        return self.global_samples // self.num_replicas

    @property
    def global_samples(self) -> int:
        """Samples of all replicas per optimizer step."""
        return self.global_batch or (self.replica_batch or 1) * self.num_replicas

    def to_json(self) -> str:
        """Return the fully resolved configuration as JSON."""
        return json.dumps(asdict(self), indent=1)


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an earlier record as they are written now."""
    now = dict(values)
    if "flips" in now:
        now["augmentation"] = {"flips": now.pop("flips")}
    return now


def from_json(text: str) -> RunConfig:
    """Return the configuration that `RunConfig.to_json` wrote."""
    values = upgraded(json.loads(text))
    for one in fields(RunConfig):
        if isinstance(values.get(one.name), list):
            values[one.name] = tuple(values[one.name])
    return RunConfig(**values)


def _at_least(name: str, value: int, bound: int) -> None:
    if value < bound:
        raise ValueError(f"{name} must be at least {bound}, got {value}.")
