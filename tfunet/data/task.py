"""What a configuration trains on: its data set and the samples of it. Imports no TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tfunet.config.augmentation import Augmentation, read_augmentation
from tfunet.config.case_metrics import check_score_names
from tfunet.config.monitors import check_monitors
from tfunet.config.run import RunConfig
from tfunet.data.cache import build_cache, cache_folder
from tfunet.data.cached_cases import CachedCases
from tfunet.data.source import DataSource, open_source
from tfunet.geometry.parts import check_split
from tfunet.learning.region_labels import region_labels
from tfunet.process.terminal import decoding_bar


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """The data set of a configuration, opened, and the spatial shape of a sample."""

    config: RunConfig
    source: DataSource
    patch: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        """Channels of the model's output: one for each class, region or number to predict."""
        return len(self.source.regions) if self.config.has_regions else self.source.num_outputs

    def augmentation(self) -> Augmentation:
        """Return the random changes of the samples.

        Raises ValueError where they do not fit the patch.
        """
        augmentation = read_augmentation(self.config.augmentation)
        augmentation.check_patch(self.patch)
        return augmentation

    def decode(self, alive: Callable[[], None] = lambda: None) -> CachedCases:
        """Return the decoded cases, from the cache where they are there already.

        `alive` is called now and then while this takes time.
        """
        with decoding_bar() as show:
            return build_cache(
                self.source,
                cache_folder(self.config.cache_dir),
                patch=self.patch,
                progress=show,
                alive=alive,
                skip_bad=self.config.skips_bad,
            )


def open_task(config: RunConfig, opened: Callable[..., DataSource] = open_source) -> Task:
    """Open the data set of a configuration, with the function that opens a data set.

    Raises DefectsError for one with defects, unless the configuration skips them, and ValueError
    for a patch with other dimensions than the images, for a split or tiling that does not fit the
    patch, for two scores of one name, and for keys that need masks where the data set has none.
    """
    source = opened(config.data, config.data_options, skip_bad=config.skips_bad)
    if source.targets and config.foreground_share:
        raise ValueError(
            f"foreground_share={config.foreground_share} needs masks, and the data set "
            f"{source.name!r} has numbers to predict: {', '.join(source.targets)}. Leave it out."
        )
    if source.targets and config.tiling:
        raise ValueError(
            f"tiling={list(config.tiling)} needs masks, and the data set {source.name!r} has "
            f"numbers to predict: {', '.join(source.targets)}. Leave out tiling, or use split."
        )
    if config.has_regions:
        _check_regions(config, source)
    check_score_names(config.metrics, source.regions)
    check_monitors(
        config,
        source.regions,
        source.targets,
        has_own_logs=config.model.endswith(".keras") or ":" in config.model,
    )
    patch = source.chosen_patch(config.patch, is_tiled=bool(config.tiling))
    check_split(config.split, patch)
    check_split(config.tiling, patch, "tiling")
    return Task(config=config, source=source, patch=patch)


def _check_regions(config: RunConfig, source: DataSource) -> None:
    """Raise ValueError for what has no regions that a network could predict."""
    if source.targets:
        raise ValueError(
            f"outputs = 'regions' needs masks, and the data set {source.name!r} has numbers to "
            f"predict: {', '.join(source.targets)}. Leave it out."
        )
    region_labels(source.regions)
