"""Cuts batches of whole samples into the parts of the devices that share them."""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfunet.parallel.group import SampleGroup, cut_rows
from tfunet.parallel.mesh import Bounds, Mesh

Batch = dict[str, tf.Tensor]


def fed_groups(mesh: Mesh, devices: range) -> range:
    """Return the groups whose samples a process with these adjacent devices needs.

    Raises ValueError for devices that are neither whole groups nor inside of one.
    """
    groups = mesh.groups_of(devices)
    if len(groups) > 1 and len(devices) != len(groups) * mesh.parts:
        raise ValueError(
            f"A process has the devices {devices.start} to {devices.stop - 1}, and a sample is "
            f"shared by {mesh.parts} devices: it would have a part of a group. Choose processes "
            "so that each has whole groups, or devices of one group only."
        )
    return groups


def parts_of(
    dataset: tf.data.Dataset, mesh: Mesh, devices: range, bounds: tuple[Bounds | None, ...]
) -> tf.data.Dataset:
    """Return, of each batch of a group, the parts of the group's devices that are among `devices`.

    Parts that are smaller than the largest are filled up with zeros, so that batches of several
    devices can be stacked; `own_part` cuts that off.
    """
    first = devices.start % mesh.parts
    chosen = range(first, first + min(len(devices), mesh.parts))
    largest = tuple(
        None if cut_at is None else max(end - begin for begin, end in itertools.pairwise(cut_at))
        for cut_at in bounds
    )

    def parts(batch: Batch) -> Batch:
        return tf.nest.map_structure(
            lambda *values: tf.stack(values),
            *(_part(batch, mesh.place_of(part), bounds, largest) for part in chosen),
        )

    return dataset.map(tf.autograph.experimental.do_not_convert(parts)).unbatch()


def own_part(batch: Batch, group: SampleGroup, bounds: tuple[Bounds | None, ...]) -> Batch:
    """Return this device's part of a batch, which `parts_of` has made or which is whole."""
    rank = len(bounds)
    cut = dict(batch)
    for name, spatial in _images(batch, rank).items():
        tensor = batch[name]
        for axis, cut_at in enumerate(bounds):
            if cut_at is None:
                continue
            place = group.place[axis]
            begin, end = cut_at[place], cut_at[place + 1]
            is_whole = tensor.shape[spatial + axis] == cut_at[-1]
            rows = (begin, end) if is_whole else (0, end - begin)
            tensor = cut_rows(tensor, spatial + axis - 1, *rows)
        cut[name] = tensor
    return cut


def _images(batch: Batch, rank: int) -> dict[str, int]:
    """Return the first spatial axis of the images and masks of a batch."""
    image = batch["image"].shape.rank - 1 - rank
    return {"image": image, "mask": image} if "mask" in batch else {"image": image}


def _part(
    batch: Batch,
    place: Sequence[int],
    bounds: tuple[Bounds | None, ...],
    largest: Sequence[int | None],
) -> Batch:
    part: dict[str, Any] = dict(batch)
    for name, spatial in _images(batch, len(bounds)).items():
        tensor = batch[name]
        for axis, cut_at in enumerate(bounds):
            if cut_at is None:
                continue
            begin, end = cut_at[place[axis]], cut_at[place[axis] + 1]
            tensor = cut_rows(tensor, spatial + axis - 1, begin, end)
            missing = (largest[axis] or 0) - (end - begin)
            if missing:
                width = [(0, 0)] * tensor.shape.rank
                width[spatial + axis] = (0, missing)
                tensor = tf.pad(tensor, width)
        part[name] = tensor
    offset = [0 if cut_at is None else cut_at[at] for cut_at, at in zip(bounds, place, strict=True)]
    rows = [
        2**30 if cut_at is None else cut_at[at + 1] - cut_at[at]
        for cut_at, at in zip(bounds, place, strict=True)
    ]
    for name in {"core_start", "core_stop", "own_start", "own_stop"} & set(batch):
        moved = batch[name] - tf.constant(offset, batch[name].dtype)
        part[name] = tf.clip_by_value(moved, 0, tf.constant(rows, moved.dtype))
    if "start" in batch:
        part["start"] = batch["start"] + tf.constant(offset, batch["start"].dtype)
    return part
