"""What a file says of its array before the pixels are decoded, and how it is laid out."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

# A box over all axes of a file's array, to the array in it.
Region = Callable[[tuple[slice, ...]], np.ndarray]
# A file in fewer parts is quicker read whole.
FEWEST_PARTS = 4
SPATIAL = "zyx"
CHANNELS = "cs"


@dataclass(frozen=True, kw_only=True)
class PlaneGrid:
    """Where the pixels of an image lie, for masks that say where their own do.

    Args:
        shape: Planes, rows and columns.
        affine: (4, 4) index to position in mm, towards the right, the front and the head.
    """

    shape: tuple[int, ...]
    affine: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An array in a file.

    Args:
        shape: All of its axes.
        axes: A letter for each: z, y, x are spatial, in any order; c channels; s colours;
            t time. Any other must have length 1.
        dtype: Type of the pixels, as NumPy names it.
        spacing: Pixel size by axis letter, in `unit`; empty where the file states none.
        unit: "nm", "µm", "mm" or "m"; empty where the file does not say.
        affine: (4, 4) index to position, in the order of the axes, where the file states one.
        alpha: Whether the last channel is tagged as one that says how a viewer shows a pixel, not
            what was measured.
        transposed: Whether a tag of the file exchanged its rows and columns.
        contradiction: Two statements about where the pixels lie that disagree, in words.
        nodata: Value of the pixels without data, where the file states one. They may also be NaN.
        nodata_from: Which of the file's statements says that pixels have no data, in words.
        remark: What may be a mistake, in words.
    """

    shape: tuple[int, ...]
    axes: str
    dtype: str
    spacing: Mapping[str, float]
    unit: str = ""
    affine: np.ndarray | None = None
    alpha: bool = False
    transposed: bool = False
    contradiction: str = ""
    nodata: float | None = None
    nodata_from: str = ""
    remark: str = ""

    def named(self, axes: str | None) -> "Stored":
        """Return it with the axes that the user names, if they name any."""
        if axes is None:
            return self
        if len(axes) != len(self.shape):
            raise ValueError(
                f"it has {len(self.shape)} axes, of lengths {self.shape}, and axes={axes!r} names "
                f"{len(axes)}"
            )
        return replace(self, axes=axes)

    def with_channels_beside(self, shape: tuple[int, ...]) -> Iterator["Stored"]:
        """Yield it with its last or its first axis as channels, if the others have this shape."""
        letters = SPATIAL[-len(shape) :]
        if self.shape[:-1] == shape:
            yield replace(self, axes=f"{letters}c")
        if self.shape[1:] == shape:
            yield replace(self, axes=f"c{letters}")

    @property
    def spatial(self) -> tuple[int, ...]:
        """Positions of the two or three spatial axes, in the file's order."""
        return self._layout()[0]

    @property
    def channels(self) -> int:
        """Channels that are left when alpha is dropped."""
        _, channel = self._layout()
        return 1 if channel is None else self.shape[channel] - self.alpha

    def channels_last(self, pixels: np.ndarray) -> np.ndarray:
        """Return (*spatial, channels) of an array that lies as this says, or of a part of it.

        An alpha channel is among the channels.
        """
        spatial, channel = self._layout()
        kept = [*spatial, *([channel] if channel is not None else [])]
        single = [axis for axis in range(len(self.shape)) if axis not in kept]
        return pixels.transpose(*kept, *single).reshape(
            *(pixels.shape[axis] for axis in spatial),
            1 if channel is None else self.shape[channel],
        )

    def _layout(self) -> tuple[tuple[int, ...], int | None]:
        """Return the spatial axes and that of the channels, if there are several."""
        long = [
            axis for axis, letter in enumerate(self.axes) if self.shape[axis] > 1 or letter in "yx"
        ]
        spatial = tuple(axis for axis in long if self.axes[axis] in SPATIAL)
        channels = [axis for axis in long if self.axes[axis] in CHANNELS]
        other = len(long) - len(spatial) - len(channels)
        if other or len(channels) > 1 or len(spatial) not in (2, 3):
            raise ValueError(
                f"its axes are {self.axes!r}, of lengths {self.shape}; readable: a plane (y, x) or "
                "a stack of planes (z, y, x), each with channels (c) or without. Say with axes= "
                "what they are, such as axes = 'zyx' or 'cyx'"
            )
        return spatial, channels[0] if channels else None


def num_chunks(shape: Sequence[int], chunk: Sequence[int]) -> int:
    """Return how many chunks an array is stored in."""
    return math.prod(-(-length // step) for length, step in zip(shape, chunk, strict=True))


def check_type(dtype: np.dtype) -> None:
    """Raise ValueError for what is no number, or has an imaginary part, which would be lost."""
    if dtype.kind not in "buif":
        raise ValueError(f"values of type {dtype}; readable: whole and real numbers")


def plain(shape: tuple[int, ...], dtype: np.dtype) -> Stored:
    """Describe an array in a format that has no words for its axes: planes, rows, columns.

    Four axes are planes, rows, columns and channels. A last axis of one is a channel.
    """
    check_type(dtype)
    axes = {2: "yx", 3: "zyx", 4: "zyxc"}.get(len(shape), "?" * len(shape))
    if len(shape) == 3 and shape[-1] == 1:
        axes = "yxc"
    return Stored(shape=tuple(map(int, shape)), axes=axes, dtype=str(dtype), spacing={})
