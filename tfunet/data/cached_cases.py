"""Decoded cases as they lie in the files of the cache. Imports no TensorFlow.

One raw file holds all images, one after another, and a second all masks, so that any part of any
case can be mapped into memory. The processes of a machine share the pages; nothing is copied until
a patch is cut out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from pathlib import Path

from tfunet.data.arrays import ArraySamples
from tfunet.data.case_signs import CaseSigns
from tfunet.data.source import DataSource
from tfunet.geometry.windows import padding_before


@dataclass(frozen=True, kw_only=True)
class CachedCases:
    """Cases as they lie in the files of the cache.

    Args:
        image_path: float32 little-endian (*spatial, channels), case after case.
        mask_path: uint8 (*spatial), case after case.
        extents: Spatial shape of each case as it was read.
        patch: Smallest spatial shape; smaller cases were padded to it.
        foreground_path: int64 little-endian: indices of foreground voxels in their flattened case,
            case after case, label after label from 1; see `tfunet.data.foreground`.
        foreground_counts: Number of these voxels for each case and label from 1.
        targets: The numbers to predict of each case, (targets,) each; empty for masks.
        samples: The samples of a data set of arrays: there are no files.
        signs: What decoding each case showed.
        defects: Case index to what is wrong with it, for skipped cases, whose extent is 0.
    """

    image_path: Path
    mask_path: Path
    case_ids: tuple[str, ...]
    num_classes: int
    channels: int
    extents: tuple[tuple[int, ...], ...]
    patch: tuple[int, ...]
    foreground_path: Path
    foreground_counts: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[float, ...], ...] = ()
    samples: ArraySamples | None = None
    signs: tuple[CaseSigns, ...] = ()
    defects: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Spatial shape of each case in the cache: at least `patch`."""
        return tuple(tuple(map(max, extent, self.patch)) for extent in self.extents)

    @cached_property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """Voxel of each padded case at which the case as it was read begins."""
        return tuple(padding_before(extent, self.patch) for extent in self.extents)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Voxels before each case in the files, and at last before their ends."""
        return tuple(accumulate(map(prod, self.shapes), initial=0))

    @property
    def num_voxels(self) -> int:
        """Voxels of all cases in the cache."""
        return self.offsets[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return self.num_voxels * (self.channels * 4 + 1) + self.num_foreground * 8

    @property
    def num_foreground(self) -> int:
        """Foreground voxels whose indices are kept."""
        return sum(map(sum, self.foreground_counts))


def cached_cases(
    home: Path,
    source: DataSource,
    patch: tuple[int, ...],
    extents: Sequence[Sequence[int]],
    counts: Sequence[Sequence[int]],
    signs: Sequence[CaseSigns],
    defects: Mapping[int, str],
) -> CachedCases:
    """Return the source's cases as they lie in the folder `home`."""
    return CachedCases(
        image_path=home / "images.bin",
        mask_path=home / "masks.bin",
        case_ids=source.case_ids,
        num_classes=source.num_classes,
        channels=source.channels,
        extents=tuple(map(tuple, extents)),
        patch=patch,
        foreground_path=home / "foreground.bin",
        foreground_counts=tuple(map(tuple, counts)),
        targets=tuple(zip(*source.targets.values(), strict=True)),
        signs=tuple(signs),
        defects=defects,
    )


def cases_of_arrays(source: DataSource, samples: ArraySamples) -> CachedCases:
    """Return the samples of a data set of arrays as cases that are in memory, not in files."""
    count = len(source.case_ids)
    return CachedCases(
        image_path=Path(),
        mask_path=Path(),
        case_ids=source.case_ids,
        num_classes=source.num_classes,
        channels=source.channels,
        extents=(source.patch,) * count,
        patch=source.patch,
        foreground_path=Path(),
        foreground_counts=((),) * count,
        samples=samples,
        # One hash is of all of them.
        signs=(CaseSigns(content=samples.content, label_pixels=()),) * count,
    )
