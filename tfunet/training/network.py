"""The network of a run, looked at before its first step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import keras
import tensorflow as tf

from tfunet.config.run import RunConfig
from tfunet.data.pipeline import truth_of
from tfunet.inside.of_keras import compiled_metrics
from tfunet.learning.averaging import Averaging, Switch
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.own_metric import of_batches
from tfunet.learning.slow_statistics import slow_statistics
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import own_part
from tfunet.parallel.losses import split_loss, split_metrics, split_own_methods
from tfunet.parallel.mesh import part_bounds
from tfunet.parallel.network import Groups, SplitNetwork
from tfunet.record import MODEL, WEIGHTS
from tfunet.training import preflight, saving
from tfunet.training.attempt import Attempt
from tfunet.training.compiled_model import make_metrics
from tfunet.training.cut_by_costs import Costs
from tfunet.training.held import Held
from tfunet.training.in_stages import InStages
from tfunet.training.loss import make_loss, outputs_of
from tfunet.training.placing import Assembled, Batch, Placed, Placing
from tfunet.training.run_data import RunData
from tfunet.training.tiling import check_metrics
from tfunet.training.whole import Whole

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
        placing: How its layers were placed.
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
    placing: Placing
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


def placing_of(attempt: Attempt, data: RunData, costs: Costs) -> Placing:
    """Return how the configuration places the layers of a network; `costs` measures them."""
    if attempt.config.stages > 1:
        return InStages(attempt, data, costs)
    return Whole(attempt, data)


def build(attempt: Attempt, data: RunData, placing: Placing) -> Network:
    """Make, compile, place and check the model of a run; called by all processes together.

    Raises ValueError for a model that would train wrongly, or cannot be placed so.
    """
    made = assemble(attempt, data, placing)
    file = saving.file_of(made.model, attempt.folder) if attempt.topology.is_chief else MODEL
    if file == WEIGHTS:
        attempt.say(
            f"The run keeps the model's weights, {file}: Keras cannot save the whole model, since "
            "one of its classes has no get_config."
        )
    if slow := slow_statistics(made.model, data.last_step):
        attempt.say(slow)
    batch = data.first_windows()
    placed = placing.place(made, batch)
    with placed.looking():
        checked = preflight.inspect(
            made.model,
            made.loss,
            image=batch["image"].numpy()[:1],
            truth=truth_of(batch).numpy()[:1],
            outputs=outputs_of(data.task) if data.task.source.samples is None else None,
            targets=tuple(data.task.source.targets),
            support=placed.support,
            run=placed.run,
        )
    network = complete(attempt, data, placing, made, placed, batch, checked=checked, file=file)
    for told in (made.split, network.stages and network.stages.log):
        if told is not None:
            attempt.say(told.summary())
    return network


def assemble(attempt: Attempt, data: RunData, placing: Placing) -> Assembled:
    """Make and compile the model of a run.

    Raises ValueError for a model that cannot be placed so, or whose metrics would count pixels that
    are to count for nothing.
    """
    config, source = attempt.config, data.task.source
    loss = make_loss(data.task, data.class_weights)
    model = placing.make(loss)
    groups, split = split_network(attempt, data, model)
    if split is not None and data.tiles is None:  # Losses of tiles add up.
        split_loss(loss, split, source.num_classes)
    if source.ignored is not None:
        check_can_ignore(config, model)
        ignore_in_loss(loss, source.ignored, of_regions=config.has_regions)
    return Assembled(model=model, loss=loss, groups=groups, split=split)


def complete(
    attempt: Attempt,
    data: RunData,
    placing: Placing,
    made: Assembled,
    placed: Placed,
    batch: Batch,
    *,
    checked: preflight.Preflight,
    file: str,
) -> Network:
    """Return the network with all that a step changes; `batch` has whole windows."""
    config, model, split = attempt.config, made.model, made.split
    if split is not None:
        sizes = math.prod(batch["image"].shape[1:]) + math.prod(checked.output_shape)
        split_own_methods(model, split, sizes * tf.float32.size)
    if compiled_metrics(model) is not None or len(getattr(model, "outputs", None) or ()) != 1:
        with placing.scope(), placed.looking():
            make_metrics(model, batch["image"], truth_of(batch), config.metrics)
    ready = placed.ready(batch)
    compiled = compiled_metrics(model)
    metrics = compiled.metrics if compiled else ()
    if split is not None:
        split_metrics(metrics, split)
    if data.tiles is not None:
        check_metrics(metrics)
    return Network(
        model=model,
        loss=made.loss,
        file=file,
        groups=made.groups,
        split=split,
        preflight=checked,
        placing=placing,
        encoder=_encoder(config, model),
        average=ready.average,
        averaging=ready.averaging,
        held=ready.held,
        weights=ready.weights,
        variables=ready.variables,
        stages=ready.stages,
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


def split_network(
    attempt: Attempt, data: RunData, model: keras.Model
) -> tuple[Groups | None, SplitNetwork | None]:
    """Return what runs a model on parts of samples, and what exchanges; None if they are whole.

    Raises ValueError for a split that does not fit the samples, and for a backend that cannot
    exchange.
    """
    mesh = attempt.mesh
    if not mesh.is_split:
        return None, None
    switch = ExchangeSwitch(attempt.exchange("split"), attempt.note)
    groups = Groups(mesh, attempt.topology.local_replicas, switch)
    bounds = part_bounds(data.input_shape[:-1], mesh.split)
    unit = "sample" if data.tiles is None else "tile"
    return groups, SplitNetwork(
        model=model, mesh=mesh, bounds=bounds, group=groups.current, unit=unit
    )
