"""Pixel sizes in files beside the images: which number belongs to which axis."""

import json

import numpy as np
import pytest
import tifffile

from tfunet.data.source import open_source

SHAPE = (4, 6, 5)
SIZES = [2.0, 1.0, 0.5]


def volumes(folder, image, mask, **options):
    for name, high in ((image, 256), (mask, 2)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(0).integers(0, high, SHAPE).astype(np.uint8)
        tifffile.imwrite(path, pixels, photometric="minisblack", **options)


def nnunet(folder, sizes=SIZES, **options):
    volumes(folder, "imagesTr/cell_0000.tif", "labelsTr/cell.tif")
    for part in ("imagesTr", "labelsTr"):
        (folder / part / "cell.json").write_text(json.dumps({"spacing": sizes}))
    about = {"channel_names": {"0": "m"}, "labels": {"bg": 0, "cell": 1}, "file_ending": ".tif"}
    (folder / "dataset.json").write_text(json.dumps(about))
    return open_source("nnunet", {"root": str(folder), "target_pixel_size": 1.0, **options})


@pytest.mark.parametrize(
    "options", [{}, {"pixel_size": {"file": "imagesTr/{case}.json", "key": "spacing"}}]
)
def test_sizes_beside_an_nnunet_tiff_follow_the_array(tmp_path, options):
    source = nnunet(tmp_path, **options)
    assert source.raw(0).spacing == tuple(SIZES)
    assert source.read(0)[0].shape == (8, 6, 2, 1)
    assert nnunet(tmp_path, pixel_size=1.0).read(0)[0].shape == (*SHAPE, 1)


def beside(folder, key, order=None, **options):
    volumes(folder, "a.tif", "a_m.tif", **options)
    (folder / "a.json").write_text(json.dumps({key: SIZES}))
    size = {"file": "{case}.json", "key": key, **({"order": order} if order else {})}
    patterns = {"images": "{case}.tif", "masks": "{case}_m.tif"}
    return open_source(
        "folder",
        {"root": str(folder), **patterns, "pixel_size": size, "target_pixel_size": 1.0},
    ).raw(0)


@pytest.mark.parametrize(
    ("key", "order", "spacing"),
    [
        ("PixelSize", None, (0.5, 1.0, 2.0)),  # As BIDS has it: x first.
        ("PixelSize", "array", (2.0, 1.0, 0.5)),
        ("spacing", "array", (2.0, 1.0, 0.5)),
        ("spacing", "xyz", (0.5, 1.0, 2.0)),
    ],
)
def test_a_list_of_sizes_says_or_is_asked_which_axis_is_first(tmp_path, key, order, spacing):
    assert beside(tmp_path, key, order).spacing == spacing


def test_an_image_with_sizes_of_its_own_has_its_axes_in_the_same_order(tmp_path):
    metadata = {"axes": "ZYX", "PhysicalSizeX": 9, "PhysicalSizeY": 9, "PhysicalSizeZ": 9}
    raw = beside(tmp_path, "PixelSize", ome=True, metadata=metadata)
    assert raw.spacing == (0.5, 1.0, 2.0)


def test_a_list_that_may_be_read_both_ways_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"not which axis is first; add.* order = 'xyz' \(x first"):
        beside(tmp_path, "spacing")
    with pytest.raises(ValueError, match=r"pixel_size.order='zyx'; known: 'xyz'"):
        beside(tmp_path, "spacing", "zyx")
