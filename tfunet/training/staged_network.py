"""A model whose calls and steps go through stages."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.inside.of_keras import clipping_by, clipping_of, compiled_metrics, loss_tracker
from tfunet.learning.averaging import Switch
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.network import SplitNetwork
from tfunet.pipeline.own_stage import OwnStage
from tfunet.swap import LargeModelSupport
from tfunet.training.attempt import Attempt
from tfunet.training.own_variables import Owned
from tfunet.training.stage_cut import StageCut, check_swap
from tfunet.training.stage_log import StageLog
from tfunet.training.traced_device import alone, traced_device


@final
class StagedNetwork:
    """The model of a run, whose calls and steps go through the stages of all processes.

    Args:
        cut: Where each stage begins.
        stages: The stages of this process, by device.
        owned: Their variables.
        sums: Their sums of the gradients of tiles; none where samples are whole.
        exchange: Sends what crosses from stage to stage.
        split: Runs its layers on parts of samples; None where samples are whole.
        log: Notes what its steps take.
    """

    def __init__(
        self,
        attempt: Attempt,
        model: keras.Model,
        *,
        cut: StageCut,
        stages: Mapping[int, OwnStage],
        owned: Owned,
        sums: Mapping[int, Sequence[tf.Variable]],
        exchange: ExchangeSwitch,
        split: SplitNetwork | None,
        log: StageLog,
    ) -> None:
        self._attempt, self._model = attempt, model
        self.cut, self.exchange, self.log = cut, exchange, log
        self._stages, self._owned, self._sums, self._split = stages, owned, sums, split

    def plan_with(self, supports: Sequence[LargeModelSupport]) -> None:
        """Have large-model support plan this process's stage.

        Raises ValueError where it cannot.
        """
        if supports:
            check_swap(self._attempt.config)
        for support in supports:
            support.plan_stage(self._owned.variables)
        self.log.supports = supports

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
        return next(iter(self._stages.values())).average

    @property
    def _is_alone(self) -> bool:
        """Whether this process has one stage."""
        return len(self._stages) == 1

    def stage(self) -> OwnStage:
        """Return the stage of the device that is being traced."""
        return self._stages[self._device()]

    def sums(self) -> Sequence[tf.Variable]:
        """Return the sums of its gradients of tiles."""
        return self._sums[self._device()]

    def _device(self) -> int:
        return next(iter(self._stages)) if self._is_alone else traced_device()

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
                with clipping_by(optimizer, clipped):
                    optimizer.apply(*map(list, zip(*pairs, strict=True)))
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
                loss_tracker(model).update_state(value, sample_weight=num_samples / num_devices)
            if (metrics := compiled_metrics(model)) is not None:
                for truth, output in seen:
                    metrics.update_state(truth, output)
            logs = model.get_metrics_result()
        if self._is_alone:
            self.log.forecast(logs)
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
            return clipping_of(self._owned.optimizers[stage.number])
        dtype = keras.config.floatx()
        squares = [
            tf.reduce_sum(tf.cast(gradient, dtype) ** 2)
            for gradient in gradients
            if gradient is not None
        ]
        own = tf.add_n(squares) if squares else tf.zeros((), dtype)
        norm = tf.sqrt(stage.sum_over_stages(own))
        scale = limit * tf.minimum(1.0 / norm, 1.0 / limit)

        def clipped(gradient: tf.Tensor) -> tf.Tensor:
            # Otherwise TensorFlow's optimizer multiplies the scale by the learning rate first, but
            # not where gradients leave the device in between.
            return tf.ensure_shape(gradient * tf.cast(scale, gradient.dtype), gradient.shape)

        return lambda given: [*map(clipped, given)]

    def _cast(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(images, self._model.compute_dtype)


def clips(limit: float | None) -> bool:
    """Return whether Keras clips with this limit: 0 and false are off, too."""
    return limit is not None and limit > 0
