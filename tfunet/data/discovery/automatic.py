"""Writes settings that follow from a data set's fingerprint into a configuration, with reasons.

Imports no TensorFlow.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.config.run import RunConfig
from tfunet.data.discovery import plan_rules
from tfunet.data.discovery.fingerprint import Fingerprint
from tfunet.data.discovery.first_training import Machine
from tfunet.data.discovery.run_file import RunFile
from tfunet.data.formats.units import sizes_in_words
from tfunet.data.source import DataSource
from tfunet.models.unet_flops import step_flops

# Their images come from files, so pixel size and intensities are options.
FROM_FILES = ("folder", "msd", "nnunet", "csv", "annotations")
# Keys that `Settings` chooses, or the same in another form.
CHOSEN = (
    *("model", "model_options", "augmentation", "patch", "patches_per_case", "foreground_share"),
    *("evaluation_halo", "replica_batch", "global_batch", "steps", "epochs"),
    *("learning_rate", "learning_rate_schedule"),
)
# Keys that fit only the network, batch, epochs or schedule that they were written for.
BELONGING = (
    *("initial_weights", "encoder_frozen_epochs", "accumulation", "micro_batches"),
    *("evaluate_every", "warmup_epochs", "decay_epochs", "decay_factor"),
)
EVALUATIONS = 10
LEARNING_RATE = 2e-3
PAPER = "Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z"


def of_config(config: RunConfig, source: DataSource, path: Path) -> RunFile:
    """Return what a configuration says of its data, and of all else that is not chosen here."""
    if config.num_devices > config.num_replicas or config.tiling:
        key = "stages" if config.stages > 1 else "tiling" if config.tiling else "split"
        raise ValueError(
            f"{path} has {key}, and only the memory of steps on whole samples and networks is "
            "predicted here. Leave it out, and give it to the file that is written."
        )
    reason = f"As in {path}."
    run = RunFile(source=source)
    run.keys["data"] = (config.data, reason)
    for key, value in _given(config).items():
        if key not in (*CHOSEN, *BELONGING, "data", "data_options"):
            run.keys[key] = (value, reason)
    if config.optimizer != RunConfig.optimizer:
        run.keys["learning_rate"] = (config.learning_rate, f"{reason} The rule is one for Adam.")
    flips = config.augmentation.get("flips", True)
    if flips is not True:
        run.augmentation["flips"] = (flips, reason)
    reasons = [reason] + [""] * len(config.data_options)
    run.options = {
        key: (value, why)
        for (key, value), why in zip(config.data_options.items(), reasons, strict=False)
    }
    return run


def not_taken(config: RunConfig) -> list[str]:
    """Return the keys that are given, and that nothing which is chosen takes the place of."""
    return [key for key in _given(config) if key in BELONGING]


def _given(config: RunConfig) -> dict[str, Any]:
    """Return the keys whose values are not the defaults."""
    default = RunConfig().values()
    return {key: value for key, value in config.values().items() if value != default.get(key)}


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Chooses settings for a data set.

    Args:
        run: What describes the data.
        found: What its training cases are like.
        target: Pixel size to resample to, if any.
        steps: Optimizer steps.
    """

    run: RunFile
    found: Fingerprint
    target: tuple[float, ...] | None
    steps: int

    @classmethod
    def of(cls, run: RunFile, found: Fingerprint, steps: int) -> "Settings":
        """Choose pixel size and intensity, and write them into the run."""
        data = run.keys["data"][0]
        stated = run.options.get("target_pixel_size", (None,))[0]
        target = None if stated is None else _each(stated, found.rank)
        if data in FROM_FILES:
            if found.spacings is not None:
                chosen, reason = plan_rules.target_spacing(found.spacings, found.shapes(None))
                if chosen is not None:
                    target = chosen
                    value = chosen[0] if len(set(chosen)) == 1 else list(chosen)
                    run.options["target_pixel_size"] = (value, reason)
            names = run.channel_names()
            run.options["intensity"] = plan_rules.intensity(found, channel_names=names)
        return cls(run=run, found=found, target=target, steps=steps)

    @property
    def shapes(self) -> np.ndarray:
        """Shapes of the training cases as training sees them, (cases, axes)."""
        return self.found.shapes(self.target)

    @property
    def median(self) -> tuple[float, ...]:
        """Median of the shapes."""
        return tuple(np.median(self.shapes, 0).tolist())

    @property
    def first_patch(self) -> tuple[int, ...]:
        """The patch without a limit of memory."""
        spacings = self.found.spacings
        spacing = self.target or (None if spacings is None else tuple(np.median(spacings, 0)))
        return plan_rules.first_patch(self.median, spacing)

    @property
    def num_replicas(self) -> int:
        """Replicas, each of which takes a batch in a step."""
        return int(self.run.keys.get("num_replicas", (1, ""))[0])

    def most_batch(self, patch: tuple[int, ...]) -> int:
        """Return the largest batch of a replica."""
        most = plan_rules.most_batch(patch, self.shapes) // self.num_replicas
        return max(plan_rules.LEAST_BATCH, most)

    def complete(self, *, patch: tuple[int, ...], levels: int, filters: int, batch: int) -> RunFile:
        """Return the run with all settings."""
        most_filters = plan_rules.MOST_FILTERS[len(patch)]
        flops = step_flops(
            (*patch, self.run.source.channels),
            num_classes=self.run.source.num_outputs,
            batch=batch,
            filters=filters,
            levels=levels,
            max_filters=most_filters,
        )
        keys = {**self.run.keys, **self._of_samples(patch, batch), **self._of_steps(flops)}
        keys.setdefault(
            "learning_rate",
            (LEARNING_RATE, "Of Adam. nnU-Net's SGD would be behind after so few steps."),
        )
        keys["learning_rate_schedule"] = (
            "polynomial",
            "Falls to 0 at the last step with the exponent 0.9 (nnU-Net).",
        )
        keys["model"] = (
            f"nnunet{len(patch)}d",
            "nnU-Net's plain network: two convolutions a level, strided ones in between.",
        )
        model_options = {
            "filters": (filters, self._why_filters(filters)),
            "levels": (
                levels,
                f"As many halvings as leave {plan_rules.LEAST_EDGE} pixels along the shortest axis "
                f"of the patch, at least {plan_rules.LEAST_LEVELS} (nnU-Net, which may halve axes "
                "apart).",
            ),
            "max_filters": (
                most_filters,
                f"The most filters of a level in {len(patch)}D (nnU-Net).",
            ),
            "normalization": plan_rules.normalization(self.found, batch),
        }
        return RunFile(
            source=self.run.source,
            keys=keys,
            augmentation=plan_rules.augmentation(
                patch, self.found, stated_flips=self.run.augmentation.get("flips")
            ),
            model_options=model_options,
            options=self.run.options,
        )

    def _of_samples(self, patch: tuple[int, ...], batch: int) -> dict[str, tuple[Any, str]]:
        """Return the keys that say which samples are drawn."""
        keys: dict[str, tuple[Any, str]] = {}
        stated = ("validation_groups", "folds", "validation_share")
        if not any(key in self.run.keys for key in stated):
            keys["validation_share"] = (
                0.2,
                "A fifth of the groups is held out, and scored after every epoch. All else here is "
                "chosen from the other cases.",
            )
        keys["patch"] = (
            list(patch),
            f"The median image has {sizes_in_words(self.median)} pixels. {self._why_patch(patch)}",
        )
        in_step, num_cases = batch * self.num_replicas, len(self.found.cases)
        per_case = max(
            -(-in_step // num_cases), round(self.steps / EVALUATIONS * in_step / num_cases), 1
        )
        keys["patches_per_case"] = (
            per_case,
            f"So that validation cases are scored about {EVALUATIONS} times.",
        )
        if self.run.source.has_background:
            keys["foreground_share"] = (
                plan_rules.FOREGROUND_SHARE,
                "A third of the patches are centred on a foreground voxel (nnU-Net).",
            )
        if (self.shapes > np.array(patch)).any():
            keys["evaluation_halo"] = (
                min(patch) // 8,
                "Images are larger than a patch: windows overlap, because pixels at a border are "
                "predicted worse (nnU-Net overlaps by half, which takes longer).",
            )
        keys["replica_batch"] = (batch, self._why_batch(batch, patch))
        return keys

    def _of_steps(self, flops: float) -> dict[str, tuple[Any, str]]:
        """Return the key with the steps, of which each takes so many `flops`."""
        return {
            "steps": (
                self.steps,
                "As --steps says. nnU-Net takes 250,000: take as many as you have time for. "
                f"{Machine.here().time(flops, self.steps)} For a try, give it --steps 20 (its "
                "learning rate falls to 0, so no such run is trained further), or make patch, "
                "replica_batch or filters smaller.",
            )
        }

    def _why_patch(self, patch: tuple[int, ...]) -> str:
        if patch == self.first_patch:
            return (
                "A patch covers it, rounded up to what the network halves (nnU-Net)."
                if (np.array(patch) >= self.median).all()
                else "The patch is nnU-Net's largest."
            )
        return (
            "The largest patch with which a batch of 2 fits in memory: shortened along the axis "
            "that covers most of the median image (nnU-Net)."
        )

    def _why_batch(self, batch: int, patch: tuple[int, ...]) -> str:
        most = self.most_batch(patch)
        if batch < most:
            return (
                "The largest batch that is predicted to fit in memory. nnU-Net goes by a table "
                "instead."
            )
        least = "At least 2 (nnU-Net). " if batch == plan_rules.LEAST_BATCH else ""
        return (
            f"{least}More samples in a step would be more than {plan_rules.MOST_COVERED:.0%} of "
            "the voxels of all training cases (nnU-Net)."
        )

    def _why_filters(self, filters: int) -> str:
        if filters == plan_rules.FILTERS:
            return "Of the first level; each next one has twice as many (nnU-Net)."
        floor = plan_rules.WORTHWHILE_PATCH[self.found.rank]
        return (
            f"Of the first level. With nnU-Net's {plan_rules.FILTERS} no patch of {floor} or more "
            "pixels a side would fit in memory."
        )


def _each(sizes: Any, rank: int) -> tuple[float, ...]:
    each = sizes if isinstance(sizes, list | tuple) else [sizes] * rank
    return tuple(map(float, each))
