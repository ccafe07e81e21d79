"""Generated data sets that need no download, in 2D and 3D. Imports no TensorFlow.

A case depends only on (seed, index), so any process can make any case in any order. Brightness
alone does not solve the task: background objects are as bright as foreground objects, light is
uneven, and shapes and contrasts differ between cases.
"""

import hashlib
from collections.abc import Callable
from functools import partial

import numpy as np

from tfunet.data.generated.cell_scene import cell_case
from tfunet.data.generated.fractal_scene import OCTANTS, fractal_case
from tfunet.data.generated.tumour_scene import MODALITIES, tumour_case
from tfunet.data.generated.universe_scene import GROWTH, TARGETS, universe_case, universe_targets
from tfunet.data.preprocess import normalise
from tfunet.data.source import DataSource

# Part of the fingerprint: increase it when a change here changes pixels.
PHANTOM_VERSION = 2


def cells(
    *,
    num_cases: int = 48,
    size: int = 128,
    seed: int = 0,
    noise: float = 1.0,
    border: bool = False,
) -> DataSource:
    """Open 2D microscopy-like cells: touching, blurred, noisy, unevenly lit.

    The line between touching cells is background, or with `border` a class of its own.
    Out-of-focus cells, debris and fibres are background.

    Args:
        num_cases: Number of images.
        size: Rows and columns, at least 32.
        seed: Another seed gives other images.
        noise: Strength; 1 is usual, 0 is none.
        border: Add the class of the lines between touching cells.
    """
    _at_least("size", size, 32)
    _at_least("noise", noise, 0)
    regions: dict[str, tuple[int, ...]] = {"cell": (1,)}
    if border:
        regions["border"] = (2,)
    make = partial(cell_case, size=size, noise=noise, border=border)
    settings = f"cells {size} {seed} {noise} {border}"
    return _source("cells", settings, num_cases, seed, make, regions, 1, (size, size))


def tumours(
    *,
    num_cases: int = 24,
    size: int = 48,
    seed: int = 0,
    noise: float = 1.0,
    channels: int = 4,
) -> DataSource:
    """Open 3D brain-like volumes with nested tumours, in up to four MR-like modalities.

    Labels: 1 edema, 2 non-enhancing core, 3 enhancing. Regions, as in the BraTS
    challenge: whole (1, 2, 3), core (2, 3), enhancing (3). Ventricles, vessels and white-matter
    lesions are as bright as parts of the tumour, and background.

    Args:
        num_cases: Number of volumes.
        size: Length of each side, at least 16.
        seed: Another seed gives other volumes.
        noise: Strength; 1 is usual, 0 is none.
        channels: How many of FLAIR, T1 with contrast agent, T2, T1, in this order.
    """
    _at_least("size", size, 16)
    _at_least("noise", noise, 0)
    if not 1 <= channels <= len(MODALITIES):
        raise ValueError(f"channels must be 1 to {len(MODALITIES)}, got {channels}.")
    regions: dict[str, tuple[int, ...]] = {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
    make = partial(tumour_case, size=size, noise=noise, channels=channels)
    settings = f"tumours {size} {seed} {noise} {channels}"
    return _source("tumours", settings, num_cases, seed, make, regions, channels, (size,) * 3)


def fractals(
    *,
    num_cases: int = 40,
    scale: int = 5,
    seed: int = 0,
    noise: float = 1.0,
    num_categories: int = 3,
) -> DataSource:
    """Open 3D volumes of fractals, in form like those of LLNL's ScaFFold benchmark.

    The volume is (2**scale) cubed. A category is an iterated function system; the mask has the
    category of the fractal that a voxel belongs to.

    Args:
        num_cases: Number of volumes.
        scale: Power of two of each side, from 4 to 11.
        seed: Another seed gives other categories and other volumes.
        noise: Strength; 1 is usual, 0 is none.
        num_categories: How many kinds of fractals there are; each volume has one of each.
    """
    if not 4 <= scale <= 11:
        raise ValueError(f"scale must be 4 to 11 (volumes of 16 to 2048 cubed), got {scale}.")
    _at_least("noise", noise, 0)
    if not 1 <= num_categories <= OCTANTS:
        raise ValueError(f"num_categories must be 1 to {OCTANTS}, got {num_categories}.")
    make = partial(
        fractal_case,
        size=2**scale,
        noise=noise,
        num_categories=num_categories,
        seed=seed,
    )
    regions: dict[str, tuple[int, ...]] = {
        f"category{number + 1}": (number + 1,) for number in range(num_categories)
    }
    settings = f"fractals {scale} {seed} {noise} {num_categories}"
    return _source("fractals", settings, num_cases, seed, make, regions, 1, (2**scale,) * 3)


def universes(
    *,
    num_cases: int = 64,
    size: int = 32,
    seed: int = 0,
    noise: float = 1.0,
    channels: int = 1,
) -> DataSource:
    """Open 3D fields of matter, each made from three numbers that a model is to predict.

    There are no masks. The numbers, from -1 to 1, are named after the parameters of CosmoFlow's
    universes: omega_m (how much matter), sigma_8 (how uneven), n_s (how much of that on small
    scales). Images are log(1 + counts), not normalised: their mean and deviation matter.

    Args:
        num_cases: Number of volumes.
        size: Length of each side, at least 16.
        seed: Another seed gives other volumes.
        noise: Strength of the scatter of counts; 1 is usual, 0 is none.
        channels: How many times, 1 to 4: today and earlier, when matter was more even.
    """
    _at_least("size", size, 16)
    _at_least("noise", noise, 0)
    _at_least("num_cases", num_cases, 1)
    _at_least("seed", seed, 0)
    if not 1 <= channels <= len(GROWTH):
        raise ValueError(f"channels must be 1 to {len(GROWTH)}, got {channels}.")

    def read(index: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([seed, index])
        image = universe_case(rng, size=size, noise=noise, channels=channels)
        return image, np.zeros(image.shape[:-1], np.uint8)

    drawn = [universe_targets(np.random.default_rng([seed, index])) for index in range(num_cases)]
    columns = np.array(drawn).T.tolist()
    ids = tuple(f"universes-{index:03d}" for index in range(num_cases))
    return DataSource(
        name="universes",
        case_ids=ids,
        groups=ids,
        num_classes=1,
        channels=channels,
        regions={},
        targets=dict(zip(TARGETS, map(tuple, columns), strict=True)),
        patch=(size,) * 3,
        fingerprint=_fingerprint(f"universes {size} {seed} {noise} {channels}", num_cases),
        read=read,
    )


def _fingerprint(settings: str, num_cases: int) -> str:
    text = f"{settings.split()[0]} {PHANTOM_VERSION} {settings} {num_cases}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _source(
    name: str,
    settings: str,
    num_cases: int,
    seed: int,
    make: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]],
    regions: dict[str, tuple[int, ...]],
    channels: int,
    patch: tuple[int, ...],
) -> DataSource:
    _at_least("num_cases", num_cases, 1)
    _at_least("seed", seed, 0)

    def read(index: int) -> tuple[np.ndarray, np.ndarray]:
        image, mask = make(np.random.default_rng([seed, index]))
        return normalise(image, "zscore"), mask

    ids = tuple(f"{name}-{index:03d}" for index in range(num_cases))
    return DataSource(
        name=name,
        case_ids=ids,
        groups=ids,
        num_classes=1 + max(label for labels in regions.values() for label in labels),
        channels=channels,
        regions=regions,
        patch=patch,
        fingerprint=_fingerprint(settings, num_cases),
        read=read,
    )


def _at_least(name: str, value: float, bound: float) -> None:
    if value < bound:
        raise ValueError(f"{name} must be at least {bound}, got {value}.")
