"""Networks of keras.applications as the way down of a U-Net, with weights from a file."""

import inspect
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from tfunet.config.refs import call
from tfunet.models import options
from tfunet.models.files import check_weights
from tfunet.models.keras_errors import cause_line

# ImageNet's pixels (red, green, blue), from 0 to 255.
MEAN = np.array([123.675, 116.28, 103.53])
DEVIATION = np.array([58.395, 57.12, 57.375])
# What Keras's files of EfficientNet have in place of variances.
DEVIATION_OF_UNIT = (0.229, 0.224, 0.225)


def descend(
    image: Any,
    name: str,
    *,
    levels: int,
    weights: str | None,
    intensity: str,
    is_synchronized: bool,
    more: Mapping[str, Any],
) -> tuple[Any, list[Any]]:
    """Return the bottom of an encoder, and its last tensor of each level above; None without one.

    Args:
        name: Name of a network in keras.applications.
        weights: File of its weights; None for random ones.
        intensity: The values of the image: "zscore" (mean 0, deviation 1), "unit" (0 to 1) or
            "bytes" (0 to 255). They are brought to those that the network expects.
        is_synchronized: Batch normalizations use the statistics of all replicas' batches.
        more: Keyword arguments of the function that builds the network.

    Raises ValueError for what cannot be an encoder of these images, and for a file whose weights
    are not those of the network.
    """
    options.check_choice("encoder", name, names())
    if image.shape[-1] == 1:
        image = keras.layers.Concatenate(name="encoder_colours")([image] * 3)
    image = _prepared(image, name, intensity)
    application = _application(name, tuple(image.shape[1:]), more)
    if weights is not None:
        load_weights(application, weights, name)
    for layer in application.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = is_synchronized
    last = _last_of_levels(application, name, levels)
    below = sorted(level for level in last if level > 0 or last[0] is not application.input)
    encoder = keras.Model(application.input, [last[level] for level in below], name="encoder")
    tensors = dict(zip(below, keras.tree.flatten(encoder(image)), strict=True))
    skips = [tensors.get(level) for level in range(levels)]
    return tensors[levels], [image if skips[0] is None else skips[0], *skips[1:]]


def names() -> list[str]:
    """Return the networks of keras.applications."""
    return [name for name, value in vars(keras.applications).items() if inspect.isfunction(value)]


def _application(name: str, shape: tuple[int, ...], more: Mapping[str, Any]) -> keras.Model:
    try:
        return call(
            "encoder",
            getattr(keras.applications, name),
            more,
            ref=name,
            include_top=False,
            weights=None,
            input_shape=shape,
        )
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"The encoder {name!r} cannot be built: {cause_line(error).rstrip('.')}. Check "
            f"encoder_options, which are {dict(more)}."
        ) from error


def _prepared(image: Any, name: str, intensity: str) -> Any:
    """Bring an image to the values for which a network was made, as its preprocess_input does."""
    scale, offset, is_reversed = preparation(name, intensity)
    if image.shape[-1] != len(scale):
        # A network for other channels has no weights that expect certain values.
        scale, offset, is_reversed = scale.mean(), offset.mean(), False
    if np.any(scale != 1) or np.any(offset != 0):
        scaled = keras.layers.Rescaling(
            scale.tolist(), offset.tolist(), dtype=keras.config.floatx(), name="encoder_scaling"
        )
        image = scaled(image)
    return keras.ops.flip(image, axis=-1) if is_reversed else image


def preparation(name: str, intensity: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return what turns values into those that a network expects.

    That is a factor and an offset for red, green and blue, and whether blue comes first then.
    """
    scale, offset = {
        "zscore": (DEVIATION, MEAN),
        "unit": (np.full(3, 255.0), np.zeros(3)),
        "bytes": (np.ones(3), np.zeros(3)),
    }[intensity]
    module: Any = inspect.getmodule(getattr(keras.applications, name))
    colours = np.concatenate([np.zeros((1, 3)), 255 * np.eye(3)])
    black, *others = module.preprocess_input(colours.reshape(4, 1, 1, 3).copy()).reshape(4, 3)
    factors = (np.array(others) - black) / 255  # A row for red, for green, for blue.
    is_reversed = bool(abs(factors[0, 0]) < abs(factors[0, 2]))
    if is_reversed:
        factors, black = factors[:, ::-1], black[::-1]
    return factors.diagonal() * scale, factors.diagonal() * offset + black, is_reversed


def _last_of_levels(application: keras.Model, name: str, levels: int) -> dict[int, Any]:
    """Return a network's last tensor of each size that is the image's, halved so often."""
    spatial = application.input.shape[1:-1]
    level_of = {tuple(size // 2**level for size in spatial): level for level in range(levels + 1)}
    last: dict[int, Any] = {}
    outputs = [layer.output for layer in application.layers]  # In the order in which they run.
    for tensor in (*outputs, application.output):
        level = level_of.get(tuple(tensor.shape[1:-1]))
        if level is not None and len(tensor.shape) == 4:
            last[level] = tensor
    # Some networks halve the image twice at once.
    missing = [level for level in range(2, levels + 1) if level not in last]
    if missing:
        sizes = dict.fromkeys(
            " x ".join(map(str, tensor.shape[1:-1])) for tensor in outputs if len(tensor.shape) == 4
        )
        raise ValueError(
            f"{name} cannot be the encoder of these images: it has no tensor of 1/"
            f"{2 ** missing[0]} of their size, but {', '.join(sizes)}. Choose another, such as "
            "'EfficientNetB0', or fewer levels."
        )
    return last


def load_weights(application: keras.Model, path: str, name: str) -> None:
    """Give a network of keras.applications the weights of a file.

    Raises ValueError, which says what differs, for a file of another network.
    """
    check_weights(path)
    file = Path(path)
    try:
        _check_shapes(application, file, name)
        application.load_weights(file)
    except (ValueError, OSError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"encoder_weights={path!r} cannot be loaded into {name}: "
            f"{cause_line(error).rstrip('.')}. It must be a file of this network without its top "
            "(include_top=False), made with the same encoder_options."
        ) from error
    _mend_normalization(application)


def _check_shapes(application: keras.Model, file: Path, name: str) -> None:
    """Raise ValueError if weights of a network are not in a file, by their shapes."""
    if file.suffix == ".keras":
        return
    there: list[tuple[int, ...]] = []

    def note(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            there.append(tuple(item.shape))

    with h5py.File(file, "r") as opened:
        opened.visititems(note)
    left = Counter(there)
    missing = []
    for variable in application.weights:
        shape = tuple(variable.shape)
        if left[shape] == 0:
            missing.append(f"{variable.path} {shape}")
        left[shape] -= 1
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(application.weights)} weights of {name} are not among "
            f"the {len(there)} in the file, such as {', '.join(missing[:3])}."
        )


def _mend_normalization(application: keras.Model) -> None:
    """Let EfficientNet divide by the deviation of ImageNet, as it was trained.

    Keras's files have the deviations as variances, and a further layer makes up for it only where
    Keras itself downloads the file (github.com/tensorflow/tensorflow/issues/49930).
    """
    for layer in application.layers:
        if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
            variance = keras.ops.convert_to_numpy(layer.adapt_variance.value)
            if np.allclose(variance, DEVIATION_OF_UNIT, atol=1e-4):
                layer.adapt_variance.assign(variance**2)
                layer.finalize_state()
