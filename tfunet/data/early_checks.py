"""What can be said of a run's files before TensorFlow is imported, which takes many seconds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from tfunet.config.case_metrics import case_metrics
from tfunet.config.run import RunConfig
from tfunet.config.tournament import read_tournament
from tfunet.data import DATASETS
from tfunet.data.cache import check_cache
from tfunet.data.class_weights import check_form, class_weights, given_weights
from tfunet.data.defects import naming
from tfunet.data.formats.claims import check_growth
from tfunet.data.sample_order import steps_per_epoch
from tfunet.data.source import DataSource, open_source
from tfunet.data.split import split_of
from tfunet.data.task import open_task
from tfunet.learning import LOSSES, PIXEL_MEANS
from tfunet.learning.case_metrics import check_library, tolerances
from tfunet.models import MODELS
from tfunet.models.files import (
    check_initial_weights,
    check_no_options,
    check_weights,
    is_file,
)
from tfunet.models.plans import check_options, plan_model
from tfunet.population.shares import share_of


def check_early(config: RunConfig, *, goes_on: bool = False) -> None:
    """Raise ValueError, or DefectsError, for data, files and a loss that do not fit the run.

    The names and headers of files are looked at, not their pixels. Code of users is not run: it may
    need TensorFlow. A run that goes on from a checkpoint does not need its initial weights.
    """
    opened = DataSets()
    check_cache(config.cache_dir)
    check_model(replace(config, initial_weights=None) if goes_on else config)
    check_libraries(config)
    check_data(config, opened)
    check_network(config, opened)


def check_model(config: RunConfig) -> None:
    """Raise ValueError for a loss that does not fit, and for unknown options."""
    if config.tiling and config.loss in LOSSES and config.loss not in PIXEL_MEANS:
        raise ValueError(
            f"tiling = {list(config.tiling)} cannot be combined with loss = {config.loss!r}, which "
            "is not the mean over a sample's pixels. Set loss = 'crossentropy' or 'focal', or use "
            "split, which is exact for every loss."
        )
    if config.loss in LOSSES:
        check_form(config)
    if config.has_regions and given_weights(config):
        raise ValueError(
            "class_weights weigh classes, and with outputs = 'regions' the loss compares each "
            "region with all that is outside. Leave out one of them."
        )
    if config.initial_weights is not None:
        check_initial_weights(config.initial_weights)
    if config.model not in MODELS:
        if is_file(config.model):
            check_no_options(config.model, config.model_options)
        return
    check_options(config.model, config.model_options)
    if "encoder_weights" in config.model_options:
        check_weights(config.model_options["encoder_weights"])


def check_libraries(config: RunConfig) -> None:
    """Raise NotInstalledError for metrics that need what is not installed."""
    check_library(case_metrics(config.metrics))


def check_data(config: RunConfig, opened: Callable[..., DataSource] = open_source) -> None:
    """Raise ValueError, or DefectsError, for data that the run cannot be trained with.

    `opened` opens a data set, as `open_source` does.
    """
    if config.data not in DATASETS:
        return
    task = open_task(config, opened)
    source = task.source
    task.augmentation()  # Raises for changes that do not fit the patch.
    task.encoded()  # Raises for files that the pipeline does not decode.
    for shape in sorted(set(source.shapes)):
        check_growth(shape, tuple(map(max, shape, task.patch)), f"patch = {list(task.patch)}")
    class_weights(config, source)  # Raises for those that do not fit the classes.
    train = split_of(config, source).train
    tournament = read_tournament(config.tournament)
    with naming(source.defects):
        if tournament is not None:
            trainer, seed = tournament.trainer_of(config.seed), config.split_seed
            train = share_of(tournament, train, source.groups, seed=seed, trainer=trainer).train
        steps_per_epoch(len(train) * config.patches_per_case, config.global_samples)
    has_spacing = bool(source.spacings) and None not in source.spacings
    tolerances(case_metrics(config.metrics), source.unit, has_spacing=has_spacing)


def check_network(config: RunConfig, opened: Callable[..., DataSource] = open_source) -> None:
    """Raise ValueError for options that a model of ours does not have, or not for these samples.

    `opened` opens a data set, as `open_source` does.
    """
    if config.model not in MODELS or config.data not in DATASETS:
        return
    task = open_task(config, opened)
    # The sizes of tiles follow from the network.
    spatial = (None,) * len(task.patch) if config.tiling else task.patch
    if config.tiling and "encoder" in config.model_options:
        return
    plan_model(
        config.model,
        config.model_options,
        image_shape=(*spatial, task.source.channels),
        num_classes=task.num_outputs,
    )


@final
@dataclass(frozen=True)
class DataSets:
    """Opens data sets as `open_source` does, each once."""

    _opened: dict[str, DataSource | Exception] = field(default_factory=dict)

    def __call__(self, data: str, options: Mapping[str, Any], *, skip_bad: bool) -> DataSource:
        key = repr((data, sorted(options.items()), skip_bad))
        if key not in self._opened:
            try:
                self._opened[key] = open_source(data, options, skip_bad=skip_bad)
            except (ValueError, OSError) as error:
                self._opened[key] = error
        opened = self._opened[key]
        if isinstance(opened, Exception):
            raise opened
        return opened
