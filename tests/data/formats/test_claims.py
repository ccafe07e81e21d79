"""Files that claim to be huge, never end, or lie elsewhere: refused before they are read."""

import gzip
import os
import struct
import time
import tracemalloc
import zlib
from contextlib import contextmanager

import h5py
import nibabel
import numcodecs
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from dicom_files import dataset, save
from PIL import Image

from tfunet.data.image_files import read_header, read_image, read_mask

GREY = np.random.default_rng(0).integers(0, 256, (20, 31)).astype(np.uint8)
HUGE = (20000, 60000)
READS = (read_header, read_image, read_mask)


def huge_png(path, kind=0):
    """60,000 x 20,000 pixels in 0.2 MB."""
    width, height = HUGE[::-1]

    def chunk(name, content):
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    packed = zlib.compress(bytes(1000 * (width + 1))) * 3
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


def huge_palette_png(path):
    huge_png(path, kind=3)


def huge_jpeg(path):
    Image.fromarray(GREY).save(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = struct.pack(">HH", 65000, 65000)
    path.write_bytes(content)


def huge_nifti(path):
    header = nibabel.Nifti1Header()
    header.set_data_shape((2000, 2000, 2000))
    header.set_data_dtype(np.float32)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    path.write_bytes(gzip.compress(header.binaryblock + bytes(2**20)))


def huge_tiff(path):
    tifffile.imwrite(path, GREY, metadata=None)
    with tifffile.TiffFile(path, mode="r+b") as file:
        for name, length in (
            ("ImageWidth", 60000),
            ("ImageLength", 60000),
            ("RowsPerStrip", 60000),
        ):
            file.pages[0].tags[name].overwrite(length)


def many_pages(path):
    """One page, and a description that says there are 10^9 of them."""
    shape = '{"shape": [1000000000, 20, 31], "truncated": true}'
    tifffile.imwrite(path, GREY, description=shape, metadata=None)


def huge_dicom(path):
    save(path, dataset(GREY, NumberOfFrames=10**8))


def deflated_dicom(path):
    """128 MiB of zeros behind a small header."""
    one = dataset(GREY)
    one.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    save(path, one)
    content = path.read_bytes()
    start = 144 + pydicom.filereader.read_file_meta_info(path).FileMetaInformationGroupLength
    inflated = zlib.decompress(content[start:], -zlib.MAX_WBITS)
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    packed = packer.compress(inflated)
    zeros = bytes(2**24)
    packed += b"".join(packer.compress(zeros) for _ in range(8)) + packer.flush()
    path.write_bytes(content[:start] + packed)


def empty_hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("raw", (10**5, 10**5, 10**3), np.uint16, chunks=(64, 64, 64))


def empty_zarr(path):
    zarr.create_array(path, shape=(10**5, 10**5, 10**3), chunks=(64, 64, 64), dtype="u2")


def huge_chunk(path):
    array = zarr.create_array(path, shape=(64, 64), chunks=(10**5, 10**5), dtype="u1")
    assert array.chunks == (10**5, 10**5)


BOMBS = {
    "a.png": huge_png,
    "palette.png": huge_palette_png,
    "a.jpg": huge_jpeg,
    "a.nii.gz": huge_nifti,
    "a.tif": huge_tiff,
    "pages.tif": many_pages,
    "a.dcm": huge_dicom,
    "deflated.dcm": deflated_dicom,
    "a.h5": empty_hdf5,
    "a.zarr": empty_zarr,
    "chunk.zarr": huge_chunk,
}


@contextmanager
def in_little(most_bytes=64 * 2**20, most_seconds=20):
    tracemalloc.start()
    began = time.perf_counter()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most_bytes
    assert time.perf_counter() - began < most_seconds


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_claims_to_be_huge_is_refused_unread(tmp_path, name, monkeypatch):
    if name == "deflated.dcm":  # Which a lower limit makes small enough for a test.
        monkeypatch.setenv("TFUNET_IMAGE_LIMIT", "256MiB")
    BOMBS[name](tmp_path / name)
    for read in READS:
        with in_little(), pytest.raises(ValueError, match=r"claims .*set TFUNET_IMAGE_LIMIT="):
            read(tmp_path / name)


def test_the_limit_can_be_raised_and_lowered(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((3000, 3000), np.uint8)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (3000, 3000, 1)
    monkeypatch.setenv("TFUNET_IMAGE_LIMIT", "1MiB")
    with pytest.raises(ValueError, match=r"claims 3000 x 3000 x 1 values, .*LIMIT=1GiB"):
        read_header(tmp_path / "a.png")
    # What is not packed so closely may be as large as it is.
    noise = np.random.default_rng(0).integers(0, 256, (3000, 3000)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "b.png", compress_level=1)
    assert read_header(tmp_path / "b.png").shape == (3000, 3000)
    monkeypatch.setenv("TFUNET_IMAGE_LIMIT", "1GiB")
    assert read_header(tmp_path / "a.png").shape == (3000, 3000)
    monkeypatch.setenv("TFUNET_IMAGE_LIMIT", "much")
    with pytest.raises(ValueError, match=r"TFUNET_IMAGE_LIMIT must be an amount such as"):
        read_header(tmp_path / "a.png")


def test_pillows_own_limit_is_not_met(tmp_path):
    """It is 179 million pixels, and has no remedy in its words."""
    pixels = np.zeros((13500, 13500), bool)
    pixels[::97] = True
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert read_header(tmp_path / "a.png").shape == (13500, 13500)


def packed_zeros():
    """64 MiB of zeros."""
    return zlib.compress(bytes(2**26))


def chunk_of_hdf5(path):
    with h5py.File(path, "w") as file:
        options = {"chunks": (20, 31), "compression": "gzip"}
        raw = file.create_dataset("raw", (20, 31), np.uint8, **options)
        raw.id.write_direct_chunk((0, 0), packed_zeros())


def chunk_of_zarr(path):
    codec = numcodecs.Zlib()
    zarr.create_array(path, data=GREY, chunks=(20, 31), zarr_format=2, compressors=codec)
    (path / "0.0").write_bytes(packed_zeros())


def strip_of_tiff(path):
    tifffile.imwrite(path, GREY, compression="zlib", metadata=None)
    end = path.stat().st_size
    path.write_bytes(path.read_bytes() + packed_zeros())
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["StripOffsets"].overwrite(end)
        file.pages[0].tags["StripByteCounts"].overwrite(len(packed_zeros()))


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.h5", chunk_of_hdf5), ("a.zarr", chunk_of_zarr), ("a.tif", strip_of_tiff)],
)
def test_a_part_that_unpacks_to_more_than_its_pixels_is_refused(tmp_path, name, write):
    write(tmp_path / name)
    with in_little(16 * 2**20), pytest.raises(ValueError, match="cannot be read"):
        read_image(tmp_path / name)


NAMES = ["a.png", "a.jpg", "a.webp", "a.tif", "a.nii", "a.nii.gz", "a.dcm", "a.npy", "a.h5:raw"]


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_and_a_device_are_refused_unread(tmp_path, name):
    path = tmp_path / name
    file = tmp_path / name.removesuffix(":raw")
    os.mkfifo(file)
    for read in READS:
        with pytest.raises(ValueError, match=r"it is a named pipe and no file"):
            read(path)
    file.unlink()
    file.symlink_to("/dev/zero")
    for read in READS:
        with pytest.raises(ValueError, match=r"it is a device and no file"):
            read(path)


def test_a_pipe_within_a_store_or_a_series_is_refused_unread(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=GREY, chunks=(8, 8))
    (tmp_path / "a.zarr" / "c" / "0" / "0").unlink()
    os.mkfifo(tmp_path / "a.zarr" / "c" / "0" / "0")
    with pytest.raises(ValueError, match=r"c/0/0: it is a named pipe and no file"):
        read_image(tmp_path / "a.zarr")
    save(tmp_path / "a" / "1.dcm", dataset(GREY))
    os.mkfifo(tmp_path / "a" / "2.dcm")
    with pytest.raises(ValueError, match=r"2\.dcm: it is a named pipe and no file"):
        read_header(tmp_path / "a")


def external(path, secret):
    with h5py.File(path, "w") as file:
        size = os.path.getsize(secret)
        file.create_dataset("raw", (1, size), np.uint8, external=[(str(secret), 0, size)])


def virtual(path, secret):
    layout = h5py.VirtualLayout((20, 31), np.uint8)
    layout[:] = h5py.VirtualSource(secret, "raw", (20, 31))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("raw", layout)


def test_pixels_in_files_of_others_are_refused(tmp_path):
    home = tmp_path / "data"
    home.mkdir()
    (tmp_path / "secret").write_bytes(GREY.tobytes())
    external(home / "a.h5", tmp_path / "secret")
    external(home / "up.h5", home / ".." / "secret")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["raw"] = GREY
    virtual(home / "b.h5", tmp_path / "other.h5")
    # A link within the folder is no way out of it.
    (home / "link.h5").symlink_to(tmp_path / "other.h5")
    virtual(home / "c.h5", "link.h5")
    # Nor is a file of the folder whose pixels lie outside.
    virtual(home / "d.h5", "a.h5")
    for name in ("a.h5", "up.h5", "b.h5", "c.h5", "d.h5"):
        for read in READS:
            with pytest.raises(ValueError, match=r"its pixels lie in .*, outside its folder"):
                read(home / f"{name}:raw")


def test_pixels_in_files_beside_are_read(tmp_path):
    (tmp_path / "pixels.raw").write_bytes(GREY.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", GREY.shape, np.uint8, external=[("pixels.raw", 0, GREY.size)])
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["raw"] = GREY
    virtual(tmp_path / "b.h5", "part.h5")
    for name in ("a.h5", "b.h5"):
        np.testing.assert_array_equal(read_image(tmp_path / f"{name}:raw")[..., 0], GREY)


def test_objects_of_python_are_never_loaded(tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    group.create_array("raw", data=GREY, filters=[numcodecs.Delta("u1")])
    metadata = (tmp_path / "a.zarr" / "raw" / ".zarray").read_text()
    text = metadata.replace('"|u1"', '"|O"').replace('"delta"', '"pickle"')
    (tmp_path / "a.zarr" / "raw" / ".zarray").write_text(text)
    np.save(tmp_path / "a.npy", np.array([[{}]], object), allow_pickle=True)
    for name in ("a.zarr:raw", "a.npy"):
        for read in READS:
            with pytest.raises(ValueError, match="cannot be read"):
                read(tmp_path / name)


def test_a_compression_that_hdf5_lacks_has_a_remedy(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"chunks": (20, 31), "compression": 32999, "allow_unknown_filter": True}
        raw = file.create_dataset("raw", (20, 31), np.uint8, **options)
        raw.id.write_direct_chunk((0, 0), bytes(100))
    for read in READS:
        with pytest.raises(ValueError, match=r"filter 32999 .*pip install hdf5plugin.*h5repack"):
            read(tmp_path / "a.h5")


ANNEX = b"/annex/objects/SHA256E-s123--0123456789abcdef.nii.gz\n"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("content", "remedy"), [(ANNEX, "git annex get"), (LFS, "git lfs pull")])
def test_a_pointer_says_how_to_fetch_the_file(tmp_path, name, content, remedy):
    (tmp_path / name.removesuffix(":raw")).write_bytes(content)
    for read in READS:
        with pytest.raises(ValueError, match=remedy):
            read(tmp_path / name)


def test_a_link_into_an_annex_without_content_says_so(tmp_path):
    (tmp_path / "a.png").symlink_to("../.git/annex/objects/Kj/0Q/SHA256E-s9--0/SHA256E-s9--0.png")
    with pytest.raises(ValueError, match="git annex get"):
        read_header(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("nowhere.png")
    with pytest.raises(ValueError, match="there is no such file"):
        read_header(tmp_path / "b.png")


def test_a_chunk_that_is_a_pointer_says_so(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=GREY, chunks=GREY.shape)
    (tmp_path / "a.zarr" / "c" / "0" / "0").write_bytes(ANNEX)
    with pytest.raises(ValueError, match="git annex get"):
        read_image(tmp_path / "a.zarr")
