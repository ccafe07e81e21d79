"""The keys of a run by subject: each section holds their defaults, checks and descriptions.

RunConfig inherits them all. A function that needs the keys of one subject takes that section.
Imports no TensorFlow.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from tfunet.config.case_metrics import EPOCH_SCORES, case_metrics
from tfunet.config.section import FIXED, Section, fixed, free
from tfunet.config.words import check_known

OUTPUTS = ("classes", "regions")
RATE_SCHEDULES = ("cosine", "polynomial")
TRACKERS = ("mlflow", "wandb")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

# What NumPy takes.
MOST_SEED = 2**32 - 1


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
            Keras metrics, which are computed on the training batches; on arrays, over all
            validation samples, too.
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
