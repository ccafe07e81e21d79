"""A run whose network is in stages, each on a device of its own: pipeline parallelism.

On most backends a stage has a process, which makes the variables of this stage only. With
`mirrored` the stages are devices of one process.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import keras
import tensorflow as tf

from tfunet.backend import Backend, Exchange
from tfunet.config.run import RunConfig
from tfunet.data.pipeline import truth_of
from tfunet.learning import optimizers
from tfunet.learning.averaging import Averaging, Switch
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.own_metric import of_batches
from tfunet.machine.device import device_bytes
from tfunet.models import MODELS
from tfunet.models.initial_weights import load_initial_weights
from tfunet.models.make import make_model
from tfunet.models.symbolic import build_symbolic
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import own_part
from tfunet.parallel.losses import split_loss, split_metrics
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.network import Network as Graph
from tfunet.pipeline.network import read_network
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.part_network import part_network
from tfunet.pipeline.schedules import homes
from tfunet.record import MODEL, WEIGHTS
from tfunet.swap.arena.device_memory import in_bytes
from tfunet.training import preflight, saving
from tfunet.training.attempt import Attempt
from tfunet.training.compiled_model import batch_metrics, compile_model
from tfunet.training.local_stage import LocalStage
from tfunet.training.loss import make_loss, outputs_of
from tfunet.training.network import (
    Assembled,
    Network,
    check_can_ignore,
    on_devices,
    split_network,
)
from tfunet.training.run_data import RunData
from tfunet.training.stage_cut import Cut, check_graph, check_own_methods, find_cut
from tfunet.training.stage_variables import Elsewhere, Owned, num_slots, own_variables
from tfunet.training.staged_network import StagedNetwork
from tfunet.training.tiling import check_metrics
from tfunet.training.traced_device import alone, traced_device

# Returns the costs of a network's layers, with the loss of an output, for micro-batches of so many
# samples, measured here.
Costs = Callable[[Graph, int, Callable[[Any], tf.Tensor]], Chain]


def build_in_stages(attempt: Attempt, data: RunData, costs: Costs) -> Network:
    """Make, compile and check the model of a run, and keep what belongs to this process's stages.

    Called by all processes together. Raises ValueError for a model that would train wrongly, or
    that cannot be cut.
    """
    config = attempt.config
    made = assemble_for_stages(attempt, data)
    model = made.model
    file = saving.file_of(model, attempt.folder) if attempt.topology.is_chief else MODEL
    if file == WEIGHTS:
        attempt.say(
            f"The run keeps the model's weights, {file}: Keras cannot save the whole model."
        )
    check_graph(read_network(model), config)
    batch = data.first_windows()
    truth = truth_of(batch)
    graph, own_truth, fed = graph_of(made, batch), truth, batch
    if made.split is not None:
        attempt.say(made.split.summary())
        own = own_part(batch, made.split.group(), made.split.bounds)
        own_truth = truth_of(own)
        # With pipeline = "device", each device cuts its part from the whole sample.
        fed = batch if config.pipeline == "device" else own
    fed_tensors = (fed["image"], truth_of(fed))
    # With tiles, a tile is a micro-batch.
    fed_samples = config.micro_batches if config.tiling else config.replica_samples
    batch_bytes = fed_samples * sum(map(_sample_bytes, fed_tensors))

    def measured() -> Chain:
        rows = fed_samples // config.micro_batches
        shape = (rows, *own_truth.shape[1:])
        groups = made.groups
        with contextlib.nullcontext() if groups is None else groups.exchange.off():
            chain = costs(
                graph, rows, lambda output: made.loss(tf.zeros(shape, own_truth.dtype), output)
            )
        # A step on tiles adds up the gradients of its passes in one more copy.
        copies = (2 if data.tiles is None else 3) + num_slots(_optimizer(attempt, data))
        return replace(chain, copies=copies)

    cut = find_cut(
        attempt, graph, measured, batch_bytes=batch_bytes, memory_bytes=_memory_bytes(attempt, data)
    )

    def look(run: Callable[..., tf.Tensor]) -> preflight.Preflight:
        return preflight.inspect(
            model,
            made.loss,
            image=batch["image"].numpy()[:1],
            truth=truth.numpy()[:1],
            outputs=outputs_of(data.task),
            targets=tuple(data.task.source.targets),
            run=run,
        )

    network = put_in_stages(attempt, data, made, graph, batch, cut=cut, look=look, file=file)
    if network.stages is not None:
        attempt.say(network.stages.summary())
    return network


def assemble_for_stages(attempt: Attempt, data: RunData) -> Assembled:
    """Make and compile the model of a run, all of it, in every process.

    Raises ValueError for a model that stages do not suit.
    """
    _exchange_of(attempt.config, attempt.backend)
    loss = make_loss(data.task, data.class_weights)
    # Not in the backend's scope: its variables would be the same in all processes.
    model = _made(attempt, data)
    check_own_methods(model)
    groups, split = split_network(attempt, data, model)
    compile_model(
        model,
        _optimizer(attempt, data),
        loss=loss,
        metrics=batch_metrics(model, data.task.source, of_batches(attempt.config.metrics)),
        say=attempt.say,
    )
    if split is not None and data.tiles is None:  # Losses of tiles add up.
        split_loss(loss, split, data.task.source.num_classes)
    # Stages average their gradients before clipping, and not in the optimizer.
    as_they_are = Switch(lambda gradients: list(gradients))
    return Assembled(model=model, loss=loss, average=as_they_are, groups=groups, split=split)


def graph_of(made: Assembled, batch: dict[str, tf.Tensor]) -> Graph:
    """Return the layers of a model; where samples are split, as a device's part runs them."""
    graph = read_network(made.model)
    if made.groups is None or made.split is None:
        return graph
    own = own_part(batch, made.split.group(), made.split.bounds)
    return part_network(graph, made.split, made.groups.exchange, own["image"].shape[1:])


def put_in_stages(
    attempt: Attempt,
    data: RunData,
    made: Assembled,
    graph: Graph,
    batch: dict[str, tf.Tensor],
    *,
    cut: Cut,
    look: Callable[[Callable[..., tf.Tensor]], preflight.Preflight],
    file: str,
) -> Network:
    """Return the network cut into stages, with the variables of this process's stages only.

    `graph` has its layers, and `batch` whole windows. `look` is given a function of a forward pass
    and an image that returns the output of all stages.
    """
    config, backend, topology = attempt.config, attempt.backend, attempt.topology
    model, loss, split = made.model, made.loss, made.split
    exchange = ExchangeSwitch(_exchange_of(config, backend))
    stages: dict[int, LocalStage] = {}
    for device in topology.local_replicas:
        spans: list[tuple[float, float]] = []
        stage = OwnStage(
            graph,
            cut.begins,
            mesh=attempt.mesh,
            device=device,
            exchange=exchange,
            schedule=config.schedule,
            micro_batches=config.micro_batches,
            recompute=config.recompute,
            deferred=config.batch_norm == "deferred",
            in_order=topology.process_count > 1,
            alone=alone,
            note=partial(_note, spans),
        )
        stages[device] = LocalStage(stage=stage, spans=spans)
    names = {} if len(stages) == 1 else _devices(backend)
    owned = _owned(attempt, data, model, graph, cut.begins, names)
    if data.tiles is not None:
        check_metrics(model._compile_metrics.metrics if model._compile_metrics else ())
        for device, local in stages.items():
            with tf.device(names.get(device)):
                local.sums = [
                    tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
                    for variable in local.stage.variables
                ]
    staged = StagedNetwork(
        attempt,
        model,
        graph=graph,
        cut=cut,
        stages=stages,
        owned=owned,
        exchange=exchange,
        split=split,
        passes=config.replica_tiles // config.micro_batches if config.tiling else 1,
    )
    ignored = data.task.source.ignored
    if ignored is not None:
        check_can_ignore(config, model)
        ignore_in_loss(loss, ignored, of_regions=config.has_regions)

    def run(_: Any, image: tf.Tensor) -> tf.Tensor:
        if split is not None:
            return on_devices(backend, split)(staged.predict, image)
        return backend.run(lambda: staged.predict(image))[0]

    with Elsewhere.looking():
        checked = look(run)
        if model._compile_metrics is not None:  # Makes their variables, as `fit` does.
            model._symbolic_build(data_batch=(batch["image"], truth_of(batch)))
    if split is not None and model._compile_metrics:
        split_metrics(model._compile_metrics.metrics, split)
    staged.install(loss)
    return Network(
        model=model,
        loss=loss,
        file=file,
        average=staged.average,
        groups=made.groups,
        averaging=Averaging(average=made.average, optimizers=list(owned.optimizers.values())),
        split=split,
        stages=staged,
        held=owned.held,
        preflight=checked,
        weights=owned.weights,
        variables=owned.variables,
    )


def _optimizer(attempt: Attempt, data: RunData) -> keras.Optimizer:
    config = attempt.config
    return optimizers.make(config, config.num_replicas, data.steps_per_epoch)


def _sample_bytes(batch: tf.Tensor) -> int:
    return math.prod(batch.shape[1:]) * batch.dtype.size


def _note(spans: list[tuple[float, float]], _: str, begin: float, end: float) -> None:
    spans.append((begin, end))


def _memory_bytes(attempt: Attempt, data: RunData) -> int | None:
    """Return the memory that each stage has; None where it is not known."""
    limit = device_bytes()
    if attempt.config.swap is not None:
        limit = min(in_bytes(attempt.config.swap), limit or sys.maxsize)
    if limit is None or attempt.has_gpus:
        return limit
    if attempt.topology.process_count == 1:
        return None  # Logical CPUs share one memory.
    # A CPU that plays a device also holds the samples that are read ahead.
    return max(0, limit - data.training(0).buffered_bytes)


def _exchange_of(config: RunConfig, backend: Backend) -> Exchange:
    exchange = getattr(backend, "exchange", None)
    if exchange is None:
        raise ValueError(
            f"The backend {config.backend!r} has no method `exchange`, which stages needs. Leave "
            "out stages, or choose multiworker or horovod."
        )
    return exchange


def _made(attempt: Attempt, data: RunData) -> keras.Model:
    """Return the model; without values of its variables if it is known that nothing sets them."""
    config, task = attempt.config, data.task
    build = partial(
        make_model,
        config.model,
        image_shape=data.input_shape,
        num_classes=task.num_outputs,
        options=config.model_options,
    )
    has_values = (
        config.model not in MODELS
        or "encoder_weights" in config.model_options
        or attempt.initial_weights is not None
    )
    model = (
        build() if has_values else build_symbolic(build, precision=keras.config.dtype_policy().name)
    )
    if attempt.initial_weights is not None:
        attempt.say(load_initial_weights(model, attempt.initial_weights))
    return model


def _owned(
    attempt: Attempt,
    data: RunData,
    model: keras.Model,
    graph: Graph,
    cuts: Sequence[int],
    devices: Mapping[int, str],
) -> Owned:
    """Keep the variables of this process's stages, and build the optimizers for them.

    `devices` has the names of the devices of this process, if it has several stages.
    """
    config, topology = attempt.config, attempt.topology
    # A variable that no layer of the graph has stays with the chief.
    owners = {id(variable): 0 for variable in model.variables}
    for home, (begin, end) in zip(
        homes(config.schedule, config.stages), pairwise(cuts), strict=True
    ):
        for node in graph.nodes[begin:end]:
            owners |= {id(variable): home for variable in node.variables}
    return own_variables(
        model,
        owners,
        backend=attempt.backend,
        topology=topology,
        mesh=attempt.mesh,
        more=lambda: _optimizer(attempt, data),
        devices=devices,
    )


def _devices(backend: Backend) -> dict[int, str]:
    """Return the names of the devices of this process."""
    names: dict[int, str] = {}

    def look() -> tf.Tensor:
        number = tf.zeros(())
        names[traced_device()] = number.device
        return number

    tf.function(lambda: backend.run(look), autograph=False)()
    return names
