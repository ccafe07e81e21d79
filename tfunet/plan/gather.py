"""Gathers what is known of a run from its traced network; nothing is trained or allocated."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tfunet.config.run import RunConfig
from tfunet.data.class_weights import class_weights
from tfunet.data.pipeline import PREFETCHED_BATCHES, TrainingPipeline
from tfunet.data.split import split_of
from tfunet.data.task import Task, open_task
from tfunet.geometry.kinds import kind_of
from tfunet.geometry.reach import Reach, upsampling_reach
from tfunet.geometry.receptive_field import window_reach
from tfunet.learning import optimizers
from tfunet.machine.cores import usable_cores
from tfunet.parallel.rules import (
    average_pooled,
    convolved,
    global_average,
    global_maximum,
    max_pooled,
    merges,
    normalized,
    pointwise,
    rule_of,
    transposed,
    upsampled,
)
from tfunet.performance.devices import BYTES_SHARE, OP_START_SECONDS, Device, described
from tfunet.performance.layer_costs import layer_costs
from tfunet.performance.traced_step import TracedStep, traced_step
from tfunet.pipeline.chain import Chain, ChainLayer, Variable
from tfunet.pipeline.network import Node, NodeGraph, read_network
from tfunet.plan.facts import Border, RunFacts, Update, sample_counts
from tfunet.plan.layout import Layout
from tfunet.swap.plan.schedule import memory, schedule
from tfunet.training.loss import make_loss
from tfunet.training.own_variables import num_slots
from tfunet.training.stage_cut import check_own_methods
from tfunet.training.tiling import check_loss, check_model, halo_of, inexact_layers, network_for

# A core crops, augments and stacks a number of a sample in about so long.
SECONDS_A_NUMBER = 15e-9
NO_SPLIT = (
    "The layers of the model cannot be listed, so that it is not predicted what parts of a sample "
    "exchange. A run with split may work all the same."
)
# Where it is measured, at least and at most so many batches are prepared, for so long.
LEAST_BATCHES, MOST_BATCHES, PREPARING_SECONDS = 4, 2**17, 1.0
# Ops of an optimizer for each weight: as many, and so many more for each state that it keeps.
UPDATE_OPS, UPDATE_OPS_A_STATE = 3, 5
# Tensors that such an op reads or makes.
UPDATE_TENSORS = 3
# A row of each part where what layers need of others is looked at: pooled without rest.
ROW = 48

# Returns the costs of a network's layers for so many samples at once.
Costs = Callable[[NodeGraph, int, Callable[[Any], tf.Tensor] | None], Chain]


def gather(
    config: RunConfig,
    device: Device,
    *,
    task: Task | None = None,
    measured: Mapping[int, Costs] | None = None,
    sample_seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> RunFacts:
    """Return what is known of a run.

    Args:
        device: For which times are predicted, unless they are measured.
        task: The run's, if it is open.
        measured: Measures costs on devices of so many cores.
        sample_seconds: Seconds in which a core prepares a sample, if they are measured.
        say: Is told what is being done.

    Raises ValueError for a run that cannot be traced.
    """
    task = task or open_task(config)
    source = task.source
    source.check_images("a plan")
    sizes = sample_counts(config.global_samples)
    loss = _loss(task)
    model = network_for(task, task.patch)
    why_no_stages, graph = "", None
    try:
        check_own_methods(model)
        graph = read_network(model)
    except ValueError as error:
        why_no_stages = str(error)
    costs: dict[int, list[tuple[int, Chain]]] = {}
    if graph is None:
        say("tracing a step")
        steps = [traced_step(_alone(config, samples), task) for samples in sizes]
        costs[0] = [(step.samples, _one_layer(step, device)) for step in steps]
    else:
        ways = measured or {0: partial(_described_costs, device)}
        for cores, way in ways.items():
            say("tracing layers" if not measured else f"measuring layers on {cores or 'a'} core(s)")
            costs[cores] = [(samples, way(graph, samples, loss(samples))) for samples in sizes]
    slots = num_slots(optimizers.make(config, 1, 1))
    halo, steps_of_tiles, why_no_tiles = _tiles(task, model)
    spatial = len(task.patch)
    return RunFacts(
        model=config.model,
        patch=task.patch,
        tiled_patch=source.chosen_patch(config.patch, is_tiled=True),
        sample_bytes=math.prod(task.patch) * (4 * source.channels + 1),
        sample_seconds=math.prod(task.patch) * source.channels * SECONDS_A_NUMBER
        if sample_seconds is None
        else sample_seconds,
        num_samples=len(split_of(config, source).train) * config.patches_per_case,
        global_samples=config.global_samples,
        costs=costs,
        update=Update(slots, update_seconds(model, slots, device), config.zero),
        borders=() if graph is None else tuple(_borders(graph, spatial)),
        halo=halo,
        alignment=steps_of_tiles,
        why_no_tiles=why_no_tiles,
        why_no_stages=why_no_stages,
        why_no_split=NO_SPLIT if graph is None else "",
        by_batch=tuple(
            layer.name
            for layer in getattr(model, "operations", ())
            if isinstance(layer, layers.BatchNormalization)
        ),
        graph=graph,
        costs_from="measured" if measured else device.source,
    )


def measured_layers(config: RunConfig, samples: Sequence[int]) -> list[dict[str, Any]]:
    """Return for each number of samples what each layer of a run's network takes here.

    A row has the seconds of the forward and the backward pass, and the bytes that the layer keeps
    and works in. Raises ValueError for a network whose layers cannot be listed.
    """
    task = open_task(config)
    loss = _loss(task)
    graph = read_network(network_for(task, task.patch))
    chains = [layer_costs(graph, count, None, loss(count)) for count in samples]
    return [
        {
            "samples": count,
            "layers": [
                [one.forward_seconds, one.backward_seconds, one.kept_bytes, one.working_bytes]
                for one in chain.layers
            ],
        }
        for count, chain in zip(samples, chains, strict=True)
    ]


def measured_sample_seconds(config: RunConfig) -> float:
    """Return the seconds in which a core prepares a training sample of a run, once it is decoded.

    All cores of this process prepare samples, and nothing else.
    """
    task = open_task(config)
    pipeline = TrainingPipeline(
        cases=task.decode(store=config.store, whole=False),
        train=split_of(config, task.source).train,
        last_step=MOST_BATCHES,
        replica_batch=config.global_samples,
        patches_per_case=config.patches_per_case,
        foreground_share=config.foreground_share,
        augmentation=task.augmentation(),
        augmented_by=config.pipeline,
        encoded=task.encoded(),
    )
    batches = iter(pipeline(range(1)))
    # Some are ready as soon as the first is.
    for _ in range(PREFETCHED_BATCHES + 1):
        next(batches)
    begin, count = time.perf_counter(), 0
    while count < LEAST_BATCHES or time.perf_counter() - begin < PREPARING_SECONDS:
        next(batches)
        count += 1
    seconds = time.perf_counter() - begin
    return seconds * len(usable_cores()) / (count * config.global_samples)


def as_measured(device: Device, tables: Sequence[Mapping[str, Any]]) -> Costs:
    """Return what gives the costs that `measured_layers` found."""

    def costs(graph: NodeGraph, samples: int, loss: Callable[[Any], tf.Tensor] | None) -> Chain:
        chain = layer_costs(graph, samples, device, loss)
        (rows,) = (table["layers"] for table in tables if table["samples"] == samples)
        return replace(
            chain,
            layers=tuple(
                replace(
                    layer,
                    forward_seconds=forward,
                    backward_seconds=backward,
                    kept_bytes=kept,
                    working_bytes=max(working, layer.working_bytes),
                )
                for layer, (forward, backward, kept, working) in zip(
                    chain.layers, rows, strict=True
                )
            ),
        )

    return costs


def _described_costs(
    device: Device, graph: NodeGraph, samples: int, loss: Callable[[Any], tf.Tensor] | None
) -> Chain:
    return layer_costs(graph, samples, device, loss)


def _loss(task: Task) -> Callable[[int], Callable[[Any], tf.Tensor] | None]:
    """Return what returns the loss of so many samples; None of arrays."""
    if task.source.samples is not None:
        return lambda samples: None
    loss = make_loss(task, class_weights(task.config, task.source))
    targets = len(task.source.targets)
    shape, dtype = ((targets,), tf.float32) if targets else (task.patch, tf.uint8)

    def of(samples: int) -> Callable[[Any], tf.Tensor]:
        return lambda output: loss(tf.zeros((samples, *shape), dtype), output)

    return of


def _alone(config: RunConfig, samples: int) -> RunConfig:
    """Return the run on one device, with so many samples in a step."""
    return replace(Layout().applied(config), global_batch=samples, replica_batch=None)


def _one_layer(step: TracedStep, device: Device) -> Chain:
    """Return a step that cannot be cut as a chain of one layer."""
    trace = step.trace
    seconds = described(trace, device).op_seconds
    backward = sum(one for one, op in zip(seconds, trace.ops, strict=True) if op.is_backward)
    peak = int(memory(trace, schedule(trace, {})).max(initial=0))
    weights = {
        at: Variable(num_bytes // 4, num_bytes) for at, num_bytes in enumerate(step.weight_bytes)
    }
    return Chain(
        layers=(
            ChainLayer(
                name="the model",
                forward_seconds=sum(seconds) - backward,
                backward_seconds=backward,
                kept_bytes=peak,
                variables=weights,
            ),
        ),
        tensor_bytes=[],
    )


def update_seconds(model: keras.Model, slots: int, device: Device) -> float:
    """Return how long an optimizer with so many states of each weight takes on a device."""
    sizes = [math.prod(variable.shape) * 4 for variable in model.trainable_variables]
    ops = UPDATE_OPS + UPDATE_OPS_A_STATE * slots
    moved = UPDATE_TENSORS * sum(sizes) / (device.bytes_per_second * BYTES_SHARE)
    return ops * (len(sizes) * OP_START_SECONDS + moved)


def _tiles(task: Task, model: keras.Model) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return the halo and the alignment of tiles, and why there can be none."""
    if not task.source.has_masks:
        return (), (), f"tiling needs masks, and {task.source.name!r} has none"
    try:
        halo, steps = halo_of(model, task.config.model)
        check_model(model)
        check_loss(task, model)
    except ValueError as error:
        return (), (), str(error)
    if inexact := inexact_layers(model):
        return halo, steps, f"{inexact[0]} uses statistics of whole samples, which no tile has"
    return halo, steps, ""


def _borders(graph: NodeGraph, spatial: int) -> Sequence[Border]:
    """Return what each layer needs of the other parts of a sample."""
    makers = {at: number for number, node in enumerate(graph.nodes) for at in node.makes}
    rank = spatial + 2
    found: dict[int, Border] = {}
    for number, node in enumerate(graph.nodes):
        reads = [graph.tensors[at] for at in node.reads if len(graph.tensors[at].shape) == rank]
        if not reads or merges(node.operation):
            continue
        rule = rule_of(node.operation, rank)
        num_bytes = sum(math.prod(one.shape[1:]) * tf.as_dtype(one.dtype).size for one in reads)
        border = Border(layer=number, num_bytes=num_bytes, extents=tuple(reads[0].shape[1:-1]))
        if rule is None:
            found[number] = replace(border, is_gathered=True)
        elif rule in (normalized, global_average, global_maximum):
            found[number] = replace(border, rows=(0,) * spatial, has_statistics=True)
        elif rule in (convolved, max_pooled, average_pooled, transposed, upsampled):
            rows = tuple(_rows(node, graph, axis) for axis in range(spatial))
            before = None
            if rule is convolved:
                before = _statistics_before(graph, makers, node, rank)
            if before in found:
                found[before] = replace(found[before], rows=rows)
            if any(rows):
                found[number] = replace(border, rows=rows, is_shared=before in found)
    return list(found.values())


def _statistics_before(
    graph: NodeGraph, makers: Mapping[int, int], node: Node, rank: int
) -> int | None:
    """Return the normalization whose output a layer reads, with layers for each pixel between."""
    while len(node.reads) == 1 and node.reads[0] in makers:
        number = makers[node.reads[0]]
        node = graph.nodes[number]
        rule = None if merges(node.operation) else rule_of(node.operation, rank)
        if rule is normalized:
            return number
        if rule is not pointwise or kind_of(node.operation) is layers.Dense:
            return None
    return None


def _rows(node: Node, graph: NodeGraph, axis: int) -> int:
    """Return the rows of others that a part in the middle of an image reads along an axis."""
    reach = _reach(node, graph, axis)
    first, last = ROW, 2 * ROW
    scale = reach.stride
    rows = (first * scale, last * scale) if reach.transposed else (first // scale, last // scale)
    begin, end = reach.needed(*rows)
    return max(0, first - begin) + max(0, end - last)


def _reach(node: Node, graph: NodeGraph, axis: int) -> Reach:
    layer, kind = node.operation, kind_of(node.operation).__name__
    read, made = (graph.tensors[at[0]].shape[1 + axis] for at in (node.reads, node.makes))
    if "UpSampling" in kind:
        is_linear = getattr(layer, "interpolation", "nearest") == "bilinear"
        return upsampling_reach(layer.size[axis], linear=is_linear)
    sizes = getattr(layer, "pool_size", None) or layer.kernel_size
    if kind.endswith("Transpose"):
        return window_reach(layer, axis, sizes, made, transposed=True)
    return window_reach(layer, axis, sizes, read)
