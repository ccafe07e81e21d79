"""Images that a data set's own code makes, as files that `tfunet evaluate` predicts."""

from pathlib import Path

import numpy as np

from tfunet.files.atomic import replacing, writing


def write_image(image: np.ndarray, folder: Path, name: str) -> Path:
    """Write an image (*spatial, channels) as OME-TIFF; a file with the same pixels is kept.

    Its time tells whether a prediction that is there already is that of this image. Raises
    ValueError for a volume of one plane, which is a plane in each file.
    """
    import tifffile

    if image.ndim == 4 and len(image) == 1:
        raise ValueError(
            f"{name} is a volume of one plane {image.shape[:-1]}, which files do not tell from a "
            "plane, so it is not scored. Leave it out of the data, or make its data set of planes."
        )
    path = folder / f"{name}.ome.tif"
    pixels = np.moveaxis(image, -1, -3).astype(np.float32)
    try:
        is_there = np.array_equal(tifffile.imread(path).reshape(pixels.shape), pixels)
    except (OSError, ValueError):  # No file, one that was cut short, or another shape.
        is_there = False
    if not is_there:
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                tifffile.imwrite(
                    partial,
                    pixels,
                    photometric="minisblack",
                    ome=True,
                    metadata={"axes": "ZCYX"[-pixels.ndim :]},
                )
    return path
