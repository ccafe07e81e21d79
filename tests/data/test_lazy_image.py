"""Boxes of files are those of the whole file, bit for bit, and what is not needed is not read."""

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr

from tfunet.data.image_files import read_image, read_mask
from tfunet.data.layouts import file_reader
from tfunet.data.layouts.folder import open_folder
from tfunet.data.lazy_image import joined, open_image, open_mask, resized
from tfunet.data.preprocess import channel_statistics, normalise, resize_linear

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 60000, (70, 90, 4)).astype(np.uint16)
STACK = RNG.integers(0, 255, (7, 70, 90)).astype(np.uint8)
MANY = RNG.integers(0, 255, (3, 5, 70, 90)).astype(np.uint16)
PLAIN = {"photometric": "minisblack", "planarconfig": "contig"}
TILED = {**PLAIN, "tile": (32, 16), "compression": "zlib"}


def tiff(array, **options):
    return ".tif", lambda path: tifffile.imwrite(path, array, **options)


def nifti(array, suffix=".nii", slope=None):
    def write(path):
        image = nibabel.Nifti1Image(array, np.diag([1, 2, 3, 1]))
        if slope:
            image.header.set_slope_inter(slope, 3)
        image.to_filename(path)

    return suffix, write


def hdf5(array, **options):
    def write(path):
        with h5py.File(path, "w") as file:
            file.create_dataset("deep/raw", data=array, **options)

    return ".h5", write


def zarr_store(array, **options):
    return ".zarr", lambda path: zarr.create_array(path, data=array, **options)


def ngff(array, axes):
    def write(path):
        group = zarr.create_group(path, zarr_format=2)
        group.create_array("0", data=array, chunks=(1, 3, 30, 40))
        image = {"version": "0.4", "axes": list(axes), "datasets": [{"path": "0"}]}
        group.attrs["multiscales"] = [image]

    return ".zarr", write


# Name to (writer, whether a box is read without the rest).
FILES = {
    "tiles": (tiff(COLOURS, **TILED), True),
    "tiles with a predictor": (tiff(COLOURS, **TILED, predictor=True), True),
    "tiles of bands": (
        tiff(
            np.moveaxis(COLOURS, -1, 0),
            **{**TILED, "planarconfig": "separate"},
        ),
        True,
    ),
    "tiles of jpeg": (tiff(COLOURS[..., :3].astype("u1"), tile=(16, 16), compression="jpeg"), True),
    "strips": (tiff(COLOURS, **PLAIN, rowsperstrip=9, compression="zlib"), True),
    "as in memory": (tiff(COLOURS, **PLAIN), True),
    "big-endian": (tiff(COLOURS.astype(">u2"), **PLAIN, byteorder=">"), True),
    "big-endian tiles": (tiff(COLOURS.astype(">u2"), **PLAIN, byteorder=">", tile=(16, 16)), True),
    "with alpha": (tiff(COLOURS.astype("u1"), tile=(16, 16), photometric="rgb"), True),
    "stack of tiles": (tiff(STACK, photometric="minisblack", tile=(16, 32)), True),
    "stack of pages": (tiff(STACK, photometric="minisblack", compression="zlib"), True),
    "ome czyx": (tiff(MANY, ome=True, metadata={"axes": "CZYX"}, tile=(16, 16)), True),
    "ome zcyx": (
        tiff(np.moveaxis(MANY, 0, 1), ome=True, metadata={"axes": "ZCYX"}, compression="zlib"),
        True,
    ),
    "one strip": (tiff(STACK[0], compression="zlib", rowsperstrip=70), False),
    "nifti": (nifti(STACK), True),
    "nifti, scaled": (nifti(STACK.astype("i2"), slope=2), True),
    "nifti with channels": (nifti(RNG.normal(size=(9, 8, 7, 3)).astype("f4")), True),
    "nifti.gz": (nifti(STACK, ".nii.gz"), False),
    "hdf5 in chunks": (hdf5(STACK, chunks=(2, 16, 32), compression="gzip"), True),
    "hdf5 as in memory": (hdf5(np.stack([COLOURS, COLOURS // 3])), True),
    "hdf5 in one chunk": (hdf5(STACK, chunks=STACK.shape, compression="gzip"), False),
    "zarr in chunks": (zarr_store(STACK, chunks=(2, 16, 32)), True),
    "zarr with blosc": (
        zarr_store(STACK, chunks=(4, 70, 32), compressors=zarr.codecs.BloscCodec()),
        True,
    ),
    "zarr in shards": (zarr_store(STACK, chunks=(1, 35, 45), shards=(7, 70, 90)), True),
    "zarr in one chunk": (zarr_store(STACK, chunks=STACK.shape), False),
    "ome-ngff czyx": (ngff(MANY, "czyx"), True),
}


def boxes(shape, count=12):
    rng = np.random.default_rng(1)
    for _ in range(count):
        start = [int(rng.integers(0, size)) for size in shape]
        yield (
            start,
            [int(rng.integers(a + 1, size + 1)) for a, size in zip(start, shape, strict=True)],
        )


def cut(array, start, stop):
    return array[tuple(map(slice, start, stop))]


@pytest.mark.parametrize("name", FILES)
def test_a_box_is_that_of_the_whole_file(name, tmp_path):
    (suffix, write), by_parts = FILES[name]
    path = tmp_path / f"file{suffix}"
    write(path)
    whole, lazy = read_image(path), open_image(path)
    assert (lazy.shape, lazy.channels) == (whole.shape[:-1], whole.shape[-1])
    assert lazy.by_parts == by_parts
    for start, stop in boxes(lazy.shape):
        found = lazy.read(start, stop)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, cut(whole, start, stop))
    np.testing.assert_array_equal(np.concatenate(list(lazy.parts())), whole)


def test_four_bands_are_four_channels_unless_the_file_says_alpha(tmp_path):
    tifffile.imwrite(tmp_path / "bands.tif", COLOURS, **TILED)
    tifffile.imwrite(
        tmp_path / "alpha.tif", COLOURS, photometric="rgb", extrasamples=["unassalpha"]
    )
    assert open_image(tmp_path / "bands.tif").channels == 4
    assert open_image(tmp_path / "alpha.tif").channels == 3


def test_a_box_of_a_mask_is_that_of_the_whole_mask(tmp_path):
    tifffile.imwrite(tmp_path / "mask.tif", STACK[0], tile=(16, 16), compression="zlib")
    whole, lazy = read_mask(tmp_path / "mask.tif"), open_mask(tmp_path / "mask.tif")
    for start, stop in boxes(lazy.shape):
        np.testing.assert_array_equal(lazy.read(start, stop), cut(whole, start, stop))


def test_only_the_chunks_of_a_box_are_read(tmp_path):
    """A chunk beyond it may be damaged."""
    box = (0, 0, 0), (2, 16, 16)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        raw = file.create_dataset("raw", data=STACK, chunks=(2, 16, 16), fletcher32=True)
        last = raw.id.get_chunk_info(raw.id.get_num_chunks() - 1)
    with (tmp_path / "file.h5").open("r+b") as file:
        file.seek(last.byte_offset)
        file.write(b"damaged")
    zarr.create_array(tmp_path / "file.zarr", data=STACK, chunks=(2, 16, 16))
    (tmp_path / "file.zarr" / "c" / "3" / "4" / "5").write_bytes(b"damaged")
    for name in ("file.h5", "file.zarr"):
        lazy = open_image(tmp_path / name)
        np.testing.assert_array_equal(lazy.read(*box)[..., 0], cut(STACK, *box))
        with pytest.raises(ValueError, match=rf"{name}: cannot be read"):
            lazy.read((6, 64, 80), (7, 70, 90))


def test_only_the_tiles_of_a_box_are_read(tmp_path):
    path = tmp_path / "file.tif"
    tifffile.imwrite(path, STACK[0], tile=(16, 16), compression="zlib")
    lazy = open_image(path)
    with tifffile.TiffFile(path) as file:
        end = file.pages[0].dataoffsets[1]
    content = bytearray(path.read_bytes())
    expected = lazy.read((0, 0), (16, 16))
    content[end:] = bytes(len(content) - end)
    path.write_bytes(content)
    np.testing.assert_array_equal(lazy.read((0, 0), (16, 16)), expected)
    with pytest.raises(ValueError, match=r"file.tif: cannot be read"):
        lazy.read((16, 16), (17, 17))


@pytest.mark.parametrize("shape", [(70, 90), (41, 90), (99, 60), (141, 200)])
def test_a_box_of_a_resized_image_has_the_bits_of_the_whole(shape, tmp_path):
    tifffile.imwrite(tmp_path / "file.tif", COLOURS[..., :3], tile=(16, 16), photometric="rgb")
    opened = open_image(tmp_path / "file.tif")
    whole, lazy = resize_linear(read_image(tmp_path / "file.tif"), shape), resized(opened, shape)
    for start, stop in boxes(shape):
        np.testing.assert_array_equal(lazy.read(start, stop), cut(whole, start, stop))


@pytest.mark.parametrize("shape", [(40, 30, 3), (17, 9, 8, 1), (40, 1, 2), (1, 30, 1)])
def test_statistics_do_not_depend_on_where_the_image_is_cut(shape):
    image = np.random.default_rng(2).normal(1000, 3, shape).astype(np.float32)
    mean, deviation = channel_statistics([image])
    axes = tuple(range(len(shape) - 1))
    np.testing.assert_allclose(mean, image.mean(axes, dtype=np.float64), rtol=1e-14)
    np.testing.assert_allclose(deviation, image.std(axes, dtype=np.float64), rtol=1e-12)
    for cuts in ((1,), (3, 5), range(1, shape[0])):
        parts = [part for part in np.split(image, cuts) if len(part)]
        for found, expected in zip(channel_statistics(parts), (mean, deviation), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_files_of_one_case_must_have_one_shape(tmp_path):
    for name, array in (("a", STACK[0]), ("b", STACK[0, 1:])):
        tifffile.imwrite(tmp_path / f"{name}.tif", array)
    with pytest.raises(ValueError, match=r"shapes \(70, 90\), \(69, 90\); they must agree"):
        joined([open_image(tmp_path / f"{name}.tif") for name in "ab"])


@pytest.mark.parametrize(
    "options",
    [
        {"masks": "{case}_mask.tif", "classes": {"cell": [3, 7], "background": [0, 1]}},
        {"masks": {"a": "{case}_mask.tif"}, "threshold": 2},
        {
            "masks": "{case}_mask.tif",
            "classes": {"cell": [3, 7], "background": [0, 1]},
            "pixel_size": 1.0,
            "target_pixel_size": [0.7, 1.6],
        },
    ],
)
def test_a_large_case_in_parts_is_what_reading_it_whole_gives(options, tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "LARGE_BYTES", 0)
    monkeypatch.setattr("tfunet.data.lazy_image.PART_BYTES", 90 * 3 * 4 * 11)
    tifffile.imwrite(tmp_path / "x_image.tif", COLOURS[..., :3], tile=(16, 16), photometric="rgb")
    mask = np.array([0, 1, 3, 7], np.uint8)[STACK[0] % 4]
    tifffile.imwrite(tmp_path / "x_mask.tif", mask, tile=(16, 16), compression="zlib")
    source = open_folder(root=str(tmp_path), images="{case}_image.tif", **options)
    image, labels = source.read(0)
    parts = source.stored(0)
    assert parts.shape == labels.shape
    pairs = list(parts.parts)
    assert len(pairs) > 5
    pixels = np.concatenate([part for part, _ in pairs])
    np.testing.assert_array_equal(normalise(pixels, source.intensity, parts.statistics), image)
    np.testing.assert_array_equal(np.concatenate([part for _, part in pairs]), labels)
    # So is any box, whether the statistics are known or not.
    for statistics in (None, parts.statistics):
        box = source.boxes(0, statistics)
        for start, stop in (((0, 0), labels.shape), ((3, 5), (17, 6)), ((40, 1), (41, 50))):
            place = tuple(map(slice, start, stop))
            pixels, mask = box(start, stop)
            np.testing.assert_array_equal(pixels, image[place])
            np.testing.assert_array_equal(mask, labels[place])


def test_a_mask_in_parts_is_held_to_the_same_rules(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "LARGE_BYTES", 0)
    monkeypatch.setattr("tfunet.data.lazy_image.PART_BYTES", 90 * 4 * 8)
    tifffile.imwrite(tmp_path / "x_image.tif", STACK[0], tile=(16, 16))
    mask = np.zeros(STACK[0].shape, np.uint8)
    mask[3, 3], mask[66, 80] = 1, 2  # Each part alone would pass as a mask of one class.
    tifffile.imwrite(tmp_path / "x_mask.tif", mask, tile=(16, 16), compression="zlib")
    source = open_folder(root=str(tmp_path), images="{case}_image.tif", masks="{case}_mask.tif")
    with pytest.raises(ValueError, match="holds the values 0, 1, 2"):
        list(source.stored(0).parts)
