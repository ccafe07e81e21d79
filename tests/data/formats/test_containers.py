"""Arrays in HDF5, Zarr and OME-NGFF files."""

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from small_images import STACK16, cut

from tfunet.data.image_files import read_header, read_image, read_mask


def test_an_array_of_an_hdf5_file_is_named_after_a_colon(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["volumes/raw"] = STACK16
        file["volumes/labels"] = STACK16 % 3
    image = read_image(tmp_path / "a.h5:volumes/raw")
    np.testing.assert_array_equal(image[..., 0], STACK16.astype(np.float32))
    np.testing.assert_array_equal(read_mask(tmp_path / "a.h5:/volumes/labels"), STACK16 % 3)
    for name in ("a.h5", "a.h5:row"):
        with pytest.raises(ValueError, match=r"it has: volumes/labels, volumes/raw"):
            read_header(tmp_path / name)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("compressor", ["zstd", "blosc"])
def test_a_zarr_array_comes_back_and_a_truncated_chunk_is_named(tmp_path, version, compressor):
    codecs = {
        (2, "zstd"): numcodecs.Zstd(),
        (2, "blosc"): numcodecs.Blosc(),
        (3, "zstd"): zarr.codecs.ZstdCodec(),
        (3, "blosc"): zarr.codecs.BloscCodec(),
    }
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    codec = codecs[version, compressor]
    options = {"shape": STACK16.shape, "chunks": (2, 20, 31), "dtype": STACK16.dtype}
    array = group.create_array("raw", compressors=codec, **options)
    array[...] = STACK16
    for name in ("a.zarr/raw", "a.zarr:raw"):
        image = read_image(tmp_path / name)
        np.testing.assert_array_equal(image[..., 0], STACK16.astype(np.float32))
    with pytest.raises(ValueError, match=r"no OME-NGFF image; it has: raw"):
        read_header(tmp_path / "a.zarr")
    files = [file for file in (tmp_path / "a.zarr").rglob("*") if file.is_file()]
    cut(max(files, key=lambda one: one.stat().st_size))
    with pytest.raises(ValueError, match=r"a\.zarr:raw: cannot be read"):
        read_image(tmp_path / "a.zarr:raw")


@pytest.mark.parametrize("version", [2, 3])  # of zarr; OME-NGFF 0.4 and 0.5
def test_an_ome_ngff_image_is_read_at_full_size(tmp_path, version):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    pixels = np.stack([STACK16, STACK16 // 3])
    for level, array in enumerate((pixels, pixels[:, :, ::2, ::2])):
        group.create_array(str(level), data=np.ascontiguousarray(array))
    axes = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space"} for n in "zyx")]
    scales = [{"type": "scale", "scale": [1, 2.0, 0.5, 0.25]}]
    images = [
        {
            "axes": axes,
            "datasets": [
                {"path": str(level), "coordinateTransformations": scales} for level in range(2)
            ],
        }
    ]
    if version == 2:
        group.attrs["multiscales"] = images
    else:
        group.attrs["ome"] = {"version": "0.5", "multiscales": images}
    header = read_header(tmp_path / "a.zarr")
    assert (header.shape, header.channels, header.spacing) == ((6, 20, 31), 2, (2, 0.5, 0.25))
    image = read_image(tmp_path / "a.zarr")
    np.testing.assert_array_equal(image, np.moveaxis(pixels, 0, -1).astype(np.float32))
