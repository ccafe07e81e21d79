"""Draws one 3D field of matter from a few numbers, which are to be found. Imports no TensorFlow."""

import numpy as np

from tfunet.data.generated.noise_and_shapes import smooth_field

# What a network predicts, each from -1 to 1, after the parameters of CosmoFlow's universes.
TARGETS = ("omega_m", "sigma_8", "n_s")
# How far structure has grown in each channel: today, and at three earlier times.
GROWTH = (1.0, 0.75, 0.5, 0.25)
MEAN_COUNT = 60.0


def universe_targets(rng: np.random.Generator) -> np.ndarray:
    """Draw the numbers of a case, uniform over -1 to 1; the first draws of its generator."""
    return rng.uniform(-1, 1, len(TARGETS))


def universe_case(
    rng: np.random.Generator, *, size: int, noise: float, channels: int
) -> np.ndarray:
    """Return log(1 + counts of matter) above a fixed mean, float32 (size, size, size, channels).

    The density is lognormal. `omega_m` is how much matter there is, `sigma_8` how uneven it is, and
    `n_s` how much of that is on small scales.
    """
    omega_m, sigma_8, n_s = universe_targets(rng)
    wavelengths = [2**power for power in range(1, max(2, size.bit_length() - 1))]
    weights = np.array([float(wavelength) ** (-0.9 * n_s) for wavelength in wavelengths])
    weights /= np.sqrt((weights**2).sum())
    field = np.zeros((size, size, size), np.float32)
    for wavelength, weight in zip(wavelengths, weights, strict=True):
        field += np.float32(weight) * smooth_field(rng, field.shape, wavelength)
    mean = MEAN_COUNT * 2**omega_m
    times = []
    for growth in GROWTH[:channels]:
        deviation = growth * 0.8 * 2 ** (0.7 * sigma_8)
        density = mean * np.exp(np.float32(deviation) * field - np.float32(deviation**2 / 2))
        scatter = np.sqrt(density) * rng.standard_normal(density.shape, dtype=np.float32)
        counts = (density + np.float32(noise) * scatter).clip(0)
        times.append(np.log1p(counts) - np.float32(np.log1p(MEAN_COUNT)))
    return np.stack(times, axis=-1).astype(np.float32)
