"""How to train for a first look at data: patch, batch, epochs and filters, with their reasons."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tfunet.data.formats.units import sizes_in_words
from tfunet.data.source import DataSource
from tfunet.machine.cores import usable_cores
from tfunet.machine.environment import gpus
from tfunet.models.unet_flops import step_flops
from tfunet.models.unet_plan import DEFAULT_LEVELS
from tfunet.process.terminal import counted

# Patches where less than this is foreground are often empty; the share is nnU-Net's.
SPARSE, FOREGROUND_SHARE = 0.05, 0.33
# A first look on a CPU should not take longer. The default network has 32 filters.
MOST_SECONDS = 30 * 60.0
FILTERS = (32, 16, 8)
# A core's speed in convolutions: trainings of docs/example-data.md had 27e9 to 36e9 (AMD EPYC).
CORE_FLOPS_PER_SECOND = 30e9
# What a step takes beside convolutions.
STEP_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a training is expected to run on."""

    num_cores: int
    has_gpu: bool

    @classmethod
    def here(cls) -> Self:
        """Return this machine."""
        return cls(num_cores=len(usable_cores()), has_gpu=bool(gpus()))

    def seconds(self, flops: float) -> float:
        """Return about how long a step takes on the cores."""
        return STEP_SECONDS + flops / (CORE_FLOPS_PER_SECOND * self.num_cores)

    def time(self, flops: float, steps: int) -> str:
        """Return a sentence on how long a training takes, whose steps take so many `flops`."""
        if self.has_gpu:
            on = "On a GPU this takes a small part of the time that CPU cores take."
        else:
            cores = counted(self.num_cores, "CPU core")
            duration = _duration(steps * self.seconds(flops))
            on = f"On this machine's {cores}, this takes about {duration}."
        return f"{on} `tfunet train` says what is left, from the first minute on."


def add_training(
    keys: dict[str, tuple[Any, str]],
    model_options: dict[str, tuple[Any, str]],
    source: DataSource,
    foreground_share: float | None,
    machine: Machine,
) -> None:
    """Add the keys and options that say how to train to (value, reason), from the cases' size.

    `foreground_share` is the share of all pixels that are foreground, where it is known.
    """
    rank = len(source.patch)
    median = np.median(source.shapes, 0)
    keys["patch"] = (
        list(source.patch),
        f"The median image has {sizes_in_words(median)} pixels. A patch is a multiple of 16, at "
        f"most {256 if rank == 2 else 64}.",
    )
    batch = 8 if rank == 2 else 2
    held = keys.get("validation_groups")
    num_train = len(source.case_ids) - (
        sum(group in held[0] for group in source.groups)
        if held
        else round(0.2 * len(source.case_ids))
    )
    cover = math.prod(
        -(-int(size) // part) for size, part in zip(median, source.patch, strict=True)
    )
    per_case = min(64, max(cover, -(-25 * batch // max(num_train, 1))))
    keys["patches_per_case"] = (
        per_case,
        f"An image is as large as {cover} patch{'es' if cover > 1 else ''}, and an epoch should "
        "have 25 steps or more.",
    )
    if foreground_share is not None and foreground_share < SPARSE:
        keys["foreground_share"] = (
            FOREGROUND_SHARE,
            f"Only {foreground_share:.1%} of all pixels are foreground: many patches would be "
            "empty.",
        )
    if not held:
        groups = len(set(source.groups))
        keys["validation_share"] = (
            0.2,
            f"A fifth of the {groups} {'groups' if groups < len(source.case_ids) else 'cases'} is "
            "held out, and scored after every epoch.",
        )
    keys["global_batch"] = (
        batch,
        f"Usual for {'images' if rank == 2 else 'volumes'}. Lower it if memory runs out.",
    )
    _add_epochs(keys, model_options, source, machine, max(num_train, 1) * per_case)
    keys["augmentation"] = (
        {"flips": True},
        "Mirrored samples. Say false if a class is told apart by its side (left, right).",
    )


def _add_epochs(
    keys: dict[str, tuple[Any, str]],
    model_options: dict[str, tuple[Any, str]],
    source: DataSource,
    machine: Machine,
    samples: int,
) -> None:
    """Add epochs of so many samples, and a network that trains in time on this machine."""
    batch = keys["global_batch"][0]
    steps = 500 if len(source.patch) == 2 else 250
    epochs = max(1, round(steps * batch / samples))
    # Epochs are whole, so that many cases may need more steps.
    num_steps = max(steps, epochs * samples // batch)
    shape = (*source.patch, source.channels)
    filters, time = _fitting_filters(machine, shape, source.num_outputs, batch, num_steps)
    if filters is not None:
        model_options["filters"] = filters
    if set(source.patch) == {2**DEFAULT_LEVELS}:
        model_options["levels"] = (
            DEFAULT_LEVELS - 1,
            f"{DEFAULT_LEVELS} levels, the default, would leave a single voxel of these patches, "
            "which cannot be normalized.",
        )
    keys["epochs"] = (
        epochs,
        f"About {num_steps} steps: a first look. Take ten times as many for a result. The same "
        f"folder goes on with more. {time} For a try, give it --epochs 1, or make patch, "
        "global_batch or model_options.filters smaller.",
    )


def _fitting_filters(
    machine: Machine, shape: Sequence[int], num_classes: int, batch: int, steps: int
) -> tuple[tuple[int, str] | None, str]:
    """Return the filters of the first level with their reason, or None for the default; and a
    sentence on the time of a training.
    """
    flops = [
        step_flops(shape, num_classes=num_classes, batch=batch, filters=count) for count in FILTERS
    ]
    seconds = [steps * machine.seconds(of_step) for of_step in flops]
    at = next((at for at, time in enumerate(seconds) if time <= MOST_SECONDS), len(FILTERS) - 1)
    if at == 0 or machine.has_gpu:
        return None, machine.time(flops[0], steps)
    reason = (
        f"With the default of {FILTERS[0]} filters, {steps} steps would take about "
        f"{_duration(seconds[0])} here, on {counted(machine.num_cores, 'CPU core')} without a GPU; "
        f"with {FILTERS[at]}, about {_duration(seconds[at])}. Leave this out on a GPU."
    )
    return (FILTERS[at], reason), machine.time(flops[at], steps)


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return counted(minutes, "minute") if minutes < 100 else f"{seconds / 3600:.1f} hours"
