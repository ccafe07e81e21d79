"""Pages of a TIFF that are not alike, and several images in one file."""

import os
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.data.image_files import read_header, read_image, read_mask

RNG = np.random.default_rng(0)
STACK = RNG.integers(0, 256, (16, 20, 31)).astype(np.uint8)


def pages(path, planes, **options):
    """Write planes as most programs do: a page each, without words of tifffile's."""
    with tifffile.TiffWriter(path) as file:
        for plane in planes:
            tag = plane[1] if isinstance(plane, tuple) else {}
            pixels = plane[0] if isinstance(plane, tuple) else plane
            file.write(pixels, contiguous=False, metadata=None, **options, **tag)


# The page that is not as the others lies where tifffile does not look: at the ninth.
def with_one(odd):
    return [*STACK[:8], odd, *STACK[9:]]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (STACK[8].astype(np.uint16), r"8 of 20 x 31 uint8, then 1 of 20 x 31 uint16, then 7 of"),
        (STACK[8][:, :-1], r"8 of 20 x 31 uint8, then 1 of 20 x 30 uint8"),
        ((STACK[8], {"photometric": "miniswhite"}), r"then 1 of 20 x 31 uint8 miniswhite"),
        ((STACK[8], {"compression": "zlib"}), r"then 1 of 20 x 31 uint8 adobe_deflate, then 7"),
        (
            (STACK[8], {"extratags": [(274, "H", 1, 3, True)]}),
            r"then 1 of 20 x 31 uint8 orientation 3",
        ),
    ],
)
def test_a_page_unlike_the_others_is_named(tmp_path, odd, words):
    pages(tmp_path / "a.tif", with_one(odd))
    for read in (read_header, read_image, read_mask):
        with pytest.raises(ValueError, match=words):
            read(tmp_path / "a.tif")


def test_an_unlike_page_that_tifffile_describes_is_named(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for plane in with_one(STACK[8].astype(np.uint16)):
            file.write(plane)
    with pytest.raises(ValueError, match=r"8 of 20 x 31 uint8, then 1 of 20 x 31 uint16"):
        read_header(tmp_path / "a.tif")


def test_a_thumbnail_before_the_stack_is_not_taken_for_it(tmp_path):
    pages(tmp_path / "a.tif", [STACK[0, ::4, ::4], *STACK])
    with pytest.raises(ValueError, match=r"1 of 5 x 8 uint8, then 1 of 16 x 20"):
        read_header(tmp_path / "a.tif")
    # Unless the file says that it is one.
    pages(tmp_path / "b.tif", [(STACK[0, ::4, ::4], {"subfiletype": 1}), *STACK])
    np.testing.assert_array_equal(read_image(tmp_path / "b.tif")[..., 0], STACK)


def test_pages_that_tifffile_wrote_one_by_one_are_a_stack(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for plane in STACK:
            file.write(plane)
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif")[..., 0], STACK)


def test_several_images_in_an_ome_tiff_are_named(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as file:
        for position in range(3):
            file.write(STACK + position, metadata={"axes": "ZYX"})
    with pytest.raises(ValueError, match=r"3 of 16 x 20 x 31 uint8.*a file of its own"):
        read_header(tmp_path / "a.ome.tif")


def ome(path, others):
    """Write a plane whose description puts each plane of a stack into a file."""
    planes = "".join(
        f'<TiffData IFD="0" FirstZ="{at}" PlaneCount="1"><UUID FileName="{name}">urn:uuid:{at}'
        "</UUID></TiffData>"
        for at, name in enumerate(others)
    )
    text = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
        'UUID="urn:uuid:0"><Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" '
        f'Type="uint8" SizeX="31" SizeY="20" SizeZ="{len(others)}" SizeC="1" SizeT="1">'
        f'<Channel ID="Channel:0:0" SamplesPerPixel="1"/>{planes}</Pixels></Image></OME>'
    )
    tifffile.imwrite(path, STACK[0], description=text, metadata=None)


def test_a_stack_may_lie_in_several_ome_tiffs_of_a_folder(tmp_path):
    names = [f"z{at}.ome.tif" for at in range(3)]
    for at in (1, 2):
        tifffile.imwrite(tmp_path / names[at], STACK[at], metadata=None)
    ome(tmp_path / names[0], names)
    assert read_header(tmp_path / names[0]).shape == (3, 20, 31)
    np.testing.assert_array_equal(read_image(tmp_path / names[0])[..., 0], STACK[:3])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../secret.ome.tif", "its pixels lie in another folder"),
        ("{parent}/secret.ome.tif", "its pixels lie in another folder"),
        ("&#46;&#46;/secret.ome.tif", "its pixels lie in another folder"),
        ("pipe.ome.tif", "it is a named pipe and no file"),
        ("endless.ome.tif", "it is a device and no file"),
    ],
)
def test_an_ome_tiff_opens_no_other_file(tmp_path, name, words):
    folder = tmp_path / "images"
    folder.mkdir()
    tifffile.imwrite(tmp_path / "secret.ome.tif", STACK[1])
    os.mkfifo(folder / "pipe.ome.tif")
    (folder / "endless.ome.tif").symlink_to("/dev/zero")
    ome(folder / "a.ome.tif", ["a.ome.tif", name.format(parent=tmp_path)])
    for read in (read_header, read_image):
        with pytest.raises(ValueError, match=words):
            read(folder / "a.ome.tif")


def test_what_lies_beside_an_ome_tiff_is_not_looked_at(tmp_path, monkeypatch):
    """DataLad leaves links to nothing, and a folder may hold thousands of images."""
    tifffile.imwrite(tmp_path / "0.ome.tif", STACK[0], metadata={"axes": "YX"})
    (tmp_path / "missing.txt").symlink_to("nothing")
    looks = []
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **more: looks.append(self) or real(self, **more))
    read_header(tmp_path / "0.ome.tif")
    alone = len(looks)
    for number in range(1, 100):
        (tmp_path / f"{number}.ome.tif").symlink_to("0.ome.tif")
    looks.clear()
    read_header(tmp_path / "0.ome.tif")
    assert len(looks) == alone


def test_levels_of_a_pyramid_are_one_image(tmp_path):
    for name, options in (("sub.tif", {"subifds": 1}), ("flag.tif", {})):
        with tifffile.TiffWriter(tmp_path / name) as file:
            file.write(STACK[0], tile=(16, 16), metadata=None, **options)
            file.write(STACK[0, ::2, ::2], tile=(16, 16), metadata=None, subfiletype=1)
        np.testing.assert_array_equal(read_image(tmp_path / name)[..., 0], STACK[0])


@pytest.mark.parametrize("compression", ["group3", "group4", "tiff_ccitt"])
@pytest.mark.parametrize("photometric", [0, 1])
def test_fax_pages_are_read(tmp_path, compression, photometric):
    """tifffile asks for imagecodecs, which has no such decoder."""
    masks = STACK > 127
    images = [Image.fromarray(mask) for mask in masks]
    images[0].save(
        tmp_path / "a.tif",
        compression=compression,
        save_all=True,
        append_images=images[1:],
        tiffinfo={262: photometric},
    )
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        assert file.pages[0].compression in (2, 3, 4)
    assert read_header(tmp_path / "a.tif").shape == masks.shape
    np.testing.assert_array_equal(read_mask(tmp_path / "a.tif") > 0, masks)
    images[0].save(tmp_path / "b.tif", compression=compression)
    np.testing.assert_array_equal(read_mask(tmp_path / "b.tif") > 0, masks[0])
