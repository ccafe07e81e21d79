"""Draws one 3D brain-like volume with a tumour and its mask. Imports no TensorFlow."""

from dataclasses import dataclass

import numpy as np

from tfunet.data.generated.noise_and_shapes import blur, ellipsoid, sigmoid, smooth_field

# Brightness of each tissue, before random deviations in each case.
CONTRAST = {
    "flair": {
        "white": 0.45, "grey": 0.66, "fluid": 0.12, "edema": 0.95, "core": 0.66,
        "enhancing": 0.84, "lesion": 1.00, "vessel": 0.45,
    },
    "t1c": {
        "white": 0.62, "grey": 0.50, "fluid": 0.15, "edema": 0.48, "core": 0.28,
        "enhancing": 1.10, "lesion": 0.45, "vessel": 1.05,
    },
    "t2": {
        "white": 0.40, "grey": 0.55, "fluid": 1.00, "edema": 0.80, "core": 1.05,
        "enhancing": 0.65, "lesion": 0.60, "vessel": 0.30,
    },
    "t1": {
        "white": 0.68, "grey": 0.52, "fluid": 0.18, "edema": 0.46, "core": 0.28,
        "enhancing": 0.48, "lesion": 0.58, "vessel": 0.50,
    },
}  # fmt: skip
MODALITIES = tuple(CONTRAST)


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The share of each tissue in each voxel, 0 to 1, and the mask."""

    brain: np.ndarray
    white: np.ndarray
    fluid: np.ndarray
    lesions: np.ndarray
    vessels: np.ndarray
    mask: np.ndarray


def tumour_case(
    rng: np.random.Generator, *, size: int, noise: float, channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return one volume, float32 (size, size, size, channels), not normalised, and its mask."""
    anatomy = _anatomy(rng, size)
    sigma = rng.uniform(0.5, 0.8)
    tumour = [blur(anatomy.mask == label, sigma) for label in (1, 2, 3)]
    volumes = [
        _modality(rng, anatomy, tumour, CONTRAST[name], noise) for name in MODALITIES[:channels]
    ]
    return np.stack(volumes, axis=-1), anatomy.mask


def _anatomy(rng: np.random.Generator, size: int) -> Anatomy:
    shape = (size, size, size)
    line = np.linspace(-1, 1, size, dtype=np.float32)
    grid = np.stack(np.meshgrid(line, line, line, indexing="ij"))
    folds = smooth_field(rng, shape, max(3, size // 5))
    half_axes = np.array([0.8, 0.92, 0.75]) * rng.uniform(0.9, 1.05, 3)
    skull = ellipsoid(grid, rng.uniform(-0.05, 0.05, 3), half_axes) + 0.04 * folds
    creases = smooth_field(rng, shape, max(2, size // 9))
    white = sigmoid(12 * (0.74 - skull + 0.15 * folds + 0.1 * creases))
    fluid = _fluid(rng, grid, skull, folds, creases)
    mask = _tumour(rng, grid, skull, fluid)
    outside = mask == 0
    return Anatomy(
        brain=(skull < 1).astype(np.float32),
        white=white,
        fluid=fluid,
        lesions=_lesions(rng, grid) * white * outside,
        vessels=_vessels(rng, grid) * (skull < 1) * outside,
        mask=mask,
    )


def _modality(
    rng: np.random.Generator,
    anatomy: Anatomy,
    tumour: list[np.ndarray],
    contrast: dict[str, float],
    noise: float,
) -> np.ndarray:
    shape = anatomy.mask.shape
    level = {name: float(value * np.exp(rng.normal(0, 0.08))) for name, value in contrast.items()}
    scene = level["grey"] + anatomy.white * (level["white"] - level["grey"])
    scene += anatomy.fluid * (level["fluid"] - scene)
    scene += anatomy.lesions * (level["lesion"] - scene)
    scene += anatomy.vessels * (level["vessel"] - scene)
    scene *= (1 - tumour[0] - tumour[1] - tumour[2]).clip(0, 1)
    for share, name in zip(tumour, ("edema", "core", "enhancing"), strict=True):
        scene += share * level[name]
    scene *= 1 + 0.07 * smooth_field(rng, shape, max(2, shape[0] // 8))
    bias = np.exp(0.2 * smooth_field(rng, shape, shape[0] // 2 + 1))
    scene = blur(scene * anatomy.brain * bias, rng.uniform(0.4, 0.7))
    # Rician noise: a magnitude image of two noisy components.
    real, imaginary = rng.standard_normal((2, *shape), dtype=np.float32) * (0.04 * noise)
    return np.sqrt((scene + real) ** 2 + imaginary**2)


def _fluid(
    rng: np.random.Generator,
    grid: np.ndarray,
    skull: np.ndarray,
    folds: np.ndarray,
    creases: np.ndarray,
) -> np.ndarray:
    """Return the share of fluid: two ventricles, sulci under the surface, and a rim."""
    width, reach = rng.uniform(0.08, 0.16), rng.uniform(0.3, 0.45)
    apart = width + rng.uniform(0.02, 0.06)
    left, right = (
        ellipsoid(grid, (0.0, 0.05, side * apart), (reach, 0.5, width)) for side in (-1, 1)
    )
    inside = sigmoid(10 * (1 - np.minimum(left, right) - 0.15 * folds))
    sulci = sigmoid(10 * (creases + 5 * (skull - 0.95) - 0.3)) * (skull > 0.72)
    return np.maximum(inside, sulci)


def _tumour(
    rng: np.random.Generator, grid: np.ndarray, skull: np.ndarray, fluid: np.ndarray
) -> np.ndarray:
    """Return the mask: a ragged edema, a core in it, and in that a torn enhancing shell."""
    shape = skull.shape
    direction = rng.normal(0, 1, 3)
    centre = direction / np.sqrt((direction**2).sum()) * rng.uniform(0.15, 0.5)
    half_axes = rng.uniform(0.34, 0.54) * rng.uniform(0.8, 1.2, 3)
    ragged = smooth_field(rng, shape, max(2, shape[0] // 7))
    spread = ellipsoid(grid, centre, half_axes) + 0.22 * ragged
    tumour = (spread < 1) & (skull < 0.97) & ((fluid < 0.5) | (spread < 0.6))

    smooth = smooth_field(rng, shape, max(2, shape[0] // 6))
    inner = ellipsoid(grid, centre + rng.normal(0, 0.3, 3) * half_axes, half_axes) + 0.12 * smooth
    core = _lowest(inner, tumour, rng.uniform(0.25, 0.55))
    # The shell lies at some depth of the core, and is torn where the field is high.
    shell = np.abs(inner - float(inner[core].max()) * rng.uniform(0.7, 1.0))
    torn = 0.15 * smooth_field(rng, shape, max(2, shape[0] // 6))
    enhancing = _lowest(shell + torn, core, rng.uniform(0.35, 0.65))
    return tumour.astype(np.uint8) + core + enhancing


def _lowest(values: np.ndarray, within: np.ndarray, share: float) -> np.ndarray:
    """Return the voxels of `within` that have its lowest `share` of values: at least one."""
    ordered = np.sort(values[within])
    return within & (values <= ordered[int(share * (len(ordered) - 1))])


def _lesions(rng: np.random.Generator, grid: np.ndarray) -> np.ndarray:
    nearest = np.full(grid.shape[1:], np.inf, np.float32)
    for _ in range(int(rng.integers(5, 12))):
        half_axes = rng.uniform(0.08, 0.22) * rng.uniform(0.7, 1.4, 3)
        nearest = np.minimum(nearest, ellipsoid(grid, rng.uniform(-0.6, 0.6, 3), half_axes))
    return sigmoid(8 * (1 - nearest))


def _vessels(rng: np.random.Generator, grid: np.ndarray) -> np.ndarray:
    """Return a few winding tubes."""
    nearest = np.full(grid.shape[1:], np.inf, np.float32)
    for _ in range(int(rng.integers(3, 7))):
        along, across, over = grid[rng.permutation(3)]
        squares = sum(
            (
                axis
                - rng.uniform(-0.7, 0.7)
                - rng.uniform(0.05, 0.25) * np.sin(along * rng.uniform(1, 5) + rng.uniform(0, 6))
            )
            ** 2
            for axis in (across, over)
        )
        nearest = np.minimum(nearest, squares / rng.uniform(0.03, 0.07) ** 2)
    return np.exp(nearest * np.float32(-0.5))
