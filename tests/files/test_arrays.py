"""Arrays in a file: read as they were written, and refused whole if anything is wrong."""

import zipfile

import numpy as np
import pytest

from tfunet.files import arrays
from tfunet.files.arrays import read_arrays, write_arrays
from tfunet.files.typed import RecordError

PLANES = {"image-0-0": np.arange(6, dtype=np.uint8).reshape(2, 3)}


def test_arrays_and_facts_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "a.npz"
    assert read_arrays(path) is None
    write_arrays(path, PLANES, {"cases": ["a/ä"]})
    read, facts = read_arrays(path)
    np.testing.assert_array_equal(read["image-0-0"], PLANES["image-0-0"])
    assert (list(read), facts) == (["image-0-0"], {"cases": ["a/ä"]})


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-40])


def program(path):
    np.savez(path, facts=np.array([print], object))


def no_facts(path):
    np.savez(path, **PLANES)


def no_table(path):
    write_arrays(path, PLANES, [1])


def no_array(path):
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("mask-0-0.npy", b"no array")
        file.writestr("nothing", b"at all")


@pytest.mark.parametrize("damage", [cut_off, program, no_facts, no_table, no_array])
def test_what_is_wrong_names_the_file(damage, tmp_path):
    path = tmp_path / "a.npz"
    write_arrays(path, PLANES, {})
    damage(path)
    with pytest.raises(RecordError, match=r"a\.npz cannot be used"):
        read_arrays(path)


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_BYTES", 1000)
    write_arrays(tmp_path / "a.npz", {"image-0-0": np.zeros((40, 40), np.uint8)}, {})
    with pytest.raises(RecordError, match="unpacks to more"):
        read_arrays(tmp_path / "a.npz")
