"""What a configuration trains on: its data set and the samples of it. Imports no TensorFlow."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tfunet.config.augmentation import Augmentation, read_augmentation
from tfunet.config.case_metrics import OWN, case_metrics, check_score_names
from tfunet.config.data_keys import DECODED, FILES
from tfunet.config.monitors import check_monitors
from tfunet.config.run import RunConfig
from tfunet.data import dali_limits
from tfunet.data.cache import build_cache, cache_folder
from tfunet.data.cached_cases import CachedCases, cases_of_arrays
from tfunet.data.encoded import EncodedCases
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

        Raises ValueError where they do not fit the patch, or the pipeline.
        """
        augmentation = read_augmentation(self.config.augmentation)
        augmentation.check_patch(self.patch)
        if self.config.pipeline == "dali":
            dali_limits.check_patch(augmentation, self.patch)
        return augmentation

    def encoded(self) -> EncodedCases | None:
        """Return the files that DALI decodes; None where another pipeline reads the cases.

        Raises ValueError for files that DALI does not decode.
        """
        return dali_limits.encoded_cases(self.source) if self.config.pipeline == "dali" else None

    def decode(
        self, alive: Callable[[], None] = lambda: None, *, store: str = DECODED, whole: bool = True
    ) -> CachedCases:
        """Return the decoded cases, from the cache where they are there already.

        `alive` is called now and then while this takes time. The rest is as in `build_cache`. With
        pipeline = "dali" there is no copy: what is not for training is read from the files.
        """
        if self.config.pipeline == "dali":
            store = FILES
        if self.source.samples is not None:
            return cases_of_arrays(self.source, self.source.samples)
        with decoding_bar() as show:
            return build_cache(
                self.source,
                cache_folder(self.config.cache_dir),
                patch=self.patch,
                store=store,
                whole=whole,
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
    _check_masks(config, source)
    if source.samples is not None:
        _check_arrays(config, source)
    check_score_names(config.metrics, source.regions)
    check_monitors(
        config,
        source.regions,
        source.targets,
        has_own_logs=source.samples is None
        and (config.model.endswith(".keras") or ":" in config.model),
        has_arrays=source.samples is not None,
    )
    patch = source.chosen_patch(config.patch, is_tiled=bool(config.tiling))
    check_split(config.split, patch)
    check_split(config.tiling, patch, "tiling")
    return Task(config=config, source=source, patch=patch)


def _check_masks(config: RunConfig, source: DataSource) -> None:
    """Raise ValueError for keys that need masks where there are none, or regions that no network
    could predict.
    """
    needy = {
        f"foreground_share={config.foreground_share}": config.foreground_share > 0,
        f"tiling={list(config.tiling)}": bool(config.tiling),
        "outputs = 'regions'": config.has_regions,
    }
    for key, is_asked in needy.items():
        if is_asked and not source.has_masks:
            raise ValueError(
                f"{key} needs masks, and the data set {source.name!r} has "
                f"{source.instead_of_masks}. Leave it out."
            )
    if config.has_regions:
        region_labels(source.regions)


def _check_arrays(config: RunConfig, source: DataSource) -> None:
    """Raise ValueError for keys that change images of cases, which arrays are not."""
    given = {
        "augmentation": bool(config.augmentation),
        "patch": config.patch not in (None, source.patch),
        "patches_per_case": config.patches_per_case > 1,
        "evaluation_halo": config.evaluation_halo > 0,
        "pipeline": config.pipeline != "tf",
        "tournament": bool(config.tournament),
    }
    for key, is_given in given.items():
        if is_given:
            raise ValueError(
                f"{key} = {json.dumps(getattr(config, key))} is for images of cases, and the data "
                f"set {source.name!r} has arrays, whose samples are used as they are. Leave it "
                "out; what changes samples belongs in the model, as layers of Keras."
            )
    if metrics := [one for one in case_metrics(config.metrics) if one.kind != OWN]:
        raise ValueError(
            f"metrics names {metrics[0].name!r}, which measures masks, and the data set "
            f"{source.name!r} has arrays. Name metrics of Keras, such as 'accuracy' or 'mae'."
        )
