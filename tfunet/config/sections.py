"""The keys of a run by subject: each section holds their defaults, checks and descriptions.

RunConfig inherits them all. A function that needs the keys of one subject takes that section.
Imports no TensorFlow.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from tfunet.config.augmentation import read_augmentation
from tfunet.config.case_metrics import EPOCH_SCORES, case_metrics
from tfunet.config.reader import convert_fields
from tfunet.config.words import check_known

OUTPUTS = ("classes", "regions")
BAD_SAMPLES = ("refuse", "skip")
PIPELINES = ("tf", "device")
RATE_SCHEDULES = ("cosine", "polynomial")
SCHEDULES = ("gpipe", "1f1b", "v")
BATCH_NORMS = ("micro_batch", "deferred")
TRACKERS = ("mlflow", "wandb")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

# What NumPy takes.
MOST_SEED = 2**32 - 1

# Metadata of every key: whether an interrupted run may change it when it goes on. It may if the
# key does not change what is computed.
FIXED = {"may_change": False}
FREE = {"may_change": True}
# Metadata of the keys that tell apart the ways of training in a report.
IS_WAY = {"is_way": True}


def fixed(default: Any, **more: bool) -> Any:
    """Return the field of a key that an interrupted run keeps when it goes on."""
    return field(default=default, metadata=FIXED | more)


def free(default: Any, **more: bool) -> Any:
    """Return the field of a key that an interrupted run may change when it goes on."""
    return field(default=default, metadata=FREE | more)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Brings its values into their types, and runs the checks of all sections that it inherits."""

    def __post_init__(self) -> None:
        for name, value in convert_fields(type(self), vars(self)).items():
            self._set(name, value)
        for section in reversed(type(self).__mro__):
            check = vars(section).get("_check")
            if check is not None:
                check(self)

    def _at_least(self, bound: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name} must be at least {bound}, got {value}.")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class ModelKeys(Section):
    """The network.

    Args:
        model: A name that `tfunet models` lists, 'package.module:build', 'file.py:build' or a
            .keras file.
        model_options: Keyword arguments for the function that builds the model.
        outputs: What the channels of the network's output stand for: "classes", whose softmax are
            the probabilities, or "regions", those of the data set, each with its own sigmoid.
        initial_weights: A .keras file, such as `model.keras` of another run. Each layer begins
            with the weights of the layer with its name and shapes in there, the others with
            random ones.
    """

    model: str = fixed("unet")
    model_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    outputs: str = fixed("classes")
    initial_weights: str | None = fixed(None)

    def _check(self) -> None:
        check_known("outputs", self.outputs, OUTPUTS)

    @property
    def has_regions(self) -> bool:
        """Whether the network has an output for each region."""
        return self.outputs == "regions"


@dataclass(frozen=True, kw_only=True)
class DataKeys(Section):
    """The data set, and the patches that are cut from its images.

    Args:
        data: The name of a built-in data set, a TOML file that describes one,
            'package.module:open' or 'file.py:open'.
        data_options: Keyword arguments for the data set.
        patch: Spatial shape of the network's input. Larger images are cropped. Smaller ones
            are padded: with zeros and the label 0, or, where the data have an ignore_label, with
            pixels that count for nothing. By default the data set chooses it.
        patches_per_case: Number of training patches drawn from each case in an epoch.
        foreground_share: Share of the training patches that are centred on a foreground voxel.
            Each class of the case is equally likely (nnU-Net uses 0.33).
    """

    data: str = fixed("cells")
    data_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    patch: tuple[int, ...] | None = fixed(None)
    patches_per_case: int = fixed(1)
    foreground_share: float = fixed(0.0)

    def _check(self) -> None:
        self._at_least(1, "patches_per_case")
        if not 0 <= self.foreground_share <= 1:
            raise ValueError(
                f"foreground_share must lie between 0 and 1, got {self.foreground_share}."
            )
        if self.patch is not None and (len(self.patch) not in (2, 3) or min(self.patch) < 1):
            raise ValueError(
                f"patch must be 2 or 3 positive sizes (height, width[, depth]), got {self.patch}."
            )


@dataclass(frozen=True, kw_only=True)
class SplitKeys(Section):
    """The cases to train with, those to validate with, and those to leave out.

    Args:
        validation_share: Share of the groups to hold out for validation. In a data set without
            groups, each case is a group.
        validation_groups: Names of the groups to hold out, instead of a share.
        folds: Number of equal parts for cross-validation, instead of a share.
        fold: The part to hold out, from 0 to `folds` - 1.
        on_bad_sample: "refuse" ends the run if the data set has defects. "skip" leaves out the
            cases that cannot be used, and records why.
        split_seed: Seed of the random choice of groups. It does not depend on `seed`, so runs
            that differ only in `seed` have the same split.
    """

    validation_share: float = fixed(0.2)
    validation_groups: tuple[str, ...] = fixed(())
    folds: int | None = fixed(None)
    fold: int = fixed(0)
    on_bad_sample: str = fixed("refuse")
    split_seed: int = fixed(0)

    def _check(self) -> None:
        check_known("on_bad_sample", self.on_bad_sample, BAD_SAMPLES)
        if not 0 < self.validation_share < 1:
            raise ValueError(
                f"validation_share must lie between 0 and 1, got {self.validation_share}."
            )
        if self.folds is None:
            if self.fold:
                raise ValueError(f"fold={self.fold} needs the number of parts. Give folds too.")
            return
        self._at_least(2, "folds")
        if self.validation_groups:
            raise ValueError(
                "validation_groups and folds exclude each other: both say what is held out. Give "
                "one of them."
            )
        if not 0 <= self.fold < self.folds:
            raise ValueError(
                f"fold must lie between 0 and {self.folds - 1} with folds={self.folds}, got "
                f"{self.fold}."
            )

    @property
    def skips_bad(self) -> bool:
        """Whether cases that cannot be used are left out."""
        return self.on_bad_sample == "skip"


@dataclass(frozen=True, kw_only=True)
class InputKeys(Section):
    """How training samples are prepared.

    Args:
        augmentation: Random changes of the training samples, by name: flips, rotation90,
            rotation, scale, shear, translation, elastic, blur, brightness, contrast, gamma,
            noise. By default flips along every axis.
        pipeline: Where training samples are augmented: "tf" on the CPU cores of the process,
            "device" inside the training step. Both give the same samples.
        cache_dir: Folder for decoded cases; `~` and $VARIABLES are expanded. By default it is
            $TFUNET_CACHE, or ~/.cache/tfunet if that is not set.
    """

    augmentation: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    pipeline: str = fixed("tf")
    cache_dir: str | None = fixed(None)

    def _check(self) -> None:
        read_augmentation(self.augmentation)
        check_known("pipeline", self.pipeline, PIPELINES)


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
            given = {
                "micro_batches": 1,
                "schedule": "1f1b",
                "balance": "time",
                "recompute": False,
                "batch_norm": "micro_batch",
            }
            for key, default in given.items():
                if getattr(self, key) != default:
                    raise ValueError(
                        f"{key} = {json.dumps(getattr(self, key))} has an effect only on a network "
                        "in stages. Give stages, or leave it out. Without stages, accumulation "
                        "cuts a batch into parts."
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
        replica_batch: Number of samples of each replica in an optimizer step (weak scaling).
        global_batch: Number of samples of all replicas together in an optimizer step (strong
            scaling).
        accumulation: Number of equal passes into which a replica's batch is cut, to save memory.
            Their gradients are averaged.
        tiling: Number of tiles along each axis of a sample, such as [8, 8]. A step then takes whole
            samples tile by tile, each with the halo that the network needs. The tiles of a step
            are shared out equally among the replicas. With stages each tile is a micro-batch; with
            split each is cut into parts.
    """

    backend: str = fixed("single", **IS_WAY)
    backend_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED | IS_WAY)
    num_replicas: int = free(1)
    split: tuple[int, ...] = free((), **IS_WAY)
    processes: int | None = free(None, **IS_WAY)
    cores_per_replica: int | None = free(None)
    share_cores: bool = free(False)
    replica_batch: int | None = free(None)
    global_batch: int | None = fixed(None)
    accumulation: int = fixed(1)
    tiling: tuple[int, ...] = fixed((), **IS_WAY)

    def _check(self) -> None:
        self._at_least(1, "num_replicas", "processes", "cores_per_replica")
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


@dataclass(frozen=True, kw_only=True)
class OptimizationKeys(Section):
    """The loss, the optimizer, and how long to train.

    Args:
        loss: A loss of tfunet, a Keras loss or 'package.module:Class'.
        loss_options: Keyword arguments for the loss.
        optimizer: The name of a Keras optimizer or 'package.module:Class'.
        optimizer_options: Keyword arguments for the optimizer.
        learning_rate: Learning rate for one replica; see `scale_learning_rate`.
        scale_learning_rate: Multiply the learning rate by the number of replicas (linear
            scaling rule, Goyal et al. 2017).
        warmup_epochs: Epochs over which the learning rate rises linearly from the one-replica
            rate to the scaled one.
        decay_epochs: Epochs at which the learning rate is multiplied by `decay_factor`.
        decay_factor: Factor of the learning rate at each of `decay_epochs`.
        learning_rate_schedule: "cosine" or "polynomial" lets the learning rate fall to 0 at the
            last step, after the warm-up, instead of `decay_epochs`.
        metrics: Metrics of whole validation cases (dice, iou, hd, hd95, assd, nsd@1mm,
            lesion_precision, lesion_recall, lesion_f1, instance_precision, instance_recall,
            instance_f1, instance_ap, panoptic_quality, instance_difference, volume_difference,
            cldice, arand, vi_split, vi_merge, and 'file.py:function' of your own), and names of
            Keras metrics, which are computed on the training batches.
        callbacks: Keras callbacks. Each is a table with `name` ('package.module:Class' or a name
            in keras.callbacks) and keyword arguments for the callback.
        encoder_frozen_epochs: Number of epochs, from the first on, in which the layer named
            "encoder" keeps its weights and its statistics.
        epochs: Number of passes over the training cases.
        steps: Number of optimizer steps, instead of `epochs`.
    """

    loss: str = fixed("dice_crossentropy")
    loss_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    optimizer: str = fixed("adam")
    optimizer_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    learning_rate: float = fixed(1e-3)
    scale_learning_rate: bool = fixed(False)
    warmup_epochs: float = fixed(0.0)
    decay_epochs: tuple[int, ...] = fixed(())
    decay_factor: float = fixed(0.1)
    learning_rate_schedule: str | None = fixed(None)
    metrics: tuple[str, ...] = fixed(())
    callbacks: tuple[dict[str, Any], ...] = fixed(())
    encoder_frozen_epochs: int = fixed(0)
    epochs: int = fixed(5)
    steps: int | None = fixed(None)

    def _check(self) -> None:
        case_metrics(self.metrics)
        for table in self.callbacks:
            if not isinstance(table.get("name"), str):
                raise ValueError(
                    f'A callback needs a name, such as {{ name = "EarlyStopping" }}, got {table}.'
                )
            if table["name"] == "BackupAndRestore":
                raise ValueError(
                    "A run resumes by itself when it is started again. Leave BackupAndRestore out."
                )
        self._at_least(1, "epochs", "steps")
        self._at_least(0, "encoder_frozen_epochs")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(
                f"learning_rate must be positive and finite, got {self.learning_rate}."
            )
        for key in ("warmup_epochs", "decay_factor"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ValueError(
                    f"{key} must not be negative or infinite, got {getattr(self, key)}."
                )
        if min(self.decay_epochs, default=0) < 0:
            raise ValueError(
                f"decay_epochs must not be negative, got {list(self.decay_epochs)}. They are "
                "counted from the first epoch on."
            )
        if self.learning_rate_schedule == "none":
            self._set("learning_rate_schedule", None)
        if self.learning_rate_schedule is not None:
            check_known("learning_rate_schedule", self.learning_rate_schedule, RATE_SCHEDULES)
            if self.decay_epochs:
                raise ValueError(
                    f"learning_rate_schedule={self.learning_rate_schedule!r} and decay_epochs "
                    "exclude each other: both lower the learning rate. Give one of them."
                )


@dataclass(frozen=True, kw_only=True)
class EvaluationKeys(Section):
    """When and how validation cases are evaluated.

    Args:
        evaluate_every: Number of epochs between evaluations. The last epoch is always evaluated.
        evaluation_halo: Width, in voxels, of the border of an evaluation window that serves only
            as context. It has an effect only on images larger than `patch`.
    """

    evaluate_every: int = fixed(1)
    evaluation_halo: int = fixed(0)

    def _check(self) -> None:
        self._at_least(1, "evaluate_every")
        self._at_least(0, "evaluation_halo")


@dataclass(frozen=True, kw_only=True)
class ArithmeticKeys(Section):
    """The seed, and the numbers that a step computes with.

    Args:
        seed: Seed of the initial weights, the order of the samples and the augmentation.
        precision: float32, mixed_bfloat16 or mixed_float16.
        xla: Compile the training step with XLA.
    """

    seed: int = fixed(0)
    precision: str = fixed("float32")
    xla: bool = fixed(False)

    def _check(self) -> None:
        check_known("precision", self.precision, PRECISIONS)
        if not 0 <= self.seed <= MOST_SEED:
            raise ValueError(f"seed must lie between 0 and {MOST_SEED}, got {self.seed}.")


@dataclass(frozen=True, kw_only=True)
class ReliabilityKeys(Section):
    """What makes a run repeatable, and lets it survive.

    Args:
        deterministic: Use only deterministic ops (slower on GPUs), and sum gradients in a fixed
            order, as every run on a CPU does.
        checkpoint_steps: Number of optimizer steps between checkpoints. A checkpoint is also
            written after every epoch.
        elastic: If a process dies or hangs, continue from the last checkpoint with the other
            processes. The global batch and the samples of every step stay the same.
        prove: Before its first step, a run that does not step as one device does (several replicas,
            split, stages, tiling, accumulation) takes a small step both ways, and ends if they
            differ. false leaves that out, and the record says so.
        hang_seconds: The run is ended, and the process that hangs is named, if a process gives no
            sign of life, or no process makes progress, for this many seconds. 0 waits forever.
    """

    deterministic: bool = fixed(False)
    checkpoint_steps: int | None = fixed(None)
    elastic: bool = free(False)
    prove: bool = free(True)
    hang_seconds: float = free(600.0)

    def _check(self) -> None:
        self._at_least(1, "checkpoint_steps")
        if not self.hang_seconds >= 0:
            raise ValueError(f"hang_seconds must not be negative, got {self.hang_seconds}.")


@dataclass(frozen=True, kw_only=True)
class ObservationKeys(Section):
    """What is measured and recorded besides training.

    Args:
        synthetic: Train every step on the first batch, to measure the speed with an infinitely
            fast input pipeline.
        time_parts: After training, also time steps that do not average gradients, and the average
            alone, so that a report can say where efficiency is lost.
        trace: Record what each process does when, for `tfunet export`.
        profile: Profile a few steps with TensorFlow, and with Horovod if it is the backend.
            Reports do not compare the times of such a run. Turns `trace` on.
        track: Trackers of experiments that follow the run: mlflow, wandb.
        epoch_score: The score of each region that the line of an epoch has: "dice" or "iou", means
            over cases; "dataset_dice" or "dataset_iou", those of all pixels together, and their
            mean.
    """

    synthetic: bool = fixed(False)
    time_parts: bool = fixed(False)
    trace: bool = free(False)
    profile: bool = fixed(False)
    track: tuple[str, ...] = free(())
    epoch_score: str = free("dice")

    def _check(self) -> None:
        check_known("epoch_score", self.epoch_score, EPOCH_SCORES)
        if self.profile:
            self._set("trace", True)
        for name in self.track:
            if name == "tensorboard":
                raise ValueError(
                    "track has no 'tensorboard'. During training, use callbacks = [{name = "
                    '"TensorBoard", log_dir = "{folder}/tensorboard"}]; afterwards, `tfunet '
                    "export RUN --to tensorboard`."
                )
            check_known("tracker", name, TRACKERS)
        if len(set(self.track)) < len(self.track):
            raise ValueError(f"track names a tracker twice: {', '.join(self.track)}.")
