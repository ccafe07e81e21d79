"""Centre lines of regions of a plane or a volume, one voxel wide. Needs scikit-image."""

import numpy as np

from tfunet.learning.mask_libraries import morphology, ndimage


def centre_lines(region: np.ndarray) -> np.ndarray:
    """Return which voxels of a region are its centre lines; each component has some.

    Planes are thinned as Zhang and Suen (1984), volumes as Lee et al. (1994). In volumes,
    scikit-image erases components whose width is even, or parts of them (its issue 3757). Where
    that leaves voxels far from all lines, a component is thinned on a grid with odd widths only.
    """
    lines = morphology().skeletonize(region)
    if region.ndim < 3:
        return lines
    labels, _ = ndimage().label(region, np.ones((3,) * region.ndim))
    for number, box in enumerate(ndimage().find_objects(labels), start=1):
        component = labels[box] == number
        found = lines[box] & component
        # A voxel is not much farther from its line than the line from the outside.
        inner = ndimage().distance_transform_edt(np.pad(component, 1)).max()
        if _farthest(component, found) <= 4 * inner:
            continue
        again = _on_odd_grid(component)
        if _farthest(component, again) < _farthest(component, found):
            lines[box] = (lines[box] & ~component) | again
    return lines


def _farthest(component: np.ndarray, lines: np.ndarray) -> float:
    """Return the largest distance of a voxel of a component from its lines."""
    if not lines.any():
        return np.inf
    return float(ndimage().distance_transform_edt(~lines)[component].max())


def _on_odd_grid(component: np.ndarray) -> np.ndarray:
    """Return the centre lines of a component that is thinned with a voxel between each two."""
    fine = np.zeros([2 * size - 1 for size in component.shape], bool)
    fine[(slice(None, None, 2),) * component.ndim] = component
    for axis in range(component.ndim):
        planes = np.moveaxis(fine, axis, 0)
        planes[1::2] = planes[:-1:2] & planes[2::2]
    places = np.argwhere(morphology().skeletonize(fine)) // 2
    if not len(places):
        return component
    lines = np.zeros_like(component)
    lines[tuple(places.T)] = True
    return lines
