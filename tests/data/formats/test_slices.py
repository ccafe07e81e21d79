"""A folder of slices as a volume: as stacking the files by hand gives it."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.data.defects import BadFileError
from tfunet.data.image_files import read_header, read_image, read_mask
from tfunet.data.source import open_source

VOLUME = np.random.default_rng(0).integers(0, 60000, (12, 9, 7)).astype(np.uint16)


def write_slices(folder, volume, name="slice_{}.tif"):
    folder.mkdir(parents=True)
    for number, plane in enumerate(volume):
        path = folder / name.format(number)
        tifffile.imwrite(path, plane) if path.suffix == ".tif" else Image.fromarray(plane).save(
            path
        )


@pytest.mark.parametrize(
    ("volume", "name"),
    [
        (VOLUME, "slice_{}.tif"),
        (VOLUME, "{}.png"),
        ((VOLUME // 256).astype(np.uint8), "z{}_c0.PNG"),
        (np.stack([VOLUME // 256] * 3, -1).astype(np.uint8), "{}.png"),
    ],
)
def test_slices_are_stacked_in_the_order_of_their_numbers(volume, name, tmp_path):
    write_slices(tmp_path / "a", volume, name)
    (tmp_path / "a/notes.txt").write_text("10 before 2")
    (tmp_path / "a/.hidden.png").write_text("")
    expected = volume if volume.ndim == 4 else volume[..., np.newaxis]
    np.testing.assert_array_equal(read_image(tmp_path / "a"), expected)
    header = read_header(tmp_path / "a")
    assert (header.shape, header.channels) == ((12, 9, 7), expected.shape[-1])
    assert (header.axes, header.dtype, header.spacing) == ("zyx", str(volume.dtype), None)


def test_a_data_set_of_slice_series(tmp_path):
    for case in ("a", "b"):
        write_slices(tmp_path / case / "em", (VOLUME // 256).astype(np.uint8), "{}.png")
        write_slices(tmp_path / case / "labels", (VOLUME > 30000).astype(np.uint8), "{}.png")
    source = open_source(
        "folder",
        {
            "root": str(tmp_path),
            "images": "{case}/em/",
            "masks": "{case}/labels/",
            "classes": {"cell": 1},
            "pixel_size": [4, 2, 2],
            "target_pixel_size": 4,
        },
    )
    assert source.case_ids == ("a", "b")
    assert source.shapes[0] == (12, 4, 4)
    image, mask = source.read(0)
    assert image.shape == (*mask.shape, 1) == (12, 4, 4, 1)
    np.testing.assert_array_equal(read_mask(tmp_path / "b/labels"), VOLUME > 30000)


def test_slices_that_are_not_alike_are_refused(tmp_path):
    write_slices(tmp_path / "a", VOLUME)
    tifffile.imwrite(tmp_path / "a/slice_12.tif", VOLUME[0, :5])
    with pytest.raises(BadFileError, match=r"slice_12\.tif is 5 x 7 of uint16, and slice_0\.tif"):
        read_image(tmp_path / "a")
    tifffile.imwrite(tmp_path / "a/slice_12.tif", VOLUME[:2], photometric="minisblack")
    with pytest.raises(BadFileError, match=r"slice_12\.tif holds several planes"):
        read_header(tmp_path / "a")
    (tmp_path / "a/slice_12.tif").unlink()
    Image.fromarray(VOLUME[0]).save(tmp_path / "a/slice_12.png")
    with pytest.raises(BadFileError, match=r"several kinds: \.png, \.tif"):
        read_image(tmp_path / "a")
