"""Batches for training, made by TensorFlow without Python in each step.

A pipeline is a function of the replicas that it feeds. `sample_order` decides the samples of each
step, `crop` where they are cut, and `augmentation.augment` how they are changed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, final

import numpy as np
import tensorflow as tf

from tfunet.config.augmentation import Augmentation
from tfunet.data.augmentation.augment import SampleDraws, augment, draw_orientation
from tfunet.data.augmentation.random_streams import epoch_order
from tfunet.data.cached_cases import CachedCases
from tfunet.data.crop import patch_start
from tfunet.data.dali_limits import AT_ONCE, held_pixels
from tfunet.data.encoded import EncodedCases
from tfunet.data.readers import part_reader, voxel_reader
from tfunet.data.sample_order import epoch_spans, fed_position, steps_per_epoch
from tfunet.machine.cores import usable_cores
from tfunet.parallel.feed import fed_groups, parts_of
from tfunet.parallel.mesh import Mesh, part_bounds, part_rows

if TYPE_CHECKING:
    from tfunet.data.dali import DaliSamples

PREFETCHED_BATCHES = 2
# The rows [begin, end) of a patch along each axis.
Rows = tuple[tuple[int, int], ...]


@final
@dataclass(frozen=True, kw_only=True)
class TrainingPipeline:
    """Training batches of steps first_step..last_step-1, over all their epochs.

    `pipeline(replicas)` yields, step by step and for each of these adjacent replicas in turn:
        image: (accumulation, replica_batch / accumulation, *patch, channels) float32
        mask: (accumulation, replica_batch / accumulation, *patch) uint8; none of arrays
        target: (accumulation, replica_batch / accumulation, targets) float32, if cases have some;
            of arrays the truth of any shape and type, and images are so, too
        sample: (replica_batch,) int64; sample s is a patch of case train[s // patches_per_case]
        epoch: (replica_batch,) int64

    Args:
        cases: The decoded cases; their `patch` is the spatial shape of the samples.
        train: The cases to train on, as indices of `cases`.
        patches_per_case: Samples that an epoch draws from each case.
        replica_batch: Samples per replica and optimizer step.
        num_replicas: Replicas over all processes.
        split: Parts of each sample along its axes. The replicas that a pipeline is called with
            are then devices, and each gets its part.
        stages: Parts of the network. The replicas that a pipeline is called with are then devices,
            and all of a replica get its whole samples.
        accumulation: Equal passes into which a replica's batch is cut.
        seed: Seed of the order, the crops and the augmentation.
        first_step: First optimizer step, counted over the run; not 0 in a resumed run.
        last_step: One past the last optimizer step.
        foreground_share: Share of the samples that are centred on a foreground voxel.
        augmentation: Random changes of the samples.
        augmented_by: "tf" or "device" (by `augmented`, in the step), or "dali".
        encoded: The files of the cases, which DALI decodes.
        synthetic: Repeat the batches of the first step.
    """

    cases: CachedCases
    train: tuple[int, ...]
    last_step: int
    replica_batch: int
    num_replicas: int = 1
    split: tuple[int, ...] = ()
    stages: int = 1
    patches_per_case: int = 1
    accumulation: int = 1
    seed: int = 0
    first_step: int = 0
    foreground_share: float = 0.0
    augmentation: Augmentation = field(default_factory=Augmentation)
    augmented_by: str = "tf"
    encoded: EncodedCases | None = None
    synthetic: bool = False

    def __post_init__(self) -> None:
        check_cases(self.cases, self.train)
        self.augmentation.check_patch(self.cases.patch)
        steps_per_epoch(self.num_samples, self.replica_batch * self.num_replicas)
        if self.replica_batch % self.accumulation:
            raise ValueError(
                f"replica_batch={self.replica_batch} cannot be cut into accumulation="
                f"{self.accumulation} equal passes. Choose a divisor of it."
            )
        if not 0 <= self.first_step <= self.last_step:
            raise ValueError(
                f"first_step={self.first_step} and last_step={self.last_step} must satisfy 0 <= "
                "first_step <= last_step."
            )

    @property
    def num_samples(self) -> int:
        """Samples of one epoch, the dropped tail included."""
        return len(self.train) * self.patches_per_case

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return steps_per_epoch(self.num_samples, self.replica_batch * self.num_replicas)

    @property
    def buffered_bytes(self) -> int:
        """Most bytes of samples that a process holds at a time: finished, or in the making.

        Pages of files are not counted: the system takes them back when it needs them.
        """
        # In the making: a sample on each core, a batch, and the batch that is handed over.
        samples = (PREFETCHED_BATCHES + 2) * self.replica_batch + parallel_calls()
        if self.cases.samples is not None:
            return samples * self.cases.samples.bytes_each
        if self.encoded is not None:
            held = held_pixels(self.augmentation, self.cases.patch, self.encoded.shapes)
            samples += self.replica_batch * math.ceil(held / prod(self.cases.patch))
        return samples * prod(self.cases.patch) * (self.cases.channels * 4 + 1)

    def __call__(self, replicas: range) -> tf.data.Dataset:
        """Return the batches of `replicas`."""
        mesh = Mesh(groups=self.num_replicas, split=self.split, stages=self.stages)
        check_replicas(replicas, mesh.num_devices)
        groups = fed_groups(mesh, replicas)
        rows = _whole(self.cases)
        if len(replicas) == 1 and self.changes_rows_alone:
            rows = part_rows(mesh, replicas.start, self.cases.patch)
        extents, begin = [end - first for first, end in rows], [first for first, _ in rows]
        dali = self._dali()
        read = partial(self.sample_reader(extents, dali), begin=begin)
        dataset = self.samples(groups).map(read, num_parallel_calls=parallel_calls())
        dataset = dataset.batch(self.replica_batch, drop_remainder=True)
        if dali is not None:
            dataset = dataset.map(dali, num_parallel_calls=AT_ONCE)
        dataset = dataset.map(partial(self._passes, rows=rows))
        if not mesh.is_split or self.augmented_by == "device":
            # Each device augments the whole sample, and takes its part of it then; each stage of
            # this process has whole samples.
            dataset = each_repeated(dataset, len(replicas) // len(groups))
        elif rows == _whole(self.cases):
            bounds = part_bounds(self.cases.patch, self.split)
            dataset = parts_of(dataset, mesh, replicas, bounds)
        if self.synthetic:
            num_batches = (self.last_step - self.first_step) * len(replicas)
            dataset = dataset.take(len(replicas)).cache().repeat().take(num_batches)
        return finished(dataset)

    def of_steps(self, first: int, last: int, *, synthetic: bool = False) -> "TrainingPipeline":
        """Return the same batches for other steps."""
        return replace(self, first_step=first, last_step=last, synthetic=synthetic)

    @property
    def changes_rows_alone(self) -> bool:
        """Whether augmentation of some rows of a sample needs only these, or those they mirror."""
        return self.augmented_by != "device" and not self.augmentation.of_whole_samples

    def samples(self, replicas: range) -> tf.data.Dataset:
        """Return (epoch, sample) of each sample for `replicas`, in order."""
        check_replicas(replicas, self.num_replicas)
        fed = len(replicas) * self.replica_batch
        spans = epoch_spans(self.first_step, self.last_step, self.steps_per_epoch)

        @tf.autograph.experimental.do_not_convert
        def of_epoch(span: tf.Tensor) -> tf.data.Dataset:
            epoch, first, last = span[0], span[1], span[2]
            positions = fed_position(
                tf.range(first * fed, last * fed),
                replicas,
                replica_batch=self.replica_batch,
                num_replicas=self.num_replicas,
            )
            samples = tf.gather(epoch_order(self.num_samples, self.seed, epoch), positions)
            epochs = tf.fill(tf.shape(samples), epoch)
            return tf.data.Dataset.from_tensor_slices((epochs, samples))

        table = np.asarray(spans, np.int64).reshape(-1, 3)
        return tf.data.Dataset.from_tensor_slices(table).flat_map(of_epoch)

    def first_order(self) -> list[int]:
        """Return the samples of the first epoch, from the first step on, of all replicas."""
        epoch, step = divmod(self.first_step, self.steps_per_epoch)
        order = epoch_order(self.num_samples, self.seed, tf.constant(epoch, tf.int64))
        return order[step * self.replica_batch * self.num_replicas :].numpy().tolist()

    def _dali(self) -> "DaliSamples | None":
        if self.encoded is None:
            return None
        from tfunet.data.dali import DaliSamples

        return DaliSamples(
            self.encoded,
            self.cases,
            self.train,
            self.augmentation,
            batch=self.replica_batch,
            seed=self.seed,
        )

    def _changes(self) -> Callable[..., dict[str, tf.Tensor]]:
        """Return the function that augments a part of a case; it does nothing if `augmented` does
        it, or samples are arrays.
        """

        def plain(part: dict[str, tf.Tensor], **_: tf.Tensor) -> dict[str, tf.Tensor]:
            return part

        def changed(part: dict[str, tf.Tensor], **when: tf.Tensor) -> dict[str, tf.Tensor]:
            image, mask = augment(
                part["image"], part["mask"], self.augmentation, seed=self.seed, **when
            )
            return {**part, "image": image, "mask": mask}

        is_plain = self.augmented_by == "device" or self.cases.samples is not None
        return plain if is_plain else changed

    def sample_reader(
        self, extents: Sequence[int], dali: "DaliSamples | None" = None
    ) -> Callable[..., dict[str, tf.Tensor]]:
        """Return the function (epoch, sample, begin) -> rows of its patch after augmentation.

        Args:
            extents: How many rows there are along each axis, from `begin` on. If these are not
                all, `changes_rows_alone` must hold.
            dali: Makes the samples of what is returned then, a batch at a time.
        """
        change = self._changes() if dali is None else dali.draw
        patch = np.asarray(self.cases.patch)
        read = part_reader(self.cases, extents, among=self.train) if dali is None else dali.place
        voxel_of = voxel_reader(self.cases)
        train = np.asarray(self.train, np.int64)
        shapes = np.asarray(self.cases.shapes, np.int64)

        @tf.autograph.experimental.do_not_convert
        def sample_of(
            epoch: tf.Tensor, sample: tf.Tensor, begin: tf.Tensor | Sequence[int]
        ) -> dict[str, tf.Tensor]:
            case = tf.gather(train, sample // self.patches_per_case)
            start = patch_start(
                tf.gather(shapes, case),
                self.cases.patch,
                voxel=partial(voxel_of, case),
                foreground_share=self.foreground_share,
                seed=self.seed,
                epoch=epoch,
                sample=sample,
            )
            if tuple(extents) != tuple(self.cases.patch):
                # What a flip brings to these rows lies at the other end.
                draws = SampleDraws(seed=self.seed, epoch=epoch, sample=sample)
                flipped = draw_orientation(self.augmentation, len(patch), draws)
                begin = tf.cast(begin, start.dtype)
                if flipped is not None:
                    begin = tf.where(flipped.reverse, patch - extents - begin, begin)
            part = read(case, start, begin)
            del part["case"]
            return {**change(part, epoch=epoch, sample=sample), "sample": sample, "epoch": epoch}

        return sample_of

    @tf.autograph.experimental.do_not_convert
    def _passes(self, batch: dict[str, tf.Tensor], rows: Rows) -> dict[str, tf.Tensor]:
        """Cut a replica's batch into the passes whose gradients are averaged."""
        extents = [end - begin for begin, end in rows]
        passes = (self.accumulation, self.replica_batch // self.accumulation)
        shapes = {"image": (*extents, self.cases.channels), "mask": extents}
        if "target" in batch:
            shapes["target"] = batch["target"].shape[1:]
        cut = {
            name: tf.reshape(batch[name], (*passes, *shape))
            for name, shape in shapes.items()
            if name in batch
        }
        return {**cut, "sample": batch["sample"], "epoch": batch["epoch"]}

    @tf.autograph.experimental.do_not_convert
    def augmented(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return a batch as training sees it; with augmented_by="device" it is augmented here."""
        if self.augmented_by != "device":
            return batch

        def changed(row: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor]:
            image, mask, epoch, sample = row
            return augment(
                image, mask, self.augmentation, seed=self.seed, epoch=epoch, sample=sample
            )

        images, masks = (
            tf.reshape(batch[name], (self.replica_batch, *batch[name].shape[2:]))
            for name in ("image", "mask")
        )
        # Sample by sample, as in the pipeline: the same ops give the same pixels.
        image, mask = tf.map_fn(
            changed,
            (images, masks, batch["epoch"], batch["sample"]),
            fn_output_signature=(tf.float32, tf.uint8),
        )
        whole = {"image": image, "mask": mask, "sample": batch["sample"], "epoch": batch["epoch"]}
        return {**batch, **self._passes(whole, _whole(self.cases))}


def truth_of(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return what the model's output is compared with: the masks, or the numbers to predict."""
    return batch["target"] if "target" in batch else batch["mask"]


def _whole(cases: CachedCases) -> Rows:
    return tuple((0, length) for length in cases.patch)


def parallel_calls() -> int:
    """Return how many samples are made at a time: one on each core of this process."""
    return len(usable_cores())


def each_repeated(dataset: tf.data.Dataset, times: int) -> tf.data.Dataset:
    """Return a data set with each element so many times, one after the other."""
    if times == 1:
        return dataset
    return dataset.flat_map(lambda one: tf.data.Dataset.from_tensors(one).repeat(times))


def finished(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a data set that makes its batches ahead, always in the same order."""
    options = tf.data.Options()
    options.deterministic = True
    # The tuning thread sleeps for up to a minute, and a dropped iterator waits for it (measured: 10
    # to 27 s). All that it would tune is fixed here.
    options.autotune.enabled = False
    # A backend may hand the dataset to a strategy, but each replica has its own part already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(PREFETCHED_BATCHES).with_options(options)


def check_cases(cases: CachedCases, chosen: tuple[int, ...]) -> None:
    """Raise ValueError for cases that are not distinct ones of the cache."""
    if not chosen:
        raise ValueError("This pipeline has no cases. Change validation_share.")
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(len(cases.case_ids))):
        raise ValueError(
            f"The cases of a pipeline must be distinct indices of the {len(cases.case_ids)} "
            f"that are cached, got {chosen}."
        )


def check_replicas(replicas: range, num_replicas: int) -> None:
    """Raise ValueError for replicas that are not adjacent ones of so many."""
    if replicas.step != 1 or not 0 <= replicas.start < replicas.stop <= num_replicas:
        raise ValueError(
            f"A process feeds adjacent replicas among 0..{num_replicas - 1}, got {replicas}."
        )
