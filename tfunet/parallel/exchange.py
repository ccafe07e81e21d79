"""A backend's exchange as a step uses it: timed, and left out of steps that run alone."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import tensorflow as tf

from tfunet.backend import Exchange
from tfunet.parallel.host_exchange import HostExchange
from tfunet.timing.stamps import Note, timed

SPAN = "halo exchange"


@final
class ExchangeSwitch:
    """A backend's exchange, which is left out of what is traced in `off`; `note` is told of each.

    Without it, zeros take the place of what others would send, so that a device computes as much.
    """

    def __init__(self, exchange: Exchange, note: Note | None = None) -> None:
        self._exchange = exchange
        self._note = note
        self._is_off = False

    @property
    def plain(self) -> Exchange:
        """The backend's exchange itself."""
        return self._exchange

    @property
    def way(self) -> str:
        """What it goes through, as result.json says it."""
        return "shared memory" if isinstance(self._exchange, HostExchange) else "backend"

    def __call__(
        self,
        sent: Mapping[int, tf.Tensor],
        received: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> dict[int, tf.Tensor]:
        """Return what other devices send, or zeros; as `Backend.exchange`."""
        if self._is_off:
            return {other: tf.zeros(shape, dtype) for other, shape in received.items()}
        # Without tensors before and after it, nothing would tell when it began and ended.
        note = self._note if sent and received else None
        return timed(SPAN, note, lambda given: self._exchange(given, received, dtype), dict(sent))

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Leave the exchange out of what is traced in the block."""
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False
