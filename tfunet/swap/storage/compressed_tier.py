"""A tier that compresses tensors: it casts them to fewer bits before another tier takes them."""

from collections.abc import Collection
from typing import final

import tensorflow as tf

from tfunet.swap.storage.host import Rows, Tier, key_of


@final
class CompressedTier:
    """Casts the named tensors on the device to a smaller type before another tier copies them, and
    back when they return.
    """

    def __init__(self, tier: Tier, compression: str, names: Collection[str]) -> None:
        self.copies_overlap = tier.copies_overlap
        self._tier = tier
        self._type = tf.as_dtype(compression)
        self._names = frozenset(names)
        self._cast: dict[str, tf.Tensor] = {}

    def out(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Operation:
        name = name or tensor.name
        if name not in self._names:
            return self._tier.out(tensor, name=name)
        with tf.device(tensor.device):
            cast = tf.cast(tensor, self._type, name="compressed")
        self._cast[key_of(tensor.graph, name)] = cast
        return self._tier.out(cast, name=name)

    def back(self, tensor: tf.Tensor, *, name: str | None = None) -> tf.Tensor:
        name = name or tensor.name
        if name not in self._names:
            return self._tier.back(tensor, name=name)
        cast = self._tier.back(self._cast[key_of(tensor.graph, name)], name=name)
        with tf.device(tensor.device):
            return tf.cast(cast, tensor.dtype, name="restored")

    def rows(self, tensor: tf.Tensor) -> Rows:
        return self._tier.rows(tensor)
