"""The data of a run: its split, its pipelines, and how its cases are scored."""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import tensorflow as tf

from tfunet.config.augmentation import Augmentation
from tfunet.config.case_metrics import has_lengths
from tfunet.config.tournament import read_tournament
from tfunet.data.cached_cases import CachedCases
from tfunet.data.class_weights import KEY
from tfunet.data.doubts import check_classes, lines_of_doubt
from tfunet.data.encoded import EncodedCases
from tfunet.data.evaluation_pipeline import EvaluationPipeline
from tfunet.data.pipeline import TrainingPipeline
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
from tfunet.learning.case_metrics import check_library, tolerances
from tfunet.learning.own_metric import load_own, of_cases
from tfunet.learning.scoring import RegionScoring, SampleScoring, Scoring, TargetScoring
from tfunet.population.shares import share_of
from tfunet.prediction.pixel_sizes import trained_sizes
from tfunet.prediction.trained_cases import seen_before
from tfunet.process.terminal import lines_of
from tfunet.training import checkpoint
from tfunet.training.attempt import Attempt
from tfunet.training.loss import outputs_of, shared_weights
from tfunet.training.tiling import Tiles, look_at_network
from tfunet.training.trained_on import contents, first_contents, training_files
from tfunet.training.whole_cases import WholeCases


@final
@dataclass(frozen=True, kw_only=True)
class RunData:
    """The data of a run: the same split, order and number of steps in every process."""

    task: Task
    augmentation: Augmentation
    cases: CachedCases
    encoded: EncodedCases | None
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
    # Weight of each label in the loss; empty if the configuration gives none.
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

    def replaced(self) -> dict[str, str]:
        """Return what is wrong with cases that turned out to be of no use in training."""
        defects, chosen = self.cases.defects, {*self.split.train, *self.split.validation}
        ids = self.task.source.case_ids
        return {ids[case]: what for case, what in defects.items() if case in chosen}

    def scoring(self, cases: Sequence[int]) -> Scoring:
        """Return how these cases are scored."""
        source = self.task.source
        if source.has_masks:
            return _region_scoring(self.task)
        if source.samples is not None:
            return SampleScoring()
        return TargetScoring(
            targets={
                name: tuple(values[case] for case in cases)
                for name, values in source.targets.items()
            }
        )

    @property
    def labels(self) -> Callable[..., tf.Tensor] | None:
        """Returns the labels that the model predicts for a batch; None without masks."""
        return _region_scoring(self.task).labels if self.task.source.has_masks else None

    def first_windows(self) -> dict[str, tf.Tensor]:
        """Return a batch of whole windows of the validation cases."""
        whole = replace(self.evaluation, split=(), stages=1)
        return next(iter(whole(range(1)).take(1)))

    def training(self, first_step: int) -> TrainingPipeline | TilePipeline:
        """Return the training batches from a step of the run to its last one."""
        config = self.task.config
        each = config.patches_per_case
        samples = self._samples(first_step, config.global_samples, num_replicas=1)
        order = (self.split.train[sample // each] for sample in samples.first_order())
        self.cases.begin((*order, *self.split.validation))
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
            encoded=self.encoded,
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
    augmentation, encoded = task.augmentation(), task.encoded()
    cases = task.decode(
        functools.partial(attempt.begin, "decoding"), store=config.store, whole=False
    )
    attempt.begin("setting up the model")
    source = task.source
    split, num_left_out = _shared_split(attempt, source, cases.defects)
    if source.samples is None:
        check_classes(source, cases, split)
        for line in lines_of_doubt(source, cases, split):
            attempt.say(f"warning: {line}")
    else:
        _check_same(attempt, source.name, source.samples.content)
    weights = shared_weights(attempt, source, cases, split.train)
    if not checkpoint.exists(folder):
        for line in (held_out_line(split, source), *told_at_begin(config, source, weights)):
            if line:
                attempt.say(line)
        if topology.is_chief and (line := seen_before(config, source, split.validation)):
            attempt.say(line)
    if topology.is_chief:
        _write_facts(attempt, task, tiles, cases, split, weights)
    whole_cases = _whole_cases(attempt, task, cases, split)
    split, deciding = _own_share(attempt, source, split)
    num_samples = len(split.train) * config.patches_per_case
    num_steps = steps_per_epoch(num_samples, config.global_samples)
    return RunData(
        task=task,
        augmentation=augmentation,
        cases=cases,
        encoded=encoded,
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
            tells_places=source.has_masks,
            grid=None if tiles is None else tiles.grid,
        ),
        whole_cases=whole_cases,
        deciding=deciding,
        tiles=tiles,
        class_weights=weights,
    )


def _check_same(attempt: Attempt, name: str, content: str) -> None:
    """Raise ValueError in a process whose arrays are not those of the chief."""
    text = content.encode() if attempt.topology.is_chief else b""
    own = np.frombuffer(text, np.uint8)
    shared = checkpoint.share_bytes(attempt.backend, attempt.topology, own)
    if shared.decode() != content:
        raise ValueError(
            f"The data set {name!r} has other arrays in this process than in the first one. Give "
            "what it draws, or shuffles, a seed: np.random.default_rng(0), shuffle(1000, seed=0, "
            "reshuffle_each_iteration=False). Its order need not be random: tfunet shuffles."
        )


def _write_facts(
    attempt: Attempt,
    task: Task,
    tiles: Tiles | None,
    cases: CachedCases,
    split: Split,
    weights: Sequence[float],
) -> None:
    """Write data.json, and say if a run goes on with other images or masks."""
    config, folder, source = attempt.config, attempt.folder, task.source
    before = first_contents(folder) if checkpoint.exists(folder) else None
    now = contents(cases, split)
    if None not in (before, now) and before != now:
        attempt.say(
            "warning: images or masks are others than those that this run began with. Start a "
            "new run, or restore their files."
        )
    known = (cases.signs(case) for case in split.train)
    values = [value for signs in known if signs is not None for value in signs.ends]
    folder.write_data(
        {
            "name": source.name,
            "channels": source.channels,
            "num_classes": source.num_classes,
            "patch": task.patch if tiles is None else tiles.window,
            "preparation": source.preparation,
            **({"targets": list(source.targets)} if source.targets else {}),
            **({} if source.samples is None else {"arrays": True}),
            **({"regions": source.regions} if config.has_regions else {}),
            "label_names": list(source.label_names().values()),
            "training_files": training_files(source, split),
            "contents": before or now,
            **({KEY: weights} if weights else {}),
            "mask_values": source.mask_values,
            "pixel_sizes": trained_sizes(source, split.train),
            "pixel_unit": source.unit,
            "value_ends": [ends(values) for ends in (min, max)] if values else [],
        }
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
    metrics, source = of_cases(attempt.config.metrics), task.source
    if not metrics:
        return None
    if not source.has_masks:
        raise ValueError(
            f"metrics names {metrics[0].name!r}, which measures masks, and the data set "
            f"{source.name!r} has {source.instead_of_masks}. Leave it out."
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
        print(
            lines_of(f"{len(defects)} defects of {name} are left out: see split.json."), flush=True
        )
    case_ids = {case_id for defect in defects if (case_id := defect.get("case_id"))}
    return from_json(shared, source, bad), len(case_ids)
