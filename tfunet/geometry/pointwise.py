"""Whether functions and layers treat each pixel alone. What is not known is tried."""

import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import keras
import numpy as np

from tfunet.geometry.kinds import kind_of

OVER_AXES = (
    *(keras.layers.Softmax, keras.layers.UnitNormalization, keras.layers.LayerNormalization),
)
# Layers whose output pixel depends on one input pixel alone, with some of their options.
POINTWISE = (
    *(keras.layers.ReLU, keras.layers.LeakyReLU, keras.layers.ELU, keras.layers.Identity),
    *(keras.layers.Activation, keras.layers.Dense, keras.layers.PReLU, keras.layers.Rescaling),
    *OVER_AXES,
)
# Pixels of the sample on which a function is tried, and the scale of its values.
TRIED_PIXELS = 2**12
TRIED_SCALE = 3.0
TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
TOLERANCE = 2e-2


def is_pointwise(function: Callable[..., Any], *tensors: np.ndarray, rank: int) -> bool:
    """Whether a function makes of each pixel what it makes of the pixel alone.

    It is tried on tensors (batch, *spatial, ...) with `rank` spatial axes, and must return such a
    tensor. A function that draws random numbers treats no pixel alone.
    """

    def values(*given: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(function(*map(keras.ops.convert_to_tensor, given)))

    def compared() -> bool:
        whole, again = values(*tensors), values(*tensors)
        alone = values(*(as_samples(tensor, rank) for tensor in tensors))
        shape = tensors[0].shape[: 1 + rank]
        is_image = whole.shape[: 1 + rank] == shape and alone.size == whole.size
        return (
            is_image
            and len(alone) == math.prod(shape)
            and are_close(again, whole)
            and are_close(alone.reshape(whole.shape), whole)
        )

    try:
        with warnings.catch_warnings():
            # Keras warns of a softmax over an axis of one pixel.
            warnings.simplefilter("ignore")
            return eagerly(compared)
    except Exception:
        # It needs another shape than a pixel's: it sees more than a pixel.
        return False


def are_close(values: np.ndarray, others: np.ndarray) -> bool:
    """Whether arrays are the same up to rounding in the type of the first one."""
    tolerance = TOLERANCES.get(values.dtype.name, TOLERANCE)
    pair = values.astype(np.float64), others.astype(np.float64)
    return np.allclose(*pair, rtol=tolerance, atol=tolerance, equal_nan=True)


def is_pixelwise_loss(
    loss: Callable[[Any, Any], Any], mask: Any, logits: Any, spatial: Sequence[int], labels: int
) -> bool:
    """Whether a loss has a value for each pixel, which depends on this pixel alone.

    It is tried on samples like `mask` and `logits`, which have `spatial` pixels or a part of them.
    """
    rank = len(spatial)
    rows = tried_rows(spatial)
    rest = mask.shape[1 + rank :], logits.shape[1 + rank :]
    return all(
        is_pointwise(
            loss,
            np.broadcast_to(
                labelled.reshape(2, *rows, *[1] * len(rest[0])), (2, *rows, *rest[0])
            ).astype(keras.backend.standardize_dtype(mask.dtype)),
            given.astype(keras.backend.standardize_dtype(logits.dtype)),
            rank=rank,
        )
        for labelled, given in tried_samples(rows, labels, rest[1])
    )


def tried_rows(spatial: Sequence[int | None]) -> tuple[int, ...]:
    """Return the spatial shape of the samples on which something is tried."""
    most = max(2, int(TRIED_PIXELS ** (1 / max(1, len(spatial)))))
    return tuple(min(rows or most, most) for rows in spatial)


def tried_samples(
    rows: Sequence[int], labels: int, channels: Sequence[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield masks (2, *rows) and logits (2, *rows, *channels) on which a loss is tried.

    The masks have labels anywhere, in blocks as objects have them, and in a few pixels only: where
    every pixel has neighbours of other classes, a loss of borders has them everywhere.
    """
    rng = np.random.default_rng(0)
    shape = (2, *rows)
    blocks = sum(index > size // 3 for index, size in zip(np.indices(rows), rows, strict=True))
    anywhere = rng.integers(0, labels, shape)
    for mask in (
        anywhere,
        np.stack([blocks, np.flip(blocks)]) % labels,
        anywhere * (rng.random(shape) < 0.05),
    ):
        yield mask, rng.normal(scale=TRIED_SCALE, size=(*shape, *channels))


def as_samples(tensor: np.ndarray, rank: int) -> np.ndarray:
    """Return (batch * pixels, 1, ..., 1, ...): each pixel of (batch, *spatial, ...) as a sample."""
    return tensor.reshape(-1, *[1] * rank, *tensor.shape[1 + rank :])


def eagerly(function: Callable[[], Any]) -> Any:
    """Return what a function makes, run at once and apart from what is being traced here."""
    # A thread begins without the graph, the scopes and the strategy of the one that starts it.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def has_pointwise_activation(layer: Any, shape: Sequence[int | None] | None = None) -> bool:
    """Whether a layer has no activation, or one that treats each pixel alone.

    `shape` is that of its output; by default it is read from the layer's graph.
    """
    activation = getattr(layer, "activation", None)
    if activation is None or any(activation is known for known in vars(keras.activations).values()):
        return True
    shape = shape or keras.tree.flatten(layer.output)[0].shape
    if isinstance(activation, keras.layers.Layer):
        return is_pointwise_layer(activation, shape)
    dtype = "float64" if layer.compute_dtype == "float64" else "float32"
    tried = _is_found_pointwise if isinstance(activation, Hashable) else _is_tried_pointwise
    return tried(activation, tuple(shape), dtype)


def _is_tried_pointwise(
    function: Callable[[Any], Any], shape: tuple[int | None, ...], dtype: str
) -> bool:
    sample = (2, *tried_rows(shape[1:-1]), shape[-1] or 1)
    values = np.random.default_rng(0).normal(scale=TRIED_SCALE, size=sample)
    return is_pointwise(function, values.astype(dtype), rank=len(shape) - 2)


_is_found_pointwise = lru_cache(maxsize=256)(_is_tried_pointwise)


def is_pointwise_layer(layer: Any, shape: Sequence[int | None] | None = None) -> bool:
    """Whether a layer treats each pixel of its input alone; one of the user's own does not.

    `shape` is that of its output; by default it is read from the layer's graph.
    """
    kind = kind_of(layer)
    if kind not in POINTWISE:
        return False
    rank = len(shape or layer.output.shape)
    if kind in OVER_AXES:
        return is_over_channels(layer.axis, rank)
    if kind is keras.layers.PReLU:
        return {*range(1, rank - 1)} <= {*(layer.shared_axes or ())}
    if kind is keras.layers.Rescaling:
        return not (is_for_pixels(layer.scale) or is_for_pixels(layer.offset))
    return has_pointwise_activation(layer, shape)


def is_over_channels(axis: int | Sequence[int], rank: int) -> bool:
    """Whether an axis, or several, of a tensor with `rank` axes is that of the channels alone."""
    axes = [axis] if isinstance(axis, int) else axis
    return [number % rank for number in axes] == [rank - 1]


def is_for_pixels(values: Any) -> bool:
    """Whether an array that is joined with a tensor has other values for other pixels."""
    return math.prod(np.shape(values)[:-1]) != 1
