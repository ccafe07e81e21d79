"""What a run has before its first step: devices and folder, then data, then the network."""

import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import keras
import numpy as np
import psutil
import tensorflow as tf

from tfunet.backend import Backend, Topology
from tfunet.config.augmentation import Augmentation
from tfunet.config.case_metrics import case_metrics, has_lengths, keras_metrics
from tfunet.config.run import RunConfig
from tfunet.config.tournament import read_tournament
from tfunet.data.cached_cases import CachedCases
from tfunet.data.class_weights import KEY
from tfunet.data.doubts import check_classes, lines_of_doubt
from tfunet.data.pipeline import EvaluationPipeline, TrainingPipeline, truth_of
from tfunet.data.sample_order import steps_per_epoch
from tfunet.data.source import DataSource
from tfunet.data.split import (
    Split,
    from_json,
    held_out_line,
    leave_out,
    left_out,
    split_of,
    to_table,
)
from tfunet.data.task import Task, open_task
from tfunet.data.tile_pipeline import TilePipeline
from tfunet.data.told_at_begin import told_at_begin
from tfunet.files.printable import printable
from tfunet.learning.averaging import Averaging, Switch
from tfunet.learning.case_metrics import check_library, tolerances
from tfunet.learning.ignoring import ignore_in_loss
from tfunet.learning.own_metric import load_own
from tfunet.learning.scoring import RegionScoring, Scoring, TargetScoring
from tfunet.learning.slow_statistics import slow_statistics
from tfunet.machine.cpu_memory import check_cap
from tfunet.machine.environment import environment
from tfunet.parallel.exchange import ExchangeSwitch
from tfunet.parallel.feed import own_part
from tfunet.parallel.losses import split_loss, split_metrics
from tfunet.parallel.mesh import Mesh, part_bounds
from tfunet.parallel.network import Groups, SplitNetwork
from tfunet.population.shares import share_of
from tfunet.prediction.trained_cases import seen_before
from tfunet.process.terminal import lines_of
from tfunet.record import MODEL, WEIGHTS, RunFolder
from tfunet.swap import LargeModelSupport
from tfunet.swap.arena.device_memory import join_regions
from tfunet.timing.spans import Spans
from tfunet.timing.stamps import Note
from tfunet.training import checkpoint, preflight, saving
from tfunet.training.compiled_model import compiled_model, make_metrics
from tfunet.training.held import EveryVariable, Held
from tfunet.training.loss import make_loss, outputs_of, shared_weights
from tfunet.training.tiling import Tiles, check_metrics, check_model, look_at_network
from tfunet.training.train_step import look_at_step
from tfunet.training.trained_on import contents, first_contents, training_files
from tfunet.training.whole_cases import WholeCases

if TYPE_CHECKING:
    from tfunet.training.staged_network import StagedNetwork


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process of a run from its start to its end; a run that was killed takes several.

    Args:
        started: Unix time at which the process began.
        began: The same by a clock that nobody sets, time.perf_counter.
        begin: Is told what this process begins, as `Pulse.begin`.
    """

    config: RunConfig
    backend: Backend
    topology: Topology
    folder: RunFolder
    started: float
    began: float
    begin: Callable[..., None]
    spans: Spans | None
    has_gpus: bool
    support: LargeModelSupport | None

    @property
    def mesh(self) -> Mesh:
        """The replicas, and the devices of each that share its samples."""
        config = self.config
        return Mesh(groups=config.num_replicas, split=config.split, stages=config.stages)

    @property
    def note(self) -> Note | None:
        """What is told of the parts of a step; None where the run is not traced."""
        return None if self.spans is None else self.spans.add

    @property
    def initial_weights(self) -> str | None:
        """The file of the weights to begin with; None where a checkpoint has later ones."""
        return None if checkpoint.exists(self.folder) else self.config.initial_weights

    def say(self, line: str) -> None:
        """Print a line, once for all processes."""
        if self.topology.is_chief:
            print(lines_of(line), flush=True)

    def stop(self) -> None:
        """Leave the other processes, once the chief has written all."""
        self.backend.sum(np.zeros(1))
        if self.spans is not None:
            self.spans.close()
        self.backend.stop()


def start(
    config: RunConfig, backend: Backend, path: str | Path, begin: Callable[..., None]
) -> Attempt:
    """Start the backend, seed the random numbers, and open the run's folder.

    Raises ValueError for what this process cannot do, before the data, which can take long.
    """
    started = psutil.Process().create_time()
    began = time.perf_counter() - max(0.0, time.time() - started)
    spans = Spans(started, begin) if config.trace else None
    topology = backend.start()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    folder = RunFolder(Path(path))
    if topology.is_chief:
        folder.create()
        folder.write_config(config)
        folder.write_env(environment())
        for line in folder.keep_programs(config):
            print(lines_of(f"warning: {line}"), flush=True)
    has_gpus = bool(tf.config.list_logical_devices("GPU"))
    check_cap(config.cpu_memory, os.environ, on_gpu=has_gpus)
    join_regions(config.swap)
    return Attempt(
        config=config,
        backend=backend,
        topology=topology,
        folder=folder,
        started=started,
        began=began,
        begin=begin if spans is None else spans.begin,
        spans=spans,
        has_gpus=has_gpus,
        # Each stage has a plan of its own, which its process tells.
        support=_support(config, tells=topology.is_chief or config.stages > 1),
    )


def _support(config: RunConfig, *, tells: bool) -> LargeModelSupport | None:
    if config.swap is None:
        return None
    return LargeModelSupport(
        config.swap,
        host=config.swap_host,
        disk=config.swap_disk,
        disk_size=config.swap_disk_size,
        compression=config.swap_compression,
        verbose=int(tells),
    )


@final
@dataclass(frozen=True, kw_only=True)
class RunData:
    """The data of a run: the same split, order and number of steps in every process."""

    task: Task
    augmentation: Augmentation
    cases: CachedCases
    split: Split
    num_left_out: int
    steps_per_epoch: int
    last_step: int
    evaluation: EvaluationPipeline
    whole_cases: WholeCases | None
    # The cases that decide the rounds of a tournament.
    deciding: tuple[int, ...] = ()
    # None where samples are trained as a whole.
    tiles: Tiles | None = None
    # Of each label in the loss; empty if the configuration gives none.
    class_weights: tuple[float, ...] = ()

    @property
    def num_samples(self) -> int:
        """Training samples of an epoch, the dropped ones included."""
        return len(self.split.train) * self.task.config.patches_per_case

    @property
    def num_tiles(self) -> int:
        """Tiles of a sample; 1 where samples are trained as a whole."""
        return 1 if self.tiles is None else self.tiles.grid.num_tiles

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of what the network sees at once, with channels."""
        spatial = self.task.patch if self.tiles is None else self.tiles.window
        return (*spatial, self.task.source.channels)

    @property
    def validation_ids(self) -> tuple[str, ...]:
        """Names of the validation cases."""
        return tuple(self.task.source.case_ids[case] for case in self.split.validation)

    @property
    def validation_voxels(self) -> list[int]:
        """Voxels of each validation case."""
        return [math.prod(self.cases.extents[case]) for case in self.split.validation]

    def scoring(self, cases: Sequence[int]) -> Scoring:
        """Return how these cases are scored."""
        source = self.task.source
        if not source.targets:
            return _region_scoring(self.task)
        return TargetScoring(
            targets={
                name: tuple(values[case] for case in cases)
                for name, values in source.targets.items()
            }
        )

    @property
    def labels(self) -> Callable[..., tf.Tensor] | None:
        """Returns the labels that the model predicts for a batch; None without masks."""
        return None if self.task.source.targets else _region_scoring(self.task).labels

    def first_windows(self) -> dict[str, tf.Tensor]:
        """Return a batch of whole windows of the validation cases."""
        whole = replace(self.evaluation, split=(), stages=1)
        return next(iter(whole(range(1)).take(1)))

    def training(self, first_step: int) -> TrainingPipeline | TilePipeline:
        """Return the training batches from a step of the run to its last one."""
        config = self.task.config
        if self.tiles is None:
            return self._samples(first_step, config.replica_samples, config.num_replicas)
        return TilePipeline(
            samples=self._samples(first_step, config.global_samples, num_replicas=1),
            grid=self.tiles.grid,
            num_replicas=config.num_replicas,
            pass_tiles=config.micro_batches,
            split=config.split,
            stages=config.stages,
        )

    def _samples(self, first_step: int, replica_batch: int, num_replicas: int) -> TrainingPipeline:
        config = self.task.config
        return TrainingPipeline(
            cases=self.cases,
            train=self.split.train,
            first_step=first_step,
            last_step=self.last_step,
            patches_per_case=config.patches_per_case,
            replica_batch=replica_batch,
            num_replicas=num_replicas,
            split=config.split,
            stages=config.stages,
            accumulation=config.accumulation,
            seed=config.seed,
            foreground_share=config.foreground_share,
            augmentation=self.augmentation,
            augmented_by=config.pipeline,
            synthetic=config.synthetic,
        )


def open_data(attempt: Attempt) -> RunData:
    """Open, decode and split the data set, and record it; called by all processes together."""
    config, topology, folder = attempt.config, attempt.topology, attempt.folder
    attempt.begin("opening the data")
    task = open_task(config)
    tiles = look_at_network(task) if config.tiling else None
    if tiles is not None:
        for told in (tiles.summary(), tiles.warning()):
            if told is not None:
                attempt.say(told)
    augmentation = task.augmentation()
    cases = task.decode(alive=functools.partial(attempt.begin, "decoding"))
    attempt.begin("setting up the model")
    source = task.source
    split, num_left_out = _shared_split(attempt, source, cases.defects)
    check_classes(source, cases, split)
    for line in lines_of_doubt(source, cases, split):
        attempt.say(f"warning: {line}")
    weights = shared_weights(attempt, source, cases, split.train)
    if not checkpoint.exists(folder):
        for line in (held_out_line(split, source), *told_at_begin(config, source, weights)):
            if line:
                attempt.say(line)
        if topology.is_chief and (line := seen_before(config, source, split.validation)):
            attempt.say(line)
    if topology.is_chief:
        before = first_contents(folder) if checkpoint.exists(folder) else None
        now = contents(cases, split)
        if before not in (None, now):
            attempt.say(
                "warning: images or masks are others than those that this run began with. Start a "
                "new run, or restore their files."
            )
        folder.write_data(
            {
                "name": source.name,
                "channels": source.channels,
                "num_classes": source.num_classes,
                "patch": task.patch if tiles is None else tiles.window,
                "preparation": source.preparation,
                **({"targets": list(source.targets)} if source.targets else {}),
                **({"regions": source.regions} if config.has_regions else {}),
                "label_names": list(source.label_names().values()),
                "training_files": training_files(source, split),
                "contents": before or now,
                **({KEY: weights} if weights else {}),
                "mask_values": source.mask_values,
            }
        )
    whole_cases = _whole_cases(attempt, task, cases, split)
    split, deciding = _own_share(attempt, source, split)
    num_samples = len(split.train) * config.patches_per_case
    num_steps = steps_per_epoch(num_samples, config.global_samples)
    return RunData(
        task=task,
        augmentation=augmentation,
        cases=cases,
        split=split,
        num_left_out=num_left_out,
        steps_per_epoch=num_steps,
        last_step=config.steps or config.epochs * num_steps,
        evaluation=EvaluationPipeline(
            cases=cases,
            validation=split.validation,
            halo=config.evaluation_halo,
            # A tile is a micro-batch: tiles are too large to be worked on several at a time.
            replica_batch=config.micro_batches
            if tiles
            else config.replica_samples // config.accumulation,
            num_replicas=config.num_replicas,
            split=config.split,
            stages=config.stages,
            tells_places=not source.targets,
            grid=None if tiles is None else tiles.grid,
        ),
        whole_cases=whole_cases,
        deciding=deciding,
        tiles=tiles,
        class_weights=weights,
    )


def _own_share(attempt: Attempt, source: DataSource, split: Split) -> tuple[Split, tuple[int, ...]]:
    """Return what a trainer of a tournament trains on, and the cases that decide its rounds."""
    config = attempt.config
    tournament = read_tournament(config.tournament)
    if tournament is None:
        return split, ()
    trainer = tournament.trainer_of(config.seed)
    share = share_of(
        tournament, split.train, source.groups, seed=config.split_seed, trainer=trainer
    )
    if attempt.topology.is_chief:
        sides = {"train": share.train, "deciding": share.deciding}
        attempt.folder.write_tournament(
            {
                "trainer": trainer,
                "population": tournament.population_of(config.seed),
                **{side: [source.case_ids[case] for case in sides[side]] for side in sides},
            }
        )
    return replace(split, train=share.train), share.deciding


def _whole_cases(
    attempt: Attempt, task: Task, cases: CachedCases, split: Split
) -> WholeCases | None:
    """Return what measures whole validation cases; None if the configuration asks for nothing.

    Raises ValueError for a tolerance in a length where pixel sizes are not known.
    """
    metrics, source = case_metrics(attempt.config.metrics), task.source
    if not metrics:
        return None
    if source.targets:
        raise ValueError(
            f"metrics names {metrics[0].name!r}, which measures masks, and the data set "
            f"{source.name!r} has numbers to predict. Leave it out."
        )
    check_library(metrics)
    load_own(metrics)
    spacings = [source.spacings[case] if source.spacings else None for case in split.validation]
    has_spacing = None not in spacings
    if not has_spacing and any(spacings):
        raise ValueError(
            "Some validation cases state their pixel size and others do not, so distances cannot "
            "be compared. Give pixel_size= and target_pixel_size= in data_options."
        )
    metrics = tolerances(metrics, source.unit, has_spacing=has_spacing)
    if not has_spacing and has_lengths(metrics):
        attempt.say("Distances and volumes of metrics are in pixels: no pixel size is known.")
    return WholeCases(
        backend=attempt.backend,
        topology=attempt.topology,
        metrics=metrics,
        cases=cases,
        validation=split.validation,
        spacings=spacings,
        objects=source.objects,
        scoring=_region_scoring(task),
    )


def _region_scoring(task: Task) -> RegionScoring:
    source = task.source
    return RegionScoring(
        outputs=outputs_of(task),
        num_classes=source.num_classes,
        regions=source.regions,
        ignored=source.ignored,
    )


def _shared_split(
    attempt: Attempt, source: DataSource, bad: Mapping[int, str]
) -> tuple[Split, int]:
    """Return the chief's split, and how many cases it leaves out.

    A run that goes on keeps the split of split.json. `bad` says what is wrong with cases that
    cannot be used. Raises ValueError in a process that has other cases than the chief.
    """
    folder, topology, text = attempt.folder, attempt.topology, b""
    if topology.is_chief:
        table = folder.read_split() if checkpoint.exists(folder) else None
        if table is None:
            split = leave_out(split_of(attempt.config, source), source, bad)
            table = to_table(split, source, left_out(source, bad))
            folder.write_split(table)
        text = json.dumps(table).encode()
    shared = checkpoint.share_bytes(
        attempt.backend, topology, np.frombuffer(text, np.uint8)
    ).decode()
    defects = json.loads(shared).get("left_out", [])
    if defects and topology.is_chief:
        name = printable(source.name)
        print(f"{len(defects)} defects of {name} are left out: see split.json.", flush=True)
    case_ids = {case_id for defect in defects if (case_id := defect.get("case_id"))}
    return from_json(shared, source, bad), len(case_ids)


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
        weights: What must be the same in all replicas: its variables, and those of other networks
            that its train_step trains. Those of this process.
        variables: All that a step changes: the model's variables, its optimizer's, and what else
            its train_step uses. Those of this process, in the order of a checkpoint.
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


def build(attempt: Attempt, data: RunData) -> Network:
    """Make, compile and check the model of a run.

    Raises ValueError for a model that would train wrongly.
    """
    config, backend, topology = attempt.config, attempt.backend, attempt.topology
    loss = make_loss(data.task, data.class_weights)
    # XLA compiles the step as a whole: its parts cannot be timed.
    is_noted = not config.xla and topology.num_replicas > 1
    average = Switch(backend.average, attempt.note if is_noted else None)
    with backend.scope():
        model = compiled_model(
            data.task,
            loss,
            num_replicas=config.num_replicas,
            steps_per_epoch=data.steps_per_epoch,
            metrics=keras_metrics(config.metrics),
            image_shape=data.input_shape,
            initial_weights=attempt.initial_weights,
            say=attempt.say,
        )
    if data.tiles is not None:
        check_model(model)
    groups, split = split_network(attempt, data, model)
    if split is not None:
        split.install()
        if data.tiles is None:  # Their parts add up.
            split_loss(loss, split)
    ignored = data.task.source.ignored
    if ignored is not None:
        check_can_ignore(config, model)
        ignore_in_loss(loss, ignored, of_regions=config.has_regions)
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
        run=None if split is None else on_devices(backend, split),
    )
    if split is not None:
        attempt.say(split.summary())
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
    file = saving.file_of(model, attempt.folder) if topology.is_chief else MODEL
    if file == WEIGHTS:
        attempt.say(
            f"The run keeps the model's weights, {file}: Keras cannot save the whole model, since "
            "one of its classes has no get_config."
        )
    if slow := slow_statistics(model, data.last_step):
        attempt.say(slow)
    metrics = model._compile_metrics.metrics if model._compile_metrics else ()
    if split is not None:
        split_metrics(metrics, split)
    if data.tiles is not None:
        check_metrics(metrics)
    weights = [*model.variables, *used.trained]
    variables = [*model.variables, *model.optimizer.variables, *used.trained, *used.others]
    return Network(
        model=model,
        loss=loss,
        file=file,
        average=average,
        groups=groups,
        averaging=Averaging(
            average=average,
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
    of_batches = keras_metrics(config.metrics)  # Those of whole cases leave these pixels out.
    counting = f"metrics={of_batches}" if of_batches else None
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
