"""A run whose network is in stages, each in a process of its own: pipeline parallelism."""

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from tfunet.backend import Backend, Exchange
from tfunet.config.case_metrics import keras_metrics
from tfunet.config.keys import show
from tfunet.config.refs import near_match
from tfunet.config.run import RunConfig
from tfunet.data.pipeline import truth_of
from tfunet.learning import losses, optimizers
from tfunet.learning.averaging import Averaging, Switch
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.models import MODELS
from tfunet.models.keras_errors import cause_line
from tfunet.models.make import make_model
from tfunet.models.symbolic import build_symbolic
from tfunet.pipeline.balance import balance
from tfunet.pipeline.chain import Chain
from tfunet.pipeline.network import Network as Graph
from tfunet.pipeline.network import read_network
from tfunet.pipeline.noise import draws_otherwise
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.schedules import most_live
from tfunet.process.full_memory import OF_STAGE
from tfunet.record import MODEL, WEIGHTS
from tfunet.training import checkpoint, preflight, saving
from tfunet.training.setup import Attempt, Network, RunData, check_can_ignore, compile_model
from tfunet.training.stage_variables import (
    Elsewhere,
    Entry,
    StageVariables,
    build_optimizer,
    keep_own,
)

# Returns the costs of a network's layers for micro-batches of so many samples, measured here.
Costs = Callable[[Graph, int], Chain]


def build_in_stages(attempt: Attempt, data: RunData, costs: Costs) -> Network:
    """Make, compile and check the model of a run, and keep what belongs to this process's stage.

    Called by all processes together. Raises ValueError for a model that would train wrongly, or
    that cannot be cut.
    """
    config, backend, topology = attempt.config, attempt.backend, attempt.topology
    exchange = _exchange_of(config, backend)
    loss = losses.make(config.loss, config.loss_options)
    # Not in the backend's scope: its variables would be the same in all processes.
    model = _made(config, data)
    check_own_methods(model)
    optimizer = optimizers.make(config, config.num_replicas, data.steps_per_epoch)
    compile_model(model, optimizer, loss=loss, metrics=keras_metrics(config.metrics))
    file = saving.file_of(model, attempt.folder) if topology.is_chief else MODEL
    if file == WEIGHTS:
        attempt.say(
            f"The run keeps the model's weights, {file}: Keras cannot save the whole model."
        )
    graph = read_network(model)
    check_graph(graph, config)
    cuts, predicted = _cuts(attempt, graph, costs)
    (device,) = topology.local_replicas
    spans: list[tuple[float, float]] = []
    stage = OwnStage(
        graph,
        cuts,
        mesh=attempt.mesh,
        device=device,
        exchange=exchange,
        schedule=config.schedule,
        micro_batches=config.micro_batches,
        alone=_alone,
        note=lambda _, begin, end: spans.append((begin, end)),
    )
    held = _held(attempt, model, graph, cuts, device)
    staged = StagedNetwork(
        attempt,
        model,
        graph=graph,
        cuts=cuts,
        stage=stage,
        held=held,
        predicted=predicted,
        spans=spans,
    )
    ignored = data.task.source.ignored
    if ignored is not None:
        check_can_ignore(config, model)
        ignore_in_loss(loss, ignored)
    batch = data.first_windows()
    truth = truth_of(batch)

    def run(_: Any, image: tf.Tensor) -> tf.Tensor:
        return backend.run(lambda: staged.predict(image))[0]

    with Elsewhere.looking():
        checked = preflight.inspect(
            model,
            loss,
            image=batch["image"].numpy()[:1],
            truth=truth.numpy()[:1],
            num_classes=data.task.source.num_classes,
            targets=tuple(data.task.source.targets),
            run=run,
        )
        # Makes the variables of compiled metrics, as `fit` does.
        model._symbolic_build(data_batch=(batch["image"], truth))
    staged.install(loss)
    attempt.say(staged.summary())
    average = Switch(lambda gradients: list(gradients))
    return Network(
        model=model,
        loss=loss,
        file=file,
        average=average,
        groups=None,
        averaging=Averaging(average=average, optimizers=[optimizer]),
        split=None,
        stages=staged,
        held=held,
        preflight=checked,
        weights=held.own_weights,
        variables=held.own,
    )


@final
class StagedNetwork:
    """The model of a run, whose calls and steps go through the stages of all processes.

    Args:
        graph: Its layers.
        cuts: Where each stage begins, and the end.
        stage: That of this process.
        held: Its variables.
        predicted: Seconds of each stage for a micro-batch; None where the cut was given.
        spans: Unix times of the begin and the end of each pass of this stage, as they are made.
    """

    def __init__(
        self,
        attempt: Attempt,
        model: keras.Model,
        *,
        graph: Graph,
        cuts: Sequence[int],
        stage: OwnStage,
        held: StageVariables,
        predicted: Sequence[float] | None,
        spans: list[tuple[float, float]],
    ) -> None:
        self._attempt, self._model, self._graph = attempt, model, graph
        self._cuts, self._stage, self._held, self._predicted = cuts, stage, held, predicted
        self._spans = spans
        # (seconds of a step, seconds of this stage's passes in it), of all but the first.
        self._steps: list[tuple[float, float]] = []
        self._is_traced = False

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
        return self._stage.predict(self._cast(images))

    def counted(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return a batch of which only the last stage counts windows of an evaluation."""
        if "valid" not in batch or self._stage.is_last:
            return batch
        names = ("core_start", "core_stop", "valid")
        return {**batch, **{name: tf.zeros_like(batch[name]) for name in names}}

    def _train_step(
        self, loss: keras.Loss, data: tuple[tf.Tensor, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        images, truth = data
        value, gradients, output = self._stage.train(self._cast(images), truth, loss)
        optimizer, model = self._model.optimizer, self._model
        limit = optimizer.global_clipnorm
        if limit is not None:
            gradients = self._clipped(gradients, limit)
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(gradients, self._stage.variables, strict=True)
            if gradient is not None
        ]
        with _alone():
            if pairs:
                optimizer.global_clipnorm = None
                optimizer.apply(*map(list, zip(*pairs, strict=True)))
                optimizer.global_clipnorm = limit
            else:  # Keras would count no step.
                optimizer.iterations.assign_add(1)
            model._loss_tracker.update_state(value, sample_weight=tf.shape(images)[0])
            if output is not None and model._compile_metrics is not None:
                model._compile_metrics.update_state(truth, output)
            return model.get_metrics_result()

    def _clipped(
        self, gradients: Sequence[tf.Tensor | None], limit: float
    ) -> list[tf.Tensor | None]:
        """Return this stage's gradients, clipped as Keras does, by the norm over all stages."""
        dtype = keras.config.floatx()
        squares = [tf.reduce_sum(tf.cast(one, dtype) ** 2) for one in gradients if one is not None]
        own = tf.add_n(squares) if squares else tf.zeros((), dtype)
        norm = tf.sqrt(self._stage.sum_over_stages(own))
        scale = limit * tf.minimum(1.0 / norm, 1.0 / limit)
        return [None if one is None else one * tf.cast(scale, one.dtype) for one in gradients]

    def _cast(self, images: tf.Tensor) -> tf.Tensor:
        return tf.cast(images, self._model.compute_dtype)

    def naming_errors(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the step, whose errors name this stage."""

        def named(batches: Any) -> Any:
            try:
                return step(batches)
            except Exception as error:
                # The last line of a process's output is the reason that its run tells.
                error.add_note(f"{self._name()} failed: {_last_line(error)}")
                raise

        return named

    def _name(self) -> str:
        at, names = self._stage.number, [node.name for node in self._graph.nodes]
        begin, end = self._cuts[at], self._cuts[at + 1]
        where = f"{names[begin]} to {names[end - 1]}"
        return f"{OF_STAGE}{at + 1} of {len(self._cuts) - 1} ({where})"

    def note(self, seconds: float) -> None:
        """Note the seconds of a step of training."""
        if self._is_traced:
            self._steps.append((seconds, sum(end - begin for begin, end in self._spans)))
        self._is_traced = True
        self._spans.clear()

    def summary(self) -> str:
        """Return in a line how the network is cut."""
        config = self._attempt.config
        names = [self._graph.nodes[begin].name for begin in self._cuts[:-1]]
        return (
            f"Stages: {config.stages}, beginning with {', '.join(names)}; micro_batches "
            f"{config.micro_batches}, schedule {config.schedule}."
        )

    def record(self) -> dict[str, Any]:
        """Return what result.json says of the stages; called by all processes together."""
        config, mesh = self._attempt.config, self._attempt.mesh
        table = np.zeros((mesh.num_devices, 3))
        (device,) = self._attempt.topology.local_replicas
        busy = statistics.median([own for _, own in self._steps]) if self._steps else 0.0
        size = sum(one.shape.num_elements() * tf.as_dtype(one.dtype).size for one in self._held.own)
        table[device] = [busy, size, self._stage.group.traffic.num_bytes]
        table = self._attempt.backend.sum(table)
        step = statistics.median([whole for whole, _ in self._steps]) if self._steps else None
        layers = [layer for stage in self._stage.layers for layer in stage.layers]
        return {
            "stages": config.stages,
            "micro_batches": config.micro_batches,
            "schedule": config.schedule,
            "first_layers": [self._graph.nodes[begin].name for begin in self._cuts[:-1]],
            "stage_seconds": table[:, 0].tolist() if step else None,
            "predicted_stage_seconds": None
            if self._predicted is None
            else [one * config.micro_batches for one in self._predicted],
            "bubble": 1 - float(table[:, 0].mean()) / step if step else None,
            "variable_bytes": table[:, 1].astype(int).tolist(),
            "traced_sent_bytes": table[:, 2].astype(int).tolist(),
            "batch_normalization": "each micro-batch" if _has_statistics(layers) else None,
            "random_layers": [layer.name for layer in layers if draws_otherwise(layer)],
        }


def _last_line(error: Exception) -> str:
    """Return what went wrong, from the text of TensorFlow or Keras."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if line and not line.startswith(("[[", "File", "Detected"))]
    return named[-1] if isinstance(error, tf.errors.OpError) and named else cause_line(error)


def _has_statistics(layers: Sequence[Any]) -> bool:
    return any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let Keras believe that this device is the only one: others have other variables."""
    with tf.distribute.ReplicaContext(_ALONE, 0):
        yield


# TensorFlow's strategy outside of any other.
_ALONE = tf.distribute.get_strategy()


def _exchange_of(config: RunConfig, backend: Backend) -> Exchange:
    exchange = getattr(backend, "exchange", None)
    if exchange is None:
        raise ValueError(
            f"The backend {config.backend!r} has no method `exchange`, which stages needs. Leave "
            "out stages, or choose multiworker or horovod."
        )
    return exchange


def _made(config: RunConfig, data: RunData) -> keras.Model:
    """Return the model; without values of its variables if it is known that nothing sets them."""
    task = data.task
    build = partial(
        make_model,
        config.model,
        image_shape=(*task.patch, task.source.channels),
        num_classes=task.source.num_outputs,
        options=config.model_options,
    )
    has_values = config.model not in MODELS or "encoder_weights" in config.model_options
    return build() if has_values else build_symbolic(build, precision=config.precision)


def check_own_methods(model: keras.Model) -> None:
    """Raise ValueError for methods of the model's own that need the whole network."""
    for name in ("call", "train_step", "compute_loss", "compute_metrics"):
        owner = next(kind for kind in type(model).__mro__ if name in vars(kind))
        if name in vars(model) or owner.__module__.split(".")[0] != "keras":
            raise ValueError(
                f"The model has a {name} of its own, which needs the whole network, and each "
                "process has a stage of it. Leave out stages, or use Keras's."
            )


def check_graph(graph: Graph, config: RunConfig) -> None:
    """Raise ValueError for a network that cannot be cut into these stages."""
    if len(graph.nodes) < config.stages:
        raise ValueError(
            f"stages={config.stages} needs as many layers, and the model {config.model!r} has "
            f"{len(graph.nodes)}. Choose fewer stages."
        )
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise ValueError(
            f"A network in stages has one input and one output, and the model {config.model!r} has "
            f"{len(graph.inputs)} and {len(graph.outputs)}. Leave out stages."
        )
    for node in graph.nodes:
        is_synchronized = getattr(node.operation, "synchronized", False)
        if is_synchronized and config.num_replicas > 1:
            raise ValueError(
                f"The layer {node.name!r} synchronizes its statistics over replicas, which is not "
                "built for stages yet. Leave out synchronized, stages or num_replicas."
            )


def _cuts(attempt: Attempt, graph: Graph, costs: Costs) -> tuple[list[int], Sequence[float] | None]:
    """Return where each stage begins, and the end, with the predicted seconds of each if known."""
    config = attempt.config
    if config.balance != "time":
        return named_cuts(graph, config.balance), None
    text = b""
    if attempt.topology.is_chief:
        attempt.begin("measuring layers")
        rows = config.replica_samples // config.micro_batches
        chain = costs(graph, rows)
        live = most_live(config.schedule, config.stages, config.micro_batches)
        found = balance(chain, config.stages, live=live)
        text = json.dumps([found.cuts, found.seconds]).encode()
    shared = checkpoint.share_bytes(
        attempt.backend, attempt.topology, np.frombuffer(text, np.uint8)
    )
    cuts, seconds = json.loads(shared)
    return cuts, seconds


def named_cuts(graph: Graph, names: Sequence[str]) -> list[int]:
    """Return where each stage begins, and the end, from the first layers of the later ones."""
    known = [node.name for node in graph.nodes]
    cuts = [0]
    for name in names:
        if name not in known:
            raise ValueError(
                f"balance names the layer {name!r}, which the model does not have."
                f"{near_match(name, known)} Its layers in order: {', '.join(known)}."
            )
        cuts.append(known.index(name))
    cuts.append(len(known))
    if any(begin >= end for begin, end in pairwise(cuts)):
        raise ValueError(
            f"balance = {show(names)} must name layers in the order in which they run, and none "
            f"with which the network begins. That order: {', '.join(known)}."
        )
    return cuts


def _held(
    attempt: Attempt, model: keras.Model, graph: Graph, cuts: Sequence[int], device: int
) -> StageVariables:
    """Keep the variables of this process's stage, and build the optimizer for them."""
    mesh = attempt.mesh
    stage = mesh.stage_of(device)
    # A variable that no layer of the graph has stays with the chief.
    owners = {id(variable): 0 for variable in model.variables}
    for at, (begin, end) in enumerate(pairwise(cuts)):
        for node in graph.nodes[begin:end]:
            owners |= {id(variable): at for variable in node.variables}
    keep_own(model.variables, owners, stage)
    trainable = {id(variable) for variable in model.trainable_variables}
    weights = [
        Entry(
            variable=variable,
            stage=owners[id(variable)],
            shape=tuple(variable.shape),
            dtype=str(variable.dtype),
            is_statistic=id(variable) not in trainable,
        )
        for variable in model.variables
    ]
    states = build_optimizer(model.optimizer, model.trainable_variables, owners, stage)
    held = StageVariables(
        backend=attempt.backend,
        topology=attempt.topology,
        mesh=mesh,
        device=device,
        entries=[*weights, *states],
        num_weights=len(weights),
    )
    held.check_same()
    return held
