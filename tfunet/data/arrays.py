"""Data sets of arrays: what a function of the user's own may return instead of a DataSource.

No TensorFlow is imported here; a tf.data.Dataset that comes is asked for its batches.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

SIDES = ("train", "validation")
ALLOWED = (
    "Return (x, y), or ((x, y), (x_val, y_val)), or a dict with 'train' and 'validation', with "
    "NumPy arrays, or a finite tf.data.Dataset of batches (x, y) in the place of each pair"
)
TEXT = (
    "Text cannot be trained on. Encode it in the data function, as whole numbers: "
    "keras.layers.TextVectorization does it there, called on the texts"
)
# What arrays may hold: truth, whole numbers, numbers.
KINDS = "biuf"
# The largest whole number that the losses of Keras keep exact: they compute in float32.
MOST_EXACT = 2**24


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySamples:
    """Samples that are arrays, those of training first.

    Args:
        x: (samples, ...), float32 or whole numbers.
        y: (samples, ...), what the model's output is compared with.
        num_train: How many are for training; 0 if the configuration divides them.
        content: Hash of all of it.
    """

    x: np.ndarray
    y: np.ndarray
    num_train: int
    content: str

    @property
    def num_outputs(self) -> int:
        """Numbers that a model gives for a sample or place in it: classes, or values."""
        if self.y.dtype.kind in "iub" and self.y.size:
            return int(self.y.max()) + 1
        return int(self.y.shape[-1]) if self.y.ndim > 1 else 1

    @property
    def bytes_each(self) -> int:
        """Bytes of a sample."""
        return (self.x.nbytes + self.y.nbytes) // len(self.x)


def read_samples(given: Any, name: str) -> ArraySamples:
    """Return the samples that a user's function gave; `name` is that of the data set.

    Raises ValueError for what cannot be trained on.
    """
    sides = _sides(given, name)
    pairs = {side: _pair(value, f"{side} of the data set {name!r}") for side, value in sides}
    first, *others = pairs.values()
    for other in others:
        for one, another, what in zip(first, other, "xy", strict=True):
            if one.shape[1:] != another.shape[1:] or one.dtype != another.dtype:
                raise ValueError(
                    f"The data set {name!r} has training {what} of {one.dtype} {one.shape} and "
                    f"validation {what} of {another.dtype} {another.shape}, samples first. Give "
                    "both the same shape and type."
                )
    x, y = (np.concatenate(arrays) for arrays in zip(*pairs.values(), strict=True))
    digest = hashlib.blake2b(repr([(each.dtype.str, each.shape) for each in (x, y)]).encode())
    for each in (x, y):
        digest.update(np.ascontiguousarray(each).data)
    num_train = len(first[0]) if others else 0
    return ArraySamples(x=x, y=y, num_train=num_train, content=digest.hexdigest()[:32])


def _sides(given: Any, name: str) -> list[tuple[str, Any]]:
    """Return the parts that a function gave by side; one part that is to be divided is "train"."""
    if isinstance(given, Mapping):
        if set(given) != set(SIDES):
            raise ValueError(
                f"The data set {name!r} returned a dict with {list(given)}. {ALLOWED}."
            )
        return [(side, given[side]) for side in SIDES]
    if _is_dataset(given):
        return [("train", given)]
    is_several = isinstance(given, tuple | list)
    if is_several and len(given) == 2:
        if all(isinstance(part, tuple) or _is_dataset(part) for part in given):
            return list(zip(SIDES, given, strict=True))
        return [("train", given)]
    if is_several and len(given) == 3:
        raise ValueError(
            f"The data set {name!r} returned three parts, as with weights of samples, which are "
            f"not built for comparisons. {ALLOWED}."
        )
    what = type(given).__name__
    if is_several:
        what += f" of {len(given)}"
    missing = " The truth y is missing." if isinstance(given, np.ndarray) else ""
    raise ValueError(f"The data set {name!r} returned {what}.{missing} {ALLOWED}.")


def _is_dataset(value: Any) -> bool:
    """Whether a value is a tf.data.Dataset, without importing TensorFlow."""
    return hasattr(value, "element_spec") and hasattr(value, "as_numpy_iterator")


def _pair(given: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y; raise ValueError for what is wrong with them."""
    if _is_dataset(given):
        given = _collected(given, where)
    if not isinstance(given, tuple | list) or len(given) != 2:
        number = len(given) if isinstance(given, tuple | list) else type(given).__name__
        raise ValueError(f"The {where} must be a pair (x, y), got {number}. {ALLOWED}.")
    x, y = (_array(part, what, where) for part, what in zip(given, "xy", strict=True))
    if len(x) != len(y):
        raise ValueError(
            f"The {where} has {len(x)} samples x and {len(y)} of y. Give one y for each x."
        )
    if not len(x):
        raise ValueError(f"The {where} has no samples.")
    return x, y


def _array(given: Any, what: str, where: str) -> np.ndarray:
    if isinstance(given, Mapping) or (isinstance(given, tuple) and hasattr(given[0], "shape")):
        raise ValueError(
            f"The {what} of {where} is a {type(given).__name__} of several. Models of several "
            "inputs or outputs cannot be compared. Give one array, samples first."
        )
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(_ragged(what, where)) from error
    if array.dtype.kind == "O" and array.ndim:
        is_text = all(isinstance(one, str | bytes) for one in array.ravel()[:1])
        raise ValueError(f"{what} of {where}: {TEXT}." if is_text else _ragged(what, where))
    if array.dtype.kind in "SU":
        raise ValueError(f"The {what} of {where} is text. {TEXT}.")
    if array.dtype.kind not in KINDS or not array.ndim:
        raise ValueError(
            f"The {what} of {where} must be an array of numbers, samples first; got "
            f"{type(given).__name__} of type {array.dtype} and shape {array.shape}."
        )
    if array.dtype.kind == "f":
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(
                f"The {what} of {where} holds NaN or infinite values. Replace them in the data "
                "function."
            )
    elif array.dtype not in (np.uint8, np.int32, np.int64):
        array = array.astype(np.int32 if array.dtype.itemsize < 4 else np.int64)
    if what == "y" and array.dtype.kind != "f" and np.abs(array).max(initial=0) > MOST_EXACT:
        raise ValueError(
            f"The y of {where} holds whole numbers beyond {MOST_EXACT}, which losses cannot tell "
            "apart. Give smaller ones, or numbers with a fraction."
        )
    return array[:, np.newaxis] if what == "x" and array.ndim == 1 else array


def _ragged(what: str, where: str) -> str:
    return (
        f"The {what} of {where} has samples of different shapes. Give all the same shape, such as "
        "by padding (keras.utils.pad_sequences)."
    )


def _collected(dataset: Any, where: str) -> list[Any]:
    """Return all that a finite data set holds, samples first.

    Elements are batches, as `fit` takes them, or single samples if y is one number.
    """
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or len(spec) != 2:
        number = len(spec) if isinstance(spec, tuple) else "one part: y is missing"
        raise ValueError(
            f"The tf.data.Dataset for {where} has elements of {number}; they must be (x, y)."
        )
    if int(dataset.cardinality()) == -1:
        raise ValueError(
            f"The tf.data.Dataset for {where} is infinite, so that no epoch ends. Leave out "
            "repeat(): tfunet repeats and shuffles the samples itself."
        )
    is_batched = any(getattr(part, "shape", None) != () for part in spec[1:])
    columns: tuple[list[Any], list[Any]] = [], []
    for element in _elements(dataset):
        for column, part in zip(columns, element, strict=True):
            if not isinstance(part, np.ndarray | np.generic | bytes):
                raise ValueError(_several(part, where))
            column.append(part if is_batched else np.asarray(part)[np.newaxis])
    if not columns[0]:
        raise ValueError(f"The {where} has no samples.")
    try:
        return [np.concatenate(column) for column in columns]
    except ValueError as error:
        raise ValueError(_ragged("x or y", where)) from error


def _several(part: Any, where: str) -> str:
    if type(part).__name__ == "RaggedTensorValue":
        return _ragged("x or y", where)
    return (
        f"The tf.data.Dataset for {where} has elements with {type(part).__name__}; x and y must "
        "be a tensor each."
    )


def _elements(dataset: Any) -> Iterator[Any]:
    yield from dataset.as_numpy_iterator()
