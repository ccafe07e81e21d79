"""The network of a run, looked at before its first step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.config.run import RunConfig
from tfunet.data.pipeline import truth_of
from tfunet.learning.averaging import Averaging, Switch, check_overwriting
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.own_metric import of_batches
from tfunet.learning.slow_statistics import slow_statistics
from tfunet.models.own_terms import keep_terms_apart
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import own_part
from tfunet.parallel.losses import split_loss, split_metrics, split_own_methods
from tfunet.parallel.mesh import part_bounds
from tfunet.parallel.network import Groups, SplitNetwork
from tfunet.record import MODEL, WEIGHTS
from tfunet.training import preflight, saving
from tfunet.training.attempt import Attempt
from tfunet.training.compiled_model import compiled_model, make_metrics
from tfunet.training.held import EveryVariable, Held
from tfunet.training.loss import make_loss, outputs_of
from tfunet.training.run_data import RunData
from tfunet.training.tiling import check_metrics, check_model
from tfunet.training.train_step import check_trains_model, look_at_step

if TYPE_CHECKING:
    from tfunet.training.staged_network import StagedNetwork


@final
@dataclass(frozen=True, kw_only=True)
class Network:
    """The compiled model of a run.

    Args:
        file: Name of the file that the chief keeps it in.
        average: Averages its gradients over replicas.
        groups: The devices that share samples; None where samples are whole.
        averaging: How its optimizers use that.
        split: Runs it on parts of samples; None where samples are whole.
        stages: Runs it stage by stage; None where each process has the whole network.
        held: What this process has of its variables.
        weights: What this process has of what must be the same in all replicas: its variables, and
            those of other networks that its train_step trains.
        variables: What this process has of all that a step changes, in the order of a checkpoint:
            the model's variables, its optimizer's, and what else its train_step uses.
        encoder: The layer that keeps its weights in the first epochs; None if all layers learn.
    """

    model: keras.Model
    loss: keras.Loss
    file: str
    average: Switch
    groups: Groups | None
    averaging: Averaging
    split: SplitNetwork | None
    held: Held
    preflight: preflight.Preflight
    weights: Sequence[Any]
    variables: Sequence[Any]
    stages: "StagedNetwork | None" = None
    encoder: Any = None

    def own_part(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return what this device works on of a batch that it was fed; called on the device."""
        if self.split is None:
            return batch
        return own_part(batch, self.split.group(), self.split.bounds)

    def evaluate(
        self, batch: dict[str, tf.Tensor], use: Callable[..., Any], others: Callable[[], Any]
    ) -> Any:
        """Return what `use(batch, output)` makes of a batch, or of each micro-batch one after the
        other, and what `others` makes where another stage has the output. Called on the device.
        """
        if self.stages is not None:
            return self.stages.evaluate(batch, use, others)
        return use(batch, self.model(batch["image"], training=False))


@final
@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The compiled model of a run, which has not been looked at yet; see `Network`."""

    model: keras.Model
    loss: keras.Loss
    average: Switch
    groups: Groups | None
    split: SplitNetwork | None


def assemble(attempt: Attempt, data: RunData) -> Assembled:
    """Make and compile the model of a run; with split it runs on parts of samples.

    Raises ValueError for a model that tiles or split do not suit.
    """
    config, backend = attempt.config, attempt.backend
    loss = make_loss(data.task, data.class_weights)
    # XLA compiles the step as a whole: its parts cannot be timed.
    is_noted = not config.xla and attempt.topology.num_replicas > 1
    with backend.scope():
        model = compiled_model(
            data.task,
            loss,
            num_replicas=config.num_replicas,
            steps_per_epoch=data.steps_per_epoch,
            metrics=of_batches(config.metrics),
            image_shape=data.input_shape,
            initial_weights=attempt.initial_weights,
            say=attempt.say,
        )
    if len(attempt.topology.local_replicas) > 1:
        keep_terms_apart(model)
    if data.tiles is not None:
        check_model(model)
    groups, split = split_network(attempt, data, model)
    if split is not None:
        split.install()
        if data.tiles is None:  # Their parts add up.
            split_loss(loss, split, data.task.source.num_classes)
    ignored = data.task.source.ignored
    if ignored is not None:
        check_can_ignore(config, model)
        ignore_in_loss(loss, ignored, of_regions=config.has_regions)
    return Assembled(
        model=model,
        loss=loss,
        average=Switch(backend.average, attempt.note if is_noted else None),
        groups=groups,
        split=split,
    )


def build(attempt: Attempt, data: RunData) -> Network:
    """Make, compile and check the model of a run.

    Raises ValueError for a model that would train wrongly.
    """
    made = assemble(attempt, data)
    model, loss, split = made.model, made.loss, made.split
    batch = data.first_windows()
    truth = truth_of(batch)
    checked = preflight.inspect(
        model,
        loss,
        image=batch["image"].numpy()[:1],
        truth=truth.numpy()[:1],
        outputs=outputs_of(data.task),
        targets=tuple(data.task.source.targets),
        support=attempt.support,
        run=None if split is None else on_devices(attempt.backend, split),
    )
    file = saving.file_of(model, attempt.folder) if attempt.topology.is_chief else MODEL
    if file == WEIGHTS:
        attempt.say(
            f"The run keeps the model's weights, {file}: Keras cannot save the whole model, since "
            "one of its classes has no get_config."
        )
    if slow := slow_statistics(model, data.last_step):
        attempt.say(slow)
    network = completed(attempt, data, made, batch, checked=checked, file=file)
    if split is not None:
        attempt.say(split.summary())
    return network


def completed(
    attempt: Attempt,
    data: RunData,
    made: Assembled,
    batch: dict[str, tf.Tensor],
    *,
    checked: preflight.Preflight,
    file: str,
) -> Network:
    """Return the network with all that a step changes; `batch` has whole windows."""
    config, backend, topology = attempt.config, attempt.backend, attempt.topology
    model, split, truth = made.model, made.split, truth_of(batch)
    if split is not None:
        sizes = math.prod(batch["image"].shape[1:]) + math.prod(checked.output_shape)
        split_own_methods(model, split, sizes * tf.float32.size)
    if model._compile_metrics is not None or len(getattr(model, "outputs", None) or ()) != 1:
        with backend.scope():
            make_metrics(model, batch["image"], truth, config.metrics)
    used = look_at_step(
        model,
        backend,
        image=(config.replica_samples // config.accumulation, *batch["image"].shape[1:]),
        truth=tf.TensorSpec(truth.shape[1:], truth.dtype),
        accumulation=config.accumulation,
        num_replicas=topology.num_replicas,
    )
    with backend.scope():
        check_overwriting(used.optimizers)
    if split is not None:
        check_trains_model(used, split.variables)
    metrics = model._compile_metrics.metrics if model._compile_metrics else ()
    if split is not None:
        split_metrics(metrics, split)
    if data.tiles is not None:
        check_metrics(metrics)
    weights = [*model.variables, *used.trained]
    variables = [*model.variables, *model.optimizer.variables, *used.trained, *used.others]
    return Network(
        model=model,
        loss=made.loss,
        file=file,
        average=made.average,
        groups=made.groups,
        averaging=Averaging(
            average=made.average,
            accumulation=config.accumulation,
            optimizers=used.optimizers,
            is_alone=topology.num_replicas == 1,
        ),
        split=split,
        held=EveryVariable(backend, topology, model, variables),
        preflight=checked,
        weights=weights,
        variables=variables,
        encoder=_encoder(config, model),
    )


def _encoder(config: RunConfig, model: keras.Model) -> Any:
    """Return the layer that is frozen in the first epochs; ValueError if the model has none."""
    if not config.encoder_frozen_epochs:
        return None
    for layer in model.layers:
        if layer.name == "encoder":
            return layer
    raise ValueError(
        f"encoder_frozen_epochs={config.encoder_frozen_epochs} needs a layer named 'encoder', and "
        f"the model {config.model!r} has none. Give model_options.encoder, or name the layer of "
        "your own model so."
    )


def check_can_ignore(config: RunConfig, model: keras.Model) -> None:
    """Raise ValueError for what would count pixels that are to count for nothing."""
    names = of_batches(config.metrics)  # Metrics of whole cases leave these pixels out.
    counting = f"metrics={names}" if names else None
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        counting = "a train_step of the model's own"
    if counting:
        raise ValueError(
            f"With fill or ignore_label, some pixels count neither in the loss nor in scores, but "
            f"{counting} would count them. Leave one of the two out, or replace these pixels in "
            "the files."
        )


def on_devices(backend: Backend, split: SplitNetwork) -> Callable[..., tf.Tensor]:
    """Return the function that looks at a model's whole output, computed on all devices."""

    def run(forward: Callable[[tf.Tensor], tf.Tensor], image: tf.Tensor) -> tf.Tensor:
        def on_device() -> tf.Tensor:
            group = split.group()
            part = own_part({"image": image}, group, split.bounds)["image"]
            return split.whole_output(forward(part), group)

        return backend.run(on_device)[0]

    return run


def split_network(
    attempt: Attempt, data: RunData, model: keras.Model
) -> tuple[Groups | None, SplitNetwork | None]:
    """Return what runs a model on parts of samples, and what exchanges; None if they are whole.

    Raises ValueError for a split that does not fit the samples, and for a backend that cannot
    exchange.
    """
    mesh, backend = attempt.mesh, attempt.backend
    if not mesh.is_split:
        return None, None
    exchange = getattr(backend, "exchange", None)
    if exchange is None:
        raise ValueError(
            f"The backend {attempt.config.backend!r} has no method `exchange`, which split needs. "
            "Leave out split, or choose mirrored, multiworker or horovod."
        )
    switch = ExchangeSwitch(exchange, attempt.note)
    groups = Groups(mesh, attempt.topology.local_replicas, switch)
    bounds = part_bounds(data.input_shape[:-1], mesh.split)
    unit = "sample" if data.tiles is None else "tile"
    return groups, SplitNetwork(
        model=model, mesh=mesh, bounds=bounds, group=groups.current, unit=unit
    )
