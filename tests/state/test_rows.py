"""Rows of numbers in host memory and on disk, and what is said where there is no room."""

import math
import re
import resource
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from homed_training import chunks_of
from paths import ROOT

from tfunet.files.atomic import WriteError
from tfunet.inside.of_optimizers import applying_by
from tfunet.state.home import send_home
from tfunet.state.slots import slots_of
from tfunet.state.update import HostUpdate
from tfunet.swap.storage.disk import DiskFile
from tfunet.swap.storage.limits import Limits
from tfunet.swap.storage.rows import ALIGNMENT, DiskRow, MemoryRow, Rows

BLOCK = 2048  # Numbers of float16 in a block of a disk.


@pytest.fixture(params=["memory", "disk"])
def rows(request, tmp_path):
    return Rows() if request.param == "memory" else Rows(Limits(host_bytes=0, folder=tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_parts_are_read_as_they_were_written(rows, dtype):
    numbers = np.arange(5 * BLOCK + 7).astype(dtype)
    row, other = rows.make((5 * BLOCK + 7,), dtype), rows.make((3, 2), dtype)
    row.write(0, numbers)
    other.write(0, np.ones(6, dtype))
    np.testing.assert_array_equal(row.read(0, row.size), numbers)
    row.write(2 * BLOCK, -numbers[:BLOCK])
    row.write(4 * BLOCK, numbers[: BLOCK + 7])
    expected = numbers.copy()
    expected[2 * BLOCK : 3 * BLOCK] = -numbers[:BLOCK]
    expected[4 * BLOCK :] = numbers[: BLOCK + 7]
    np.testing.assert_array_equal(row.read(0, row.size), expected)
    np.testing.assert_array_equal(row.read(4 * BLOCK, row.size), numbers[: BLOCK + 7])
    np.testing.assert_array_equal(other.read(0, 6), np.ones(6))
    assert row.read(BLOCK, 2 * BLOCK).dtype == np.dtype(dtype)


def test_a_row_of_one_number_and_of_none(rows):
    one, none = rows.make((), "float32"), rows.make((0, 3), "float32")
    one.write(0, np.array([7.0], "float32"))
    assert one.read(0, 1) == 7
    assert none.read(0, 0).size == 0


def test_memory_is_read_in_place_where_tensorflow_can():
    row = MemoryRow(100, np.dtype("float32"))
    assert row.read(0, 100).ctypes.data % ALIGNMENT == 0
    row.read(0, 100)[:] = 3  # What TensorFlow does with a value that it takes over.
    row.write(0, row.read(0, 100))
    np.testing.assert_array_equal(row.read(0, 100), np.full(100, 3))


def test_rows_go_to_the_disk_where_host_memory_ends(tmp_path):
    rows = Rows(Limits(host_bytes=4 * BLOCK, folder=tmp_path))
    assert isinstance(rows.make((BLOCK,), "float32"), MemoryRow)
    assert not isinstance(rows.make((1,), "float32"), MemoryRow)
    assert (rows.host_used, rows.disk_used) == (4 * BLOCK, 4)


def test_no_room_is_said_with_what_to_do():
    rows = Rows(Limits(host_bytes=2**20))
    rows.make((2**17,), "float32")
    said = "1 MiB of weights or states of the optimizer have no room beside 0.5 MiB in host memory"
    with pytest.raises(WriteError, match=re.escape(said)):
        rows.make((2**18,), "float32")
    assert rows.host_used == 2**19


def test_no_room_on_the_disk_is_said(tmp_path):
    rows = Rows(Limits(host_bytes=0, disk_bytes=2**20, folder=tmp_path))
    rows.make((2**17,), "float32")
    with pytest.raises(WriteError, match=re.escape("0.5 MiB on disk. Raise host (swap_host)")):
        rows.make((2**18,), "float32")


def test_a_disk_that_is_full_is_said_before_the_first_step(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = Rows(Limits(host_bytes=0, folder=tmp_path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        kept = rows.make((2**17,), "float32")
        with pytest.raises(WriteError, match=re.escape(f"do not fit in {tmp_path}")):
            rows.make((2**18,), "float32")
        kept.write(0, np.ones(2**17, "float32"))
        assert rows.disk_used == 2**19
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class OnDisk:
    """Makes rows in a file of the test's own."""

    def __init__(self, file):
        self.file, self.num_rows = file, 0

    def make(self, shape, dtype):
        self.num_rows += 1
        return DiskRow(self.file, f"row {self.num_rows}", math.prod(shape), np.dtype(dtype))


def test_a_file_that_is_closed_in_mid_step_ends_the_step(tmp_path):
    file = DiskFile(tmp_path)
    weight = keras.Variable(np.ones(3 * BLOCK), name="weight")
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build([weight])
    rows = OnDisk(file)
    for slot in slots_of(optimizer)[0]:
        send_home(slot, rows)

    @tf.function(autograph=False)
    def step():
        optimizer.apply([tf.ones(3 * BLOCK)], [weight])

    with chunks_of(BLOCK), applying_by(optimizer, HostUpdate(optimizer, rows).apply):
        step()
        written, writes = file.write, []

        def closes(*args, **kwargs):
            writes.append(args)
            if len(writes) == 5:  # After the gradient, the weight and two rows of a chunk.
                file.close()
            written(*args, **kwargs)

        file.write = closes
        with pytest.raises(tf.errors.OpError, match="the file of swapped tensors is closed"):
            step()


def test_rows_import_no_tensorflow():
    asks = "import sys, tfunet.swap.storage.rows; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", asks], cwd=ROOT, check=True)
