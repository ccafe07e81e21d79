"""The keys of a run that say which data it reads, and how. Imports no TensorFlow."""

from dataclasses import dataclass, field
from typing import Any

from tfunet.config.augmentation import read_augmentation
from tfunet.config.section import FIXED, IS_WAY, Section, fixed, free
from tfunet.config.words import check_known
from tfunet.files.urls import check_urls

BAD_SAMPLES = ("refuse", "skip")
PIPELINES = ("tf", "device", "dali")
AUTO, DECODED, FILES = STORES = ("auto", "decoded", "files")


@dataclass(frozen=True, kw_only=True)
class DataKeys(Section):
    """The data set, and the patches that are cut from its images.

    Args:
        data: The name of a built-in data set, a TOML file that describes one,
            'package.module:open' or 'file.py:open'.
        data_options: Keyword arguments for the data set.
        patch: Spatial shape of the network's input. Larger images are cropped. Smaller ones
            are padded: with zeros and the label 0, or, where the data have an ignore_label, with
            pixels that count for nothing. By default the data set chooses it.
        patches_per_case: Number of training patches drawn from each case in an epoch.
        foreground_share: Share of the training patches that are centred on a foreground voxel.
            Each class of the case is equally likely (nnU-Net uses 0.33).
    """

    data: str = fixed("cells")
    data_options: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    patch: tuple[int, ...] | None = fixed(None)
    patches_per_case: int = fixed(1)
    foreground_share: float = fixed(0.0)

    def _check(self) -> None:
        check_urls([self.data, self.data_options])
        self._at_least(1, "patches_per_case")
        if not 0 <= self.foreground_share <= 1:
            raise ValueError(
                f"foreground_share must lie between 0 and 1, got {self.foreground_share}."
            )
        if self.patch is not None and (len(self.patch) not in (2, 3) or min(self.patch) < 1):
            raise ValueError(
                f"patch must be 2 or 3 positive sizes (height, width[, depth]), got {self.patch}."
            )


@dataclass(frozen=True, kw_only=True)
class SplitKeys(Section):
    """The cases to train with, those to validate with, and those to leave out.

    Args:
        validation_share: Share of the groups to hold out for validation. In a data set without
            groups, each case is a group.
        validation_groups: Names of the groups to hold out, instead of a share.
        folds: Number of equal parts for cross-validation, instead of a share.
        fold: The part to hold out, from 0 to `folds` - 1.
        on_bad_sample: "refuse" ends the run if the data set has defects. "skip" leaves out the
            cases that cannot be used, and records why.
        split_seed: Seed of the random choice of groups. It does not depend on `seed`, so runs
            that differ only in `seed` have the same split.
    """

    validation_share: float = fixed(0.2)
    validation_groups: tuple[str, ...] = fixed(())
    folds: int | None = fixed(None)
    fold: int = fixed(0)
    on_bad_sample: str = fixed("refuse")
    split_seed: int = fixed(0)

    def _check(self) -> None:
        check_known("on_bad_sample", self.on_bad_sample, BAD_SAMPLES)
        if not 0 < self.validation_share < 1:
            raise ValueError(
                f"validation_share must lie between 0 and 1, got {self.validation_share}."
            )
        if self.folds is None:
            if self.fold:
                raise ValueError(f"fold={self.fold} needs the number of parts. Give folds too.")
            return
        self._at_least(2, "folds")
        if self.validation_groups:
            raise ValueError(
                "validation_groups and folds exclude each other: both say what is held out. Give "
                "one of them."
            )
        if not 0 <= self.fold < self.folds:
            raise ValueError(
                f"fold must lie between 0 and {self.folds - 1} with folds={self.folds}, got "
                f"{self.fold}."
            )

    @property
    def skips_bad(self) -> bool:
        """Whether cases that cannot be used are left out."""
        return self.on_bad_sample == "skip"


@dataclass(frozen=True, kw_only=True)
class InputKeys(Section):
    """How training samples are prepared.

    Args:
        augmentation: Random changes of the training samples, by name: flips, rotation90,
            rotation, scale, shear, translation, elastic, blur, brightness, contrast, gamma,
            noise. By default flips along every axis.
        pipeline: What makes training samples: "tf" on the CPU cores of the process; "device",
            which augments them inside the training step; "dali" (NVIDIA DALI), which decodes and
            augments PNG, JPEG and TIFF files, on the GPU where there is one. All give the same
            samples.
        store: Where pixels come from. "decoded": from a copy of the decoded cases, which is
            written while the first epoch is trained if `tfunet data check` found no defect, or
            `on_bad_sample` is "skip". "files": from the files themselves, box by box where their
            format allows it; a part is kept in memory. "auto" makes a copy where it has room, and
            none with pipeline = "dali". All give the same samples.
        cache_dir: Folder for decoded cases; `~` and $VARIABLES are expanded. By default it is
            $TFUNET_CACHE, or ~/.cache/tfunet if that is not set.
    """

    augmentation: dict[str, Any] = field(default_factory=dict, metadata=FIXED)
    pipeline: str = fixed("tf", **IS_WAY)
    store: str = free(AUTO, **IS_WAY)
    cache_dir: str | None = fixed(None)

    def _check(self) -> None:
        augmentation = read_augmentation(self.augmentation)
        check_known("pipeline", self.pipeline, PIPELINES)
        check_known("store", self.store, STORES)
        if self.pipeline != "dali":
            return
        if self.store == DECODED:
            raise ValueError(
                f"pipeline = 'dali' decodes files, and store = {self.store!r} makes a copy that it "
                "would not read. Leave out one of them."
            )
        if augmentation.elastic is not None:
            raise ValueError(
                "pipeline = 'dali' moves pixels by affine maps only. Leave out "
                "augmentation.elastic, or pipeline: 'tf' does it."
            )
