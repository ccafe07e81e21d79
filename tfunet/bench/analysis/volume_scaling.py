"""Weak scaling in space: samples that grow with the devices that share each of them. Pure."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tfunet.bench.analysis.confidence_intervals import Estimate
from tfunet.bench.analysis.study_cell import Cell, speed_ratio
from tfunet.bench.analysis.sweep_summary import Family
from tfunet.config.keys import WAY


@dataclass(frozen=True, kw_only=True)
class VolumeScaling:
    """Samples that several devices share, against smaller ones that one device has to itself.

    Args:
        upper: The cell whose samples are shared; a device has as many voxels as in `lower`.
        lower: The cell with one device for each sample.
        efficiency: Samples a second of `upper`, divided by those of `lower`.
    """

    upper: Cell
    lower: Cell
    efficiency: Estimate

    @property
    def num_parts(self) -> int:
        """Devices that share a sample."""
        return self.upper.num_devices // self.upper.num_replicas


def volume_scaling(families: Iterable[Family]) -> Iterator[VolumeScaling]:
    """Yield each cell that splits its samples, with the cells on whole samples of a part's size."""
    # A cell with one replica can be in several families.
    cells = {cell.trials[0].id: cell for family in families for cell in family.cells}.values()
    shared = [cell for cell in cells if math.prod(cell.trials[0].config.split) > 1]
    whole = [cell for cell in cells if cell.num_devices == cell.num_replicas]
    for upper, lower in itertools.product(shared, whole):
        efficiency = speed_ratio(upper.trials, lower.trials)
        if efficiency is not None and _is_part_of(lower, upper) and _rest(lower) == _rest(upper):
            yield VolumeScaling(upper=upper, lower=lower, efficiency=efficiency)


def _is_part_of(lower: Cell, upper: Cell) -> bool:
    """Whether samples of `lower` are as large as each part of those of `upper`."""
    small, config = lower.trials[0].config.patch, upper.trials[0].config
    if small is None or config.patch is None or len(small) != len(config.split):
        return False
    return config.patch == tuple(map(math.prod, zip(small, config.split, strict=True)))


def _rest(cell: Cell) -> dict[str, Any]:
    """Return the settings in which two cells that are compared may not differ."""
    left_out = {*WAY, "patch", "seed", "fold"}
    return {k: v for k, v in vars(cell.trials[0].config).items() if k not in left_out}
