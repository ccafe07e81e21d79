"""A run whose network is in stages, each on a device of its own: pipeline parallelism.

On most backends a stage has a process, which makes the variables of this stage only. With
`mirrored` the stages are devices of one process.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.learning import optimizers
from tfunet.learning.averaging import Averaging, Switch
from tfunet.learning.own_metric import of_batches
from tfunet.models import MODELS
from tfunet.models.initial_weights import load_initial_weights
from tfunet.models.make import make_model
from tfunet.models.symbolic import build_symbolic
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import own_part
from tfunet.pipeline.network import NodeGraph, read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.part_network import part_network
from tfunet.state.shared import SharedUpdates
from tfunet.state.slots import granularity
from tfunet.training.attempt import Attempt
from tfunet.training.compiled_model import batch_metrics, compile_model
from tfunet.training.cut_by_costs import Costs, cut_by_costs
from tfunet.training.own_variables import Owned, own_variables, owners_of
from tfunet.training.placing import Assembled, Batch, Ready, on_devices
from tfunet.training.run_data import RunData
from tfunet.training.stage_cut import StageCut, check_graph, check_own_methods
from tfunet.training.stage_log import PassTimes, StageLog
from tfunet.training.stage_variables import looking_at_all
from tfunet.training.staged_network import StagedNetwork
from tfunet.training.traced_device import alone, names_of_devices


@final
class InStages:
    """Cuts the network, and keeps what belongs to this process's stages; see `Placing`.

    Args:
        costs: Measures its layers.
        cut: Where to cut it; found by the costs, or in the configuration, if it is not given.
    """

    def __init__(
        self, attempt: Attempt, data: RunData, costs: Costs, cut: StageCut | None = None
    ) -> None:
        self._attempt, self._data, self._costs, self._cut = attempt, data, costs, cut
        self._exchange = ExchangeSwitch(attempt.exchange("stages"))

    def scope(self) -> AbstractContextManager[Any]:
        # Not the backend's: its variables would be the same in all processes.
        return nullcontext()

    def make(self, loss: keras.Loss) -> keras.Model:
        attempt, source = self._attempt, self._data.task.source
        model = self._model()
        check_own_methods(model)
        compile_model(
            model,
            self._optimizer(),
            loss=loss,
            metrics=batch_metrics(model, source, of_batches(attempt.config.metrics), loss),
            say=attempt.say,
        )
        return model

    def place(self, made: Assembled, batch: Batch) -> "StagedModel":
        attempt, graph = self._attempt, read_network(made.model)
        check_graph(graph, attempt.config)
        own = batch
        if made.groups is not None and made.split is not None:
            own = own_part(batch, made.split.group(), made.split.bounds)
            graph = part_network(graph, made.split, made.groups.exchange, own["image"].shape[1:])
        if self._cut is None:
            self._cut = cut_by_costs(
                attempt, self._data, made, graph, batch, own, self._costs, self._optimizer
            )
        elif self._cut.begins[-1] != len(graph.nodes):
            raise ValueError("it has other layers for small samples")
        stages = {
            device: self._stage(graph, self._cut, device)
            for device in attempt.topology.local_replicas
        }
        names = {} if len(stages) == 1 else names_of_devices(attempt.backend)
        owned = own_variables(
            made.model,
            owners_of(made.model, graph, self._cut.begins, attempt.config),
            backend=attempt.backend,
            topology=attempt.topology,
            mesh=attempt.mesh,
            more=self._optimizer,
            devices=names,
            zero=attempt.config.zero,
            support=attempt.support,
        )
        sums: dict[int, list[tf.Variable]] = {device: [] for device in stages}
        if self._data.tiles is not None:
            for device, (stage, _) in stages.items():
                with tf.device(names.get(device)):
                    sums[device] = [
                        tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
                        for variable in stage.variables
                    ]
        config = attempt.config
        log = StageLog(
            attempt,
            graph=graph,
            cut=self._cut,
            stages=stages,
            owned=owned,
            sums=sums,
            passes=config.replica_tiles // config.micro_batches if config.tiling else 1,
        )
        network = StagedNetwork(
            attempt,
            made.model,
            cut=self._cut,
            stages={device: stage for device, (stage, _) in stages.items()},
            owned=owned,
            sums=sums,
            exchange=self._exchange,
            split=made.split,
            log=log,
        )
        return StagedModel(attempt, made, network, owned)

    def alike(self, attempt: Attempt, data: RunData) -> "InStages":
        return InStages(attempt, data, self._costs, self._cut)

    def _model(self) -> keras.Model:
        """Return the model; without values of its variables if it is known that nothing sets them.

        All processes make all of it.
        """
        attempt, task = self._attempt, self._data.task
        config, weights = attempt.config, attempt.initial_weights
        build = partial(
            make_model,
            config.model,
            image_shape=self._data.input_shape,
            num_classes=task.num_outputs,
            is_free=task.source.samples is not None,
            options=config.model_options,
        )
        has_values = (
            config.model not in MODELS
            or "encoder_weights" in config.model_options
            or weights is not None
        )
        if not has_values:
            return build_symbolic(build, precision=keras.config.dtype_policy().name)
        with nullcontext() if attempt.support is None else attempt.support.making():
            model = build()
        if weights is not None:
            attempt.say(load_initial_weights(model, weights))
        return model

    def _optimizer(self) -> keras.Optimizer:
        config = self._attempt.config
        return optimizers.make(config, config.num_replicas, self._data.steps_per_epoch)

    def _stage(self, graph: NodeGraph, cut: StageCut, device: int) -> tuple[OwnStage, PassTimes]:
        config, times = self._attempt.config, PassTimes()
        stage = OwnStage(
            graph,
            cut.begins,
            mesh=self._attempt.mesh,
            device=device,
            exchange=self._exchange,
            schedule=config.schedule,
            micro_batches=config.micro_batches,
            recompute=config.recompute,
            deferred=config.batch_norm == "deferred",
            in_order=self._attempt.topology.process_count > 1,
            alone=alone,
            note=times.add,
        )
        return stage, times


@final
class StagedModel:
    """A model whose layers are in stages; see `Placed`."""

    def __init__(
        self, attempt: Attempt, made: Assembled, network: StagedNetwork, owned: Owned
    ) -> None:
        self._backend, self._made = attempt.backend, made
        self._network, self._owned, self.support = network, owned, attempt.support
        if self.support is not None:
            network.plan_with([self.support])

    def run(self, _: Any, image: tf.Tensor) -> tf.Tensor:
        predict = self._network.predict
        if self.support is not None:
            predict = self.support.evaluating(predict, what="the look at the model")
        return on_devices(self._backend, self._made.split, predict, image)

    def looking(self) -> AbstractContextManager[None]:
        return looking_at_all()

    def ready(self, batch: Batch) -> Ready:
        self._network.install(self._made.loss)
        # Stages average their gradients before clipping, and not in the optimizer.
        as_they_are = Switch(lambda gradients: list(gradients))
        owned = self._owned
        return Ready(
            average=self._network.average,
            averaging=Averaging(
                average=as_they_are,
                optimizers=list(owned.optimizers.values()),
                shared=self._shared(),
            ),
            held=owned.held,
            weights=owned.weights,
            variables=owned.variables,
            stages=self._network,
        )

    def _shared(self) -> SharedUpdates | None:
        """Return what updates the weights of this process's stage, if others have it, too."""
        shared, network = self._owned.shared, self._network
        if shared is None:
            return None
        self._owned.held.share()  # What states begin with may be the weights.
        stage = network.stage()
        device = stage.group.device
        by_element = granularity(shared.inner) == "element"
        shared.place(stage.group.mesh.holders(stage.number), {device: ""}, by_element=by_element)
        return SharedUpdates(
            [shared],
            gradients=False,
            average=network.average,
            are_averages=True,
            device=lambda: device,
            swap=stage.group.swap,
        )
