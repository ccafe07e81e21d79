"""A model whose calls and steps go through stages, and what a run tells of them."""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.config.run import RunConfig
from tfunet.graph.reader import num_bytes
from tfunet.learning.averaging import Switch
from tfunet.machine.device import watched
from tfunet.models.keras_errors import cause_line
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.network import SplitNetwork
from tfunet.pipeline.network import Network
from tfunet.pipeline.noise import draws_otherwise
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.statistics import batch_normalizations
from tfunet.process.full_memory import OF_STAGE
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.training.attempt import Attempt
from tfunet.training.local_stage import LocalStage
from tfunet.training.stage_cut import Cut
from tfunet.training.stage_forecast import forecast_bytes
from tfunet.training.stage_variables import Owned
from tfunet.training.traced_device import alone, traced_device

# Steps over which the memory of a stage is measured.
MEMORY_STEPS = 3


@final
class StagedNetwork:
    """The model of a run, whose calls and steps go through the stages of all processes.

    Args:
        graph: Its layers.
        cut: Where each stage begins.
        stages: The stages of this process, by device.
        owned: Its variables.
        exchange: Sends what crosses from stage to stage.
        split: Runs its layers on parts of samples; None where samples are whole.
        passes: How often a step runs all its micro-batches; more than once with tiles only.
    """

    def __init__(
        self,
        attempt: Attempt,
        model: keras.Model,
        *,
        graph: Network,
        cut: Cut,
        stages: Mapping[int, LocalStage],
        owned: Owned,
        exchange: ExchangeSwitch,
        split: SplitNetwork | None = None,
        passes: int = 1,
    ) -> None:
        self._attempt, self._model, self._graph = attempt, model, graph
        self.cut, self._stages, self._owned, self._split = cut, stages, owned, split
        self.exchange, self._passes = exchange, passes
        # Seconds of all steps but the first, and bytes that some of them held.
        self._step_seconds: list[float] = []
        self._step_bytes: list[int] = []
        self._left_to_watch = MEMORY_STEPS
        # What a step of this process's stage was predicted to hold when it was traced.
        self._forecast_bytes = 0
        self._is_traced = False
        self._supports: Sequence[LargeModelSupport] = ()

    def plan_with(self, supports: Sequence[LargeModelSupport]) -> None:
        """Have large-model support plan this process's stage.

        Raises ValueError where it cannot.
        """
        if supports and not self._is_alone:
            raise ValueError(
                f"The backend {self._attempt.config.backend!r} has all stages in one process, "
                "whose large-model support would plan them as one. Leave out swap or stages, or "
                "choose multiworker or horovod."
            )
        if supports and self._split is not None:
            raise ValueError(
                "Large-model support makes no plans of stages whose samples are split. Leave out "
                "LargeModelSupport, split or stages."
            )
        for support in supports:
            support.plan_stage(self._owned.variables)
        self._supports = supports

    def install(self, loss: keras.Loss) -> None:
        """Make the model's calls and steps run in stages."""

        def call(inputs: Any, training: Any = None, **_: Any) -> Any:
            return self.predict(inputs)

        # Keras sees no layer or variable in a function, so that a saved model knows nothing of it.
        object.__setattr__(self._model, "call", call)
        object.__setattr__(self._model, "train_step", partial(self._train_step, loss))
        self._model.input_spec = None

    def predict(self, images: tf.Tensor) -> tf.Tensor:
        """Return the model's output, without training, on all stages; called on the device."""
        return self.stage().predict(self._cast(images))

    def evaluate(
        self, batch: dict[str, tf.Tensor], use: Callable[..., Any], others: Callable[[], Any]
    ) -> Any:
        """Return what `OwnStage.evaluate` does; called on the device."""
        return self.stage().evaluate({**batch, "image": self._cast(batch["image"])}, use, others)

    @property
    def shares_metrics(self) -> bool:
        """Whether the devices of this process update the same metrics."""
        return not self._is_alone

    @property
    def average(self) -> Switch:
        """Averages gradients over devices; one process has several stages, or averages nothing."""
        return next(iter(self._stages.values())).stage.average

    @property
    def _is_alone(self) -> bool:
        """Whether this process has one stage."""
        return len(self._stages) == 1

    def stage(self) -> OwnStage:
        """Return the stage of the device that is being traced."""
        return self._local().stage

    def sums(self) -> list[tf.Variable]:
        """Return the sums of its gradients of tiles."""
        return self._local().sums

    def _local(self) -> LocalStage:
        if self._is_alone:
            (local,) = self._stages.values()
            return local
        return self._stages[traced_device()]

    def _train_step(
        self, loss: keras.Loss, data: tuple[tf.Tensor, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        images, truth = data
        stage = self.stage()
        took_over = self._owned.common_state(stage.number)
        with self.traced_step():
            value, gradients, output = stage.train(self._cast(images), truth, loss)
        self.update(gradients, took_over)
        seen = [] if output is None else [(truth, output)]
        return self.counted_logs(value, images.shape[0], seen)

    def passes(
        self,
        images: tf.Tensor,
        truth: Any,
        loss: Callable[[Any, tf.Tensor], tf.Tensor],
        *,
        times: int,
    ) -> tuple[tf.Tensor, list[tf.Tensor | None], list[tf.Tensor]]:
        """Return what `OwnStage.passes` does; a step does this so many times."""
        with self.traced_step(times):
            return self.stage().passes(self._cast(images), truth, loss)

    @contextlib.contextmanager
    def traced_step(self, times: int = 1) -> Iterator[None]:
        """Count what the trace of a step in the block exchanges; a step does it so many times."""
        of_parts = (
            contextlib.nullcontext() if self._split is None else self._split.traced_step(times)
        )
        with of_parts, self.stage().group.traffic.of_step(times):
            yield

    def common_states(self) -> dict[int, list[tuple[Any, tf.Tensor]]]:
        """Return `Owned.common_state` of each stage of this process."""
        return {number: self._owned.common_state(number) for number in self._owned.optimizers}

    def update(
        self,
        gradients: Sequence[tf.Tensor | None],
        took_over: Sequence[tuple[Any, tf.Tensor]],
    ) -> None:
        """Update this stage's weights by their averaged gradients.

        `took_over` is its `Owned.common_state`, which was read before any stage changed it.
        """
        stage = self.stage()
        optimizer = self._owned.optimizers[stage.number]
        clipped = self._clipping(stage, gradients, optimizer.global_clipnorm)
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(gradients, stage.variables, strict=True)
            if gradient is not None
        ]
        with alone():
            for state, common in took_over:
                state.assign(common)
            if pairs:
                # Keras would clip by the norm of this stage.
                object.__setattr__(optimizer, "_clip_gradients", clipped)
                optimizer.apply(*map(list, zip(*pairs, strict=True)))
                object.__delattr__(optimizer, "_clip_gradients")
            else:  # Keras would count no step.
                optimizer.iterations.assign_add(1)

    def counted_logs(
        self,
        value: tf.Tensor,
        num_samples: int,
        seen: Sequence[tuple[tf.Tensor, tf.Tensor]],
    ) -> dict[str, tf.Tensor]:
        """Count the loss of some samples, and return the running means.

        `seen` has truths and outputs, in the last stage.
        """
        stage, model = self.stage(), self._model
        with alone():
            # All devices together count a sample once, so that an epoch may go on on more of them.
            # The stages of one process share the metrics.
            if self._is_alone or stage.is_last:
                num_devices = self._attempt.mesh.parts if self._is_alone else 1
                model._loss_tracker.update_state(value, sample_weight=num_samples / num_devices)
            if model._compile_metrics is not None:
                for truth, output in seen:
                    model._compile_metrics.update_state(truth, output)
            logs = model.get_metrics_result()
        if self._is_alone:
            if not self._forecast_bytes and not tf.executing_eagerly():
                variables = [*self._owned.variables, *self.sums()]
                sizes = [
                    num_bytes(tf.TensorSpec(variable.shape, variable.dtype))
                    for variable in variables
                ]
                self._forecast_bytes = sum(sizes) + forecast_bytes([*logs.values()], sizes)
            return logs
        own = tf.stack([tf.cast(value, keras.config.floatx()) for value in logs.values()])
        of_last = stage.crossing.of_last(
            own if stage.is_last else None, own.shape.as_list(), own.dtype
        )
        return dict(zip(logs, tf.unstack(of_last), strict=True))

    def _clipping(
        self, stage: OwnStage, gradients: Sequence[tf.Tensor | None], limit: float | None
    ) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
        """Return what clips a stage's gradients as Keras does, by the norm over all stages."""
        if limit is None or not clips(limit):
            return self._owned.optimizers[stage.number]._clip_gradients
        dtype = keras.config.floatx()
        squares = [
            tf.reduce_sum(tf.cast(gradient, dtype) ** 2)
            for gradient in gradients
            if gradient is not None
        ]
        own = tf.add_n(squares) if squares else tf.zeros((), dtype)
        norm = tf.sqrt(stage.sum_over_stages(own))
        scale = limit * tf.minimum(1.0 / norm, 1.0 / limit)
        return lambda given: [gradient * tf.cast(scale, gradient.dtype) for gradient in given]

    def _cast(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(images, self._model.compute_dtype)

    def watching(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the step, whose errors name this stage; the memory of a few calls is measured."""

        def watched_step(batches: Any) -> Any:
            try:
                if not self._is_alone or not self._is_traced or not self._left_to_watch:
                    return step(batches)
                self._left_to_watch -= 1
                with watched() as held_bytes:
                    output = step(batches)
                    output["logs"]["loss"].numpy()  # Waits for the device.
                self._step_bytes += held_bytes
                return output
            except Exception as error:
                if self._is_alone:
                    # The last line of a process's output is the reason that its run tells.
                    error.add_note(f"{self._name()} failed: {_last_line(error)}")
                raise

        return watched_step

    def _name(self) -> str:
        stage, names = self.stage(), [node.name for node in self._graph.nodes]
        begins = self.cut.begins
        parts = [
            f"{names[begins[chunk]]} to {names[begins[chunk + 1] - 1]}"
            for chunk, home in enumerate(stage.homes)
            if home == stage.number
        ]
        count = self._attempt.config.stages
        name = f"{OF_STAGE}{stage.number + 1} of {count} ({', '.join(parts)})"
        if self._split is None:
            return name
        mesh = self._attempt.mesh
        return f"{name} with part {stage.group.part + 1} of {mesh.sample_parts} of a sample"

    def note(self, seconds: float) -> None:
        """Note the seconds of a step of training."""
        if self._is_traced:
            self._step_seconds.append(seconds)
        for local in self._stages.values():
            local.note(counts=self._is_traced)
        self._is_traced = True

    def note_alone(self, step: Callable[[], float]) -> float:
        """Return what a step returns in which nothing is exchanged, and note its passes."""
        for local in self._stages.values():
            local.spans.clear()
        seconds = step()
        for local in self._stages.values():
            seconds_each = [end - begin for begin, end in local.spans]
            size = len(seconds_each) // self._passes
            local.alone_seconds += [
                seconds_each[at : at + size] for at in range(0, len(seconds_each), size)
            ]
            local.spans.clear()
        return seconds

    def bubble_seconds(self) -> float:
        """Return how long stages wait for each other in a step, as far as messages take no time.

        This follows from their passes in steps that exchange nothing. Called by all processes
        together.
        """
        any_stage = next(iter(self._stages.values())).stage
        table = np.zeros((self._attempt.mesh.num_devices, len(any_stage.orders[0])))
        for device, local in self._stages.items():
            table[device] = np.median(local.alone_seconds, axis=0)
        seconds = any_stage.bubble_seconds(self._attempt.backend.sum(table).tolist())
        return self._passes * seconds

    def _first_layers(self) -> list[str]:
        return [self._graph.nodes[begin].name for begin in self.cut.begins[:-1]]

    def _plans(self) -> list[tuple[Plan, int]]:
        """Return the plans of a step that give tensors up, and the bytes of each step."""
        first = [
            (support.plans[0], support.stage_bytes[0])
            for support in self._supports
            if support.plans
        ]
        return [(plan, num_bytes) for plan, num_bytes in first if plan.gives_up]

    def summary(self) -> str:
        """Return in a line how the network is cut."""
        config = self._attempt.config
        recomputed = ", recomputed" if config.recompute else ""
        return (
            f"Stages: {config.stages}, beginning with {', '.join(self._first_layers())}; "
            f"micro_batches {config.micro_batches}, schedule {config.schedule}{recomputed}."
        )

    def record(self) -> dict[str, Any]:
        """Return what result.json says of the stages; called by all processes together."""
        config, mesh = self._attempt.config, self._attempt.mesh
        table = np.zeros((mesh.num_devices, 5))
        swapped = np.zeros((mesh.num_devices, 2))
        for device, local in self._stages.items():
            busy, size = local.busy_seconds, self._owned.num_bytes(local.stage.number)
            held = (
                size + local.sum_bytes + statistics.median(self._step_bytes)
                if self._step_bytes
                else 0
            )
            traffic = local.stage.group.traffic.num_bytes
            forecast = self._forecast_bytes
            for plan, planned_bytes in self._plans():
                forecast = size + planned_bytes
                swapped[device] = plan.count("swap"), plan.count("recompute")
            own = [statistics.median(busy) if busy else 0.0, size, traffic, held]
            table[device] = [*own, forecast]
        table = self._attempt.backend.sum(table)
        swapped = self._attempt.backend.sum(swapped).astype(int)
        step = statistics.median(self._step_seconds) if self._step_seconds else None
        any_stage = next(iter(self._stages.values())).stage
        layers = [layer for node in any_stage.layers for layer in node.layers]
        seconds = self.cut.seconds
        return {
            "stages": config.stages,
            "micro_batches": config.micro_batches,
            "schedule": config.schedule,
            "recompute": config.recompute,
            "first_layers": self._first_layers(),
            "stage_seconds": table[:, 0].tolist() if step else None,
            "predicted_stage_seconds": None
            if seconds is None
            else [duration * config.micro_batches * self._passes for duration in seconds],
            "bubble": 1 - float(table[:, 0].mean()) / step if step else None,
            "variable_bytes": table[:, 1].astype(int).tolist(),
            "stage_bytes": table[:, 3].astype(int).tolist() if table[:, 3].all() else None,
            "predicted_stage_bytes": table[:, 4].astype(int).tolist()
            if table[:, 4].all()
            else self.cut.num_bytes,
            "traced_sent_bytes": table[:, 2].astype(int).tolist(),
            "swapped_tensors": swapped[:, 0].tolist(),
            "recomputed_tensors": swapped[:, 1].tolist(),
            "batch_normalization": batch_norm_of(config, layers),
            "random_layers": [layer.name for layer in layers if draws_otherwise(layer)],
        }


def _last_line(error: Exception) -> str:
    """Return what went wrong, from the text of TensorFlow or Keras."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if line and not line.startswith(("[[", "File", "Detected"))]
    return named[-1] if isinstance(error, tf.errors.OpError) and named else cause_line(error)


def clips(limit: float | None) -> bool:
    """Return whether Keras clips with this limit: 0 and false are off, too."""
    return limit is not None and limit > 0


def batch_norm_of(config: RunConfig, layers: Sequence[Any]) -> str | None:
    """Return of what batch normalisation takes its statistics; None without such layers."""
    if not batch_normalizations(layers):
        return None
    if config.micro_batches == 1 and not config.tiling:
        return "whole batch"
    return "deferred" if config.batch_norm == "deferred" else "each micro-batch"
