"""Predicts prepared cases of a data set in memory, for cross-validation."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np

from tfunet.data.lazy_image import LazyImage
from tfunet.data.source import DataSource, open_source
from tfunet.geometry.tiles import bands, blended
from tfunet.prediction.ensemble import Member, load_members
from tfunet.prediction.windows import predictor, windows_at_once
from tfunet.record import RunFolder


@final
class HeldOut:
    """The networks of runs of one configuration, and the data set that they were trained on.

    Args:
        runs: Their folders.
        mirror: Whether windows are mirrored, too.
    """

    def __init__(self, runs: Sequence[Path], *, mirror: bool) -> None:
        self._members = {member.run: member for member in load_members(runs, mirror=mirror)}
        self._forwards: dict[Path, tuple] = {}

    @property
    def first(self) -> Member:
        """One of the networks."""
        return next(iter(self._members.values()))

    @cached_property
    def source(self) -> DataSource:
        """The data set."""
        config = self.first.network.config
        RunFolder(self.first.run).check_programs(config, ["data"])
        return open_source(config.data, config.data_options, skip_bad=config.skips_bad)

    def probabilities(self, image: np.ndarray, runs: Sequence[Path]) -> list[np.ndarray]:
        """Return the probabilities (*spatial, classes or regions) of an image, by each run."""
        for run in self._forwards.keys() - set(runs):  # Not all networks at once.
            del self._forwards[run]
        return [self._of_run(image, run) for run in runs]

    def _of_run(self, image: np.ndarray, run: Path) -> np.ndarray:
        member = self._members[run]
        window = member.network.patch
        if run not in self._forwards:
            self._forwards[run] = member.forward(window)
        num_logits, forward = self._forwards[run]
        tiling = blended(image.shape[:-1], window)
        array = LazyImage(
            shape=image.shape[:-1],
            channels=image.shape[-1],
            read=lambda start, stop: image[tuple(map(slice, start, stop))],
            by_parts=True,
        )
        predict = predictor(tiling, [array], forward, windows_at_once(window))
        logits = bands(tiling, lambda line: tiling.line_sum(line, predict, num_logits))
        return np.concatenate([member.network.outputs.probabilities(band) for band in logits])
