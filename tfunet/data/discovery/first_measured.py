"""How to normalise and mirror for a first look at data, measured on some training cases.

Imports no TensorFlow.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tfunet.config.data_keys import SplitKeys
from tfunet.data.discovery import plan_rules
from tfunet.data.discovery.fingerprint import fingerprint
from tfunet.data.source import DataSource
from tfunet.data.split import split_of
from tfunet.process.terminal import counted

# What is read: so many cases, numbers in their images together, and seconds.
MOST_CASES = 16
MOST_NUMBERS = 2**26
MOST_SECONDS = 10.0
MORE = "`tfunet auto` reads all training images."


def add_measured(
    keys: dict[str, tuple[Any, str]],
    options: dict[str, tuple[Any, str]],
    model_options: dict[str, tuple[Any, str]],
    source: DataSource,
    split: SplitKeys,
    batch: int,
    *,
    channel_names: Sequence[str] = (),
    numbers: int = MOST_NUMBERS,
    seconds: float = MOST_SECONDS,
) -> None:
    """Add the intensity of images, the network's normalization and flips to (value, reason).

    They are what `plan_rules` says of an evenly spread sample of the training cases. Their images
    hold at most so many `numbers`, and after so many `seconds` no other case is read.
    """
    try:
        train = split_of(split, source).train
        chosen = _sample(source, train, numbers)
        in_time = partial(_until, time.perf_counter() + seconds)
        found = fingerprint(source, chosen, progress=in_time, skip_bad=True)
    except ValueError as error:
        options["intensity"] = (
            "zscore",
            "Each image gets mean 0 and standard deviation 1. Whether absolute brightness matters, "
            f"as in CT, was not measured. {error} {MORE}",
        )
        return
    number = len(found.cases)
    seen = f"Seen in {number} of {counted(len(train), 'training case')}. {MORE}"
    measured = [
        (options, "intensity", plan_rules.intensity(found, channel_names=channel_names)),
        (model_options, "normalization", plan_rules.normalization(found, batch)),
    ]
    axes, why = plan_rules.flips(found)
    if axes is not True:
        measured.append((keys, "augmentation", ({"flips": axes}, f"Mirrored samples.{why}")))
    for table, key, (value, reason) in measured:
        table[key] = (value, reason if number == len(train) else f"{reason} {seen}")


def _sample(source: DataSource, train: Sequence[int], numbers: int) -> list[int]:
    """Return evenly spread cases, as many as may be read; raise ValueError if none may.

    Images may be larger before they are resampled; then the time limits how many are read.
    """
    for count in range(min(MOST_CASES, len(train)), 0, -1):
        chosen = [train[place * len(train) // count] for place in range(count)]
        voxels = sum(math.prod(source.shapes[index]) for index in chosen)
        if voxels * source.channels <= numbers:
            return chosen
    raise ValueError("The images are too large for a quick look.")


def _until(end: float, indices: Iterable[int]) -> Iterator[int]:
    for position, index in enumerate(indices):
        if position and time.perf_counter() > end:
            return
        yield index
