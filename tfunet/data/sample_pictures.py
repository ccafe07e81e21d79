"""Shows training samples as a run sees them, before and after augmentation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import tensorflow as tf

from tfunet.config.augmentation import KINDS, TURNS, Augmentation
from tfunet.config.run import RunConfig
from tfunet.data.augmentation.augment import augment
from tfunet.data.augmentation.random_streams import epoch_order
from tfunet.data.check import case_defects
from tfunet.data.crop import patch_start
from tfunet.data.defects import Defect, DefectsError
from tfunet.data.foreground import ForegroundVoxels, chosen_voxel
from tfunet.data.source import DataSource
from tfunet.data.split import split_of
from tfunet.data.task import open_task
from tfunet.data.true_colours import true_colours
from tfunet.files.atomic import replacing
from tfunet.geometry.windows import padding_before

NOTHING = Augmentation(flips=False)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A training sample, and its number among all, as `tfunet.data.pipeline` cuts it in one epoch,
    before augmentation.
    """

    case_id: str
    number: int
    image: np.ndarray
    mask: np.ndarray

    def changed(
        self, augmentation: Augmentation, *, seed: int, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return image and mask as training sees them in an epoch."""
        arrays = tf.constant(self.image), tf.constant(self.mask)
        when = {
            "epoch": tf.constant(epoch, tf.int64),
            "sample": tf.constant(self.number, tf.int64),
        }
        image, mask = augment(*arrays, augmentation, seed=seed, **when)
        return image.numpy(), mask.numpy()


def show(
    config: RunConfig, path: Path, *, num_samples: int = 4, epoch: int = 0, each: bool = False
) -> None:
    """Draw the first samples of an epoch before and after augmentation, into a file.

    Args:
        path: File to write; its suffix gives the format, such as .png or .svg.
        epoch: Counted from 0.
        each: Draw one sample once for each augmentation of the configuration, whatever its
            probability.

    Raises ValueError for what is wrong with configuration or data, and where matplotlib is
    missing; WriteError if the file cannot be written.
    """
    sheet = _import_sheet()
    for name, value, least in (("num_samples", num_samples, 1), ("epoch", epoch, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")
    if path.suffix not in sheet.SUFFIXES:
        raise ValueError(
            f"A picture cannot be written as {path.name!r}. Give a name that ends in "
            f"{', '.join(sheet.SUFFIXES)}."
        )
    task = open_task(config)
    source, augmentation = task.source, task.augmentation()
    source.check_images("tfunet data show")
    panels = []
    for sample in first_samples(config, source, 1 if each else num_samples, epoch=epoch):
        coloured = true_colours(source, source.case_ids.index(sample.case_id))
        panels.append(sheet.Panel(sample.case_id, coloured(sample.image), sample.mask))
        for title, variant in _variants(augmentation, each=each):
            image, mask = sample.changed(variant, seed=config.seed, epoch=epoch)
            panels.append(sheet.Panel(title, coloured(image), mask))
    ignored = {} if source.ignored is None else {source.ignored: "no data"}
    drawing = sheet.draw(
        panels,
        title=f"{source.name}, seed {config.seed}, epoch {epoch}",
        labels=source.label_names() | ignored,
        in_pairs=not each,
        in_colour=source.in_colour,
        ignored=source.ignored,
    )
    with replacing(path) as partial:
        drawing.savefig(partial)


def first_samples(
    config: RunConfig, source: DataSource, num_samples: int, *, epoch: int
) -> list[Sample]:
    """Return the first samples of an epoch, before augmentation."""
    split = split_of(config, source)
    patch = source.chosen_patch(config.patch, is_tiled=bool(config.tiling))
    when = tf.constant(epoch, tf.int64)
    total = len(split.train) * config.patches_per_case
    numbers = epoch_order(total, config.seed, when)[:num_samples]
    samples = []
    for number in numbers.numpy().tolist():
        index = split.train[number // config.patches_per_case]
        image, mask = source.read_case(index)
        case_id = source.case_ids[index]
        if defects := case_defects(source, image, mask):
            raise DefectsError(source.name, [Defect(file=case_id, what=what) for what in defects])
        voxels = ForegroundVoxels(source.num_classes)
        voxels.add(mask)
        voxel = partial(_voxel, voxels.places(), mask.shape, padding_before(mask.shape, patch))
        image, mask = _padded(image, patch), _padded(mask, patch, source.label_around)
        corner = patch_start(
            tf.constant(mask.shape, tf.int64),
            patch,
            voxel=voxel,
            foreground_share=config.foreground_share,
            seed=config.seed,
            epoch=when,
            sample=number,
        ).numpy()
        inside = tuple(
            slice(start, start + size) for start, size in zip(corner, patch, strict=True)
        )
        samples.append(
            Sample(case_id=case_id, number=number, image=image[inside], mask=mask[inside])
        )
    return samples


def _variants(augmentation: Augmentation, *, each: bool) -> list[tuple[str, Augmentation]]:
    if not each:
        return [("augmented", augmentation)]
    turns = {name: getattr(augmentation, name) for name in TURNS}
    amounts = {name: getattr(augmentation, name) for name in KINDS}
    # With probability 1, or a panel might show its sample unchanged.
    sure = {name: replace(amount, probability=1.0) for name, amount in amounts.items() if amount}
    values = {**turns, **sure}
    variants = [
        (name, replace(NOTHING, **{name: value})) for name, value in values.items() if value
    ]
    if not variants:
        raise ValueError("All augmentations are off: there is nothing to show. Set some.")
    return variants


def _voxel(
    places: Sequence[np.ndarray], shape: Sequence[int], origin: Sequence[int], bits: tf.Tensor
) -> tf.Tensor:
    chosen = chosen_voxel([len(each) for each in places], bits.numpy().tolist())
    if chosen is None:
        return tf.fill([len(shape)], tf.constant(-1, tf.int64))
    label, number = chosen
    return tf.constant(np.unravel_index(places[label][number], shape) + np.array(origin), tf.int64)


def _padded(array: np.ndarray, patch: Sequence[int], value: int = 0) -> np.ndarray:
    """Return an array, as in the cache: padded with a value to at least the patch."""
    lengths = array.shape[: len(patch)]
    before = padding_before(lengths, patch)
    widths = [
        (start, max(size - length - start, 0))
        for start, size, length in zip(before, patch, lengths, strict=True)
    ]
    widths += [(0, 0)] * (array.ndim - len(patch))
    return np.pad(array, widths, constant_values=value)


def _import_sheet() -> ModuleType:
    try:
        from tfunet.data import overlay_figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ValueError(
            "A picture needs matplotlib, which is not installed. Install it with: "
            "pip install 'tfunet[report]'"
        ) from error
    return overlay_figure
