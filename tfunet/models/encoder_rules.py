"""What an encoder may be for these images, as far as Keras need not say it. Imports no Keras."""

from tfunet.models import options

# Most networks halve an image so often, and take none that is smaller.
MOST_LEVELS = 5
LEAST_SIZE = 32
INTENSITIES = ("zscore", "unit", "bytes")


def check_encoder(
    name: str, image_shape: options.Shape, *, levels: int, has_weights: bool, intensity: str
) -> None:
    """Raise ValueError for an encoder that does not fit the images."""
    options.check_choice("encoder_intensity", intensity, INTENSITIES)
    *spatial, channels = image_shape
    if len(spatial) != 2:
        raise ValueError(
            f"The networks of keras.applications take images of two dimensions, and these have "
            f"{len(spatial)}. Leave out encoder={name!r}."
        )
    if None in spatial:
        raise ValueError(
            f"encoder={name!r} needs the size of each dimension, got {tuple(spatial)}."
        )
    if levels > MOST_LEVELS:
        raise ValueError(
            f"An encoder halves an image {MOST_LEVELS} times at most, got levels={levels}."
        )
    if min(size for size in spatial if size is not None) < LEAST_SIZE:
        raise ValueError(
            f"encoder={name!r} takes images of at least {LEAST_SIZE} pixels along each axis, got "
            f"{' x '.join(map(str, spatial))}. Give a larger patch."
        )
    if has_weights and channels not in (1, 3):
        raise ValueError(
            f"The weights of {name} are for 3 channels, and the images have {channels}. Choose 3 "
            "or 1 (which is repeated) in data_options, or leave out encoder_weights."
        )
