"""One optimizer step on given samples: the way of a run, and as one device takes it.

Both run op by op: tracing a step that is taken once would take several times as long.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.geometry.grid import Grid
from tfunet.inside.of_keras import pooling_by, trained_by
from tfunet.learning.averaging import instead_of_apply
from tfunet.parallel.feed import fed_groups, parts_of
from tfunet.parallel.mesh import part_bounds
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network
from tfunet.training.placing import on_devices
from tfunet.training.run_data import RunData
from tfunet.training.state import MetricState
from tfunet.training.step import make_step, tile_work
from tfunet.training.tile_step import TileStep
from tfunet.training.tiling import Tiles
from tfunet.training.traced_device import traced_device

Batch = dict[str, Any]
# Gradients of a variable, one for each time that an optimizer is applied to it.
Gradients = dict[int, list[np.ndarray]]
# Before the names of what a train_step returns; without it, of what an epoch records.
STEP = "step "


@final
@dataclass(kw_only=True)
class Taken:
    """What a step gave; on the chief only.

    Attributes:
        losses: The loss as steps.csv has it, and the metrics as epochs.csv has them.
        gradients: Means over all samples, by the number of the variable.
        values: Values of all variables after the step.
        outputs: Outputs of the network without training, for the first samples.
    """

    losses: dict[str, float] = field(default_factory=dict)
    gradients: Gradients = field(default_factory=dict)
    values: list[np.ndarray] = field(default_factory=list)
    outputs: np.ndarray | None = None


@contextlib.contextmanager
def in_precision(dtype: str) -> Iterator[None]:
    """Make networks of this precision in the block, and run them op by op."""
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    eagerly, logger = tf.config.functions_run_eagerly(), tf.get_logger()
    level = logger.level
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    tf.config.run_functions_eagerly(True)
    logger.setLevel("ERROR")  # Strategies say that a graph would be faster.
    try:
        with warnings.catch_warnings(), pooling_by(_max_pool):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        tf.config.run_functions_eagerly(eagerly)
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)


def _max_pool(
    keras_max_pool: Callable[..., Any],
    inputs: Any,
    pool_size: Any,
    strides: Any = None,
    padding: str = "valid",
    data_format: Any = None,
) -> Any:
    """Pool volumes plane by plane, then across planes: TensorFlow has no other way in float64."""
    inputs = tf.convert_to_tensor(inputs)
    if inputs.dtype != tf.float64 or inputs.shape.rank != 5 or data_format == "channels_first":
        return keras_max_pool(inputs, pool_size, strides, padding, data_format)
    sizes = (pool_size,) * 3 if isinstance(pool_size, int) else tuple(pool_size)
    steps = sizes if strides is None else (strides,) * 3 if isinstance(strides, int) else strides
    batch, depth, *plane, channels = inputs.shape
    of_planes = tf.reshape(inputs, [batch * depth, *plane, channels])
    of_planes = tf.nn.max_pool2d(of_planes, sizes[1:], steps[1:], padding.upper())
    rows, columns = of_planes.shape[1:3]
    stacked = tf.reshape(of_planes, [batch, depth, rows * columns, channels])
    pooled = tf.nn.max_pool2d(stacked, (sizes[0], 1), (steps[0], 1), padding.upper())
    return tf.reshape(pooled, [batch, pooled.shape[1], rows, columns, channels])


@final
@dataclass(kw_only=True)
class Noted:
    """The gradients that optimizers are given while a step runs.

    Args:
        variables: All whose gradients are noted, by their numbers.
        is_of_one: Whether only the first replica of several in this process counts.

    Attributes:
        instead: Gradients that take the place of those given, in the same order.
    """

    variables: Sequence[Any]
    is_of_one: bool = False
    instead: Gradients | None = None
    gradients: Gradients = field(default_factory=dict)

    def note(
        self,
        optimizer: keras.Optimizer,
        gradients: list[Any],
        variables: list[Any] | None,
        apply: Callable[[list[Any], Any], None],
    ) -> None:
        """Take the place of `apply`."""
        if self.is_of_one and traced_device():
            apply(gradients, variables)
            return
        given = trained_by(optimizer) if variables is None else variables
        numbers = {id(variable): number for number, variable in enumerate(self.variables)}
        used = list(gradients)
        for at, (gradient, variable) in enumerate(zip(gradients, given, strict=True)):
            number = numbers.get(id(variable))
            if number is None or gradient is None:
                continue
            known = self.gradients.setdefault(number, [])
            turn = len(known)
            known.append(np.asarray(tf.convert_to_tensor(gradient)))
            if self.instead is not None and len(self.instead.get(number, ())) > turn:
                used[at] = tf.constant(self.instead[number][turn], gradient.dtype)
        apply(used, variables)


def step_in_parts(
    attempt: Attempt, data: RunData, network: Network, batches: Sequence[Batch]
) -> dict[str, Any]:
    """Make a step of a run on these batches of this process; all processes together."""
    if data.tiles is not None:
        config = attempt.config
        passes = config.replica_tiles // config.micro_batches
        work = tile_work(attempt, network, data.tiles.grid, passes)
        return TileStep(work, passes=passes)(iter(batches))
    step = make_step(
        attempt.backend,
        network.model,
        network.own_part,
        averaging=network.averaging,
        xla=False,
        split=network.split if network.stages is None else None,
    )
    return step(iter(batches))


def take_in_parts(
    attempt: Attempt,
    data: RunData,
    network: Network,
    batches: Sequence[Batch],
    image: np.ndarray | None,
    num_steps: int,
) -> Taken:
    """Take steps as the run does, and tell the chief what they gave; all processes together.

    `image` has samples whose output is looked at before; None for no look.
    """
    backend, topology, stages = attempt.backend, attempt.topology, network.stages
    noted = Noted(
        variables=network.variables if stages is None else network.model.variables,
        is_of_one=stages is None and len(topology.local_replicas) > 1,
    )
    outputs = None
    is_changed = data.tiles is None and (network.split is not None or stages is not None)
    if is_changed and image is not None:
        outputs = _look(backend, network, tf.constant(image)).numpy()
    logs: dict[str, Any] = {}
    with instead_of_apply(noted.note):
        for _ in range(num_steps):
            logs = step_in_parts(attempt, data, network, batches)["logs"]
    total = backend.sum(np.array([float(np.sum(logs["loss"].numpy()))]))[0]
    taken = Taken(losses={f"{STEP}loss": total / topology.num_replicas})
    metrics = MetricState(
        backend, network.model, is_shared=stages is not None and stages.shares_metrics
    )
    taken.losses |= metrics.results(metrics.total(None))
    network.held.average_statistics()
    taken.values = [np.array(value) for value in network.held.values()]
    taken.gradients = noted.gradients
    if stages is not None and topology.process_count > 1:
        taken.gradients = _gathered(backend, noted.gradients, network.held.shapes)
    taken.outputs = outputs
    return taken


def take_whole(
    network: Network,
    images: tf.Tensor,
    truth: tf.Tensor,
    given: Gradients,
    *,
    num_steps: int,
) -> Taken:
    """Take steps on one device, whose optimizers update by the gradients `given`."""
    noted = Noted(variables=network.variables, instead=given)
    model = network.model
    logs: dict[str, Any] = {}
    with instead_of_apply(noted.note):
        for _ in range(num_steps):
            logs = model.train_step((images, truth))
    results: dict[str, Any] = {}
    for metric in model.metrics:
        result = metric.result()
        results |= result if isinstance(result, dict) else {metric.name: result}
    return Taken(
        losses={
            f"{STEP}loss": float(logs["loss"]),
            **{name: float(value) for name, value in results.items()},
        },
        gradients=noted.gradients,
        values=values_of(network.variables),
    )


def values_of(variables: Sequence[Any]) -> list[np.ndarray]:
    """Return the values of variables, of which a later change makes copies."""
    return [np.asarray(tf.convert_to_tensor(variable.value)) for variable in variables]


def _look(backend: Backend, network: Network, image: tf.Tensor) -> tf.Tensor:
    model, stages = network.model, network.stages

    def forward(given: tf.Tensor) -> tf.Tensor:
        return model(given, training=False) if stages is None else stages.predict(given)

    return on_devices(backend, network.split, forward, image)


def _gathered(
    backend: Backend, gradients: Gradients, shapes: Sequence[tuple[int, ...]]
) -> Gradients:
    """Return the gradients of all stages, of which each process has those of one."""
    turns = [float(len(gradients.get(number, ()))) for number in range(len(shapes))]
    holders = backend.sum(np.array([float(count > 0) for count in turns]))
    totals = backend.sum(np.array(turns))
    gathered: Gradients = {}
    for number, (total, count) in enumerate(zip(totals, holders, strict=True)):
        for turn in range(int(total / count) if count else 0):
            own = gradients[number][turn] if number in gradients else np.zeros(shapes[number])
            mean = backend.sum(own.astype(np.float64)) / count
            gathered.setdefault(number, []).append(mean)
    return gathered


def fed(
    attempt: Attempt, tiles: Tiles | None, images: np.ndarray, truth: Mapping[str, np.ndarray]
) -> list[Batch]:
    """Return what the devices of this process work on in each pass of a step on these samples.

    `truth` has masks, and numbers to predict if cases have some.
    """
    if tiles is None:
        return [_of_local(attempt, {"image": images, **truth})]
    return _passes_of_tiles(attempt, tiles.grid, images, truth["mask"])


def _of_local(attempt: Attempt, whole: Mapping[str, np.ndarray]) -> Batch:
    config, mesh = attempt.config, attempt.mesh
    rows, passes = config.replica_samples, config.accumulation
    each = []
    for device in attempt.topology.local_replicas:
        group = mesh.group_of(device)
        own = {name: value[group * rows : (group + 1) * rows] for name, value in whole.items()}
        cut = {
            name: value.reshape(passes, rows // passes, *value.shape[1:])
            for name, value in own.items()
        }
        each.append({**cut, "sample": np.arange(group * rows, (group + 1) * rows)})
    return _stacked(each)


def _passes_of_tiles(
    attempt: Attempt, cut: Grid, images: np.ndarray, masks: np.ndarray
) -> list[Batch]:
    config, mesh, local = attempt.config, attempt.mesh, attempt.topology.local_replicas
    window, width = cut.largest_window, config.micro_batches

    def tiles(first: int) -> Batch:
        rows: dict[str, list[Any]] = {}
        for number in range(first, first + width):
            sample, at = divmod(number, cut.num_tiles)
            tile = cut.even_tiles[at]
            place = tuple(map(slice, tile.begin, np.add(tile.begin, window)))
            row = {
                "image": images[sample][place],
                "mask": masks[sample][place],
                "own_start": np.subtract(tile.start, tile.begin).astype(np.int32),
                "own_stop": np.subtract(tile.stop, tile.begin).astype(np.int32),
                "tile": np.int64(number),
            }
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
        return {name: np.stack(values) for name, values in rows.items()}

    batches = []
    for turn in range(config.replica_tiles // width):
        of_groups = [
            tiles(group * config.replica_tiles + turn * width) for group in fed_groups(mesh, local)
        ]
        if mesh.is_split:
            bounds = part_bounds(window, mesh.split)
            dataset = tf.data.Dataset.from_tensor_slices(
                {name: np.stack([one[name] for one in of_groups]) for name in of_groups[0]}
            )
            each = list(parts_of(dataset, mesh, local, bounds).as_numpy_iterator())
        else:
            each = [one for one in of_groups for _ in range(len(local) // len(of_groups))]
        batches.append(_stacked(each))
    return batches


def _stacked(each: Sequence[Mapping[str, np.ndarray]]) -> Batch:
    if len(each) == 1:
        return {name: tf.constant(value) for name, value in each[0].items()}
    return {name: tf.constant(np.stack([one[name] for one in each])) for name in each[0]}
