"""OME-NGFF and OME-TIFF: all of a composed transformation, units of each axis."""

import numpy as np
import pytest
import tifffile
import zarr

from tfunet.data.image_files import read_header
from tfunet.data.layouts.folder import open_folder

VOLUME = np.random.default_rng(0).integers(0, 256, (6, 20, 31)).astype(np.uint8)


def scale(*numbers):
    return {"type": "scale", "scale": list(numbers)}


def translation(*numbers):
    return {"type": "translation", "translation": list(numbers)}


def write(path, level, image, *, pixels=VOLUME, axes="zyx", units=None, version=2):
    group = zarr.create_group(path, zarr_format=version)
    group.create_array("0", data=pixels)
    group.create_array("scale", data=np.array([2, 0.5, 0.25]))
    units = units or dict.fromkeys("zyx", "micrometer")
    kinds = {"c": "channel", "t": "time"}
    named = [
        {"name": letter, "type": kinds.get(letter, "space")}
        | ({"unit": units[letter]} if letter in units else {})
        for letter in axes
    ]
    images = [
        {
            "axes": named,
            "datasets": [{"path": "0", "coordinateTransformations": level}],
            "coordinateTransformations": image,
        }
    ]
    if version == 2:
        group.attrs["multiscales"] = images
    else:
        group.attrs["ome"] = {"version": "0.5", "multiscales": images}
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("level", "image", "sizes", "place"),
    [
        ([scale(2, 0.5, 0.25)], [], (2, 0.5, 0.25), (0, 0, 0)),
        # The level says how much smaller it is, all levels how large a pixel is.
        ([scale(1, 1, 1)], [scale(2, 0.5, 0.25)], (2, 0.5, 0.25), (0, 0, 0)),
        ([scale(1, 2, 2)], [scale(2, 0.25, 0.125)], (2, 0.5, 0.25), (0, 0, 0)),
        ([scale(2, 0.5, 0.25), translation(10, 20, 30)], [], (2, 0.5, 0.25), (10, 20, 30)),
        # What moves first is scaled too.
        (
            [scale(1, 1, 1), translation(1, 2, 3)],
            [scale(2, 0.5, 0.25), translation(10, 20, 30)],
            (2, 0.5, 0.25),
            (12, 21, 30.75),
        ),
        ([{"type": "scale", "path": "scale"}], [], (2, 0.5, 0.25), (0, 0, 0)),
        ([{"type": "identity"}, scale(2, 0.5, 0.25)], [], (2, 0.5, 0.25), (0, 0, 0)),
    ],
)
def test_all_transformations_are_followed(tmp_path, version, level, image, sizes, place):
    header = read_header(write(tmp_path / "a.zarr", level, image, version=version))
    assert (header.spacing, header.unit) == (sizes, "µm")
    # x, y, z of the first voxel, and of the next along each axis.
    np.testing.assert_allclose(header.affine[:3, 3], place[::-1])
    np.testing.assert_allclose(np.abs(header.affine[:3, :3]).sum(0), sizes)
    np.testing.assert_allclose(header.affine[:3, 0], [0, 0, sizes[0]])


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ([{"type": "rotation", "rotation": [1, 0]}], r"one of type 'rotation'; readable: scale"),
        ([scale(2, 1)], r"a scale of 2 numbers for 3 axes"),
    ],
)
def test_other_transformations_are_named(tmp_path, level, words):
    with pytest.raises(ValueError, match=words):
        read_header(write(tmp_path / "a.zarr", level, []))


def test_axes_may_have_units_of_their_own(tmp_path):
    units = {"z": "nanometer", "y": "micrometer", "x": "micrometer"}
    path = write(tmp_path / "a.zarr", [scale(2000, 0.5, 0.25)], [], units=units)
    assert read_header(path).spacing == pytest.approx((2, 0.5, 0.25))
    sizes = {"PhysicalSizeX": 0.25, "PhysicalSizeY": 500, "PhysicalSizeZ": 2000}
    named = {"PhysicalSizeYUnit": "nm", "PhysicalSizeZUnit": "nm"}
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, VOLUME, metadata={"axes": "ZYX", **sizes, **named})
    header = read_header(path)
    assert (header.spacing, header.unit) == (pytest.approx((2, 0.5, 0.25)), "µm")


def folder(root):
    options = {"images": "{case}.zarr", "masks": "masks/{case}.zarr", "classes": {"cell": 1}}
    return open_folder(root=str(root), **options)


def test_a_mask_that_lies_elsewhere_than_its_image_is_found(tmp_path):
    write(tmp_path / "a.zarr", [scale(2, 1, 1), translation(0, 10, 0)], [])
    mask = (VOLUME > 200).astype(np.uint8)
    write(tmp_path / "masks" / "a.zarr", [scale(2, 1, 1)], [], pixels=mask)
    with pytest.raises(ValueError, match=r"its header puts it up to 10 from its image"):
        folder(tmp_path)


def test_a_mask_in_another_unit_lies_where_its_image_does(tmp_path):
    write(tmp_path / "a.zarr", [scale(2, 1, 1), translation(0, 10, 0)], [])
    mask = (VOLUME > 200).astype(np.uint8)
    step = [scale(2000, 1000, 1000), translation(0, 10000, 0)]
    units = dict.fromkeys("zyx", "nanometer")
    write(tmp_path / "masks" / "a.zarr", step, [], pixels=mask, units=units)
    assert folder(tmp_path).defects == ()


def test_a_plane_has_a_place_too(tmp_path):
    options = {"pixels": VOLUME[0], "axes": "yx"}
    header = read_header(
        write(tmp_path / "a.zarr", [scale(0.5, 0.25), translation(7, 9)], [], **options)
    )
    assert (header.shape, header.spacing) == ((20, 31), (0.5, 0.25))
    np.testing.assert_allclose(header.affine[:3, 3], [9, 7, 0])


def test_a_geotiff_may_state_its_pixel_size_by_a_matrix(tmp_path):
    matrix = [0.0, 20.0, 0.0, 500.0, 10.0, 0.0, 0.0, 600.0, *[0.0] * 7, 1.0]
    tag = (34264, "d", 16, matrix, True)
    tifffile.imwrite(tmp_path / "a.tif", VOLUME[0], extratags=[tag])
    assert read_header(tmp_path / "a.tif").spacing == (20, 10)
