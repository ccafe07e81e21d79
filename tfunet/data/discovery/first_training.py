"""How to train for a first look at data: patch, batch and epochs, each with its reason."""

import math
from typing import Any

import numpy as np

from tfunet.data.doubts import sizes_in_words
from tfunet.data.source import DataSource

# Patches where less than this is foreground are often empty; the share is nnU-Net's.
SPARSE, FOREGROUND_SHARE = 0.05, 0.33
TIME = (
    "How long a step takes is known once it runs: `tfunet train` prints it, and what is left, from "
    "the first minute on. On a CPU a training can take hours."
)


def add_training(
    keys: dict[str, tuple[Any, str]], source: DataSource, foreground_share: float | None
) -> None:
    """Add the keys that say how to train to (value, reason), from the size of the cases.

    `foreground_share` is the share of all pixels that are foreground, where it is known.
    """
    rank = len(source.patch)
    median = np.median(source.shapes, 0)
    most = 256 if rank == 2 else 64
    keys["patch"] = (
        list(source.patch),
        f"The median image has {sizes_in_words(median)} pixels. A patch is a multiple of 16, at "
        f"most {most}.",
    )
    batch = 8 if rank == 2 else 2
    groups = len(set(source.groups))
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
        keys["validation_share"] = (
            0.2,
            f"A fifth of the {groups} {'groups' if groups < len(source.case_ids) else 'cases'} is "
            "held out, and scored after every epoch.",
        )
    keys["global_batch"] = (
        batch,
        f"Usual for {'images' if rank == 2 else 'volumes'}. Lower it if memory runs out.",
    )
    steps = 500 if rank == 2 else 250
    keys["epochs"] = (
        max(1, round(steps * batch / (max(num_train, 1) * per_case))),
        f"About {steps} steps: a first look. Take ten times as many for a result. The same folder "
        f"goes on with more. {TIME} For a try, give `tfunet train` --steps 20, or make patch, "
        "global_batch or model_options.filters smaller.",
    )
    keys["augmentation"] = (
        {"flips": True},
        "Mirrored samples. Say false if a class is told apart by its side (left, right).",
    )
