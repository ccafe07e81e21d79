"""Counts what is read of decoded cases."""

from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def bytes_read(cases):
    """Yield a list to which the bytes of each box that leaves the store are appended."""
    num_bytes = []
    real = cases.store.box

    def counted(case, start, stop):
        image, mask = real(case, start, stop)
        num_bytes.append(image.nbytes + mask.nbytes)
        return image, mask

    with patch.object(cases.store, "box", counted):
        yield num_bytes
