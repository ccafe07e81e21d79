"""MetaImage and NRRD: as ITK writes them, as headers by hand say, and as nibabel sees the same."""

import sys

import numpy as np
import pytest
import SimpleITK

from tfunet.data.defects import BadFileError
from tfunet.data.image_files import read_header, read_image, read_mask
from tfunet.data.opening import content_files

PIXELS = np.random.default_rng(0).integers(-900, 900, (4, 5, 6)).astype(np.int16)
TURNED = (0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def image_of(pixels, is_vector=False):
    image = SimpleITK.GetImageFromArray(pixels, isVector=is_vector)
    image.SetSpacing((0.5, 0.75, 2.0)[: image.GetDimension()])
    if image.GetDimension() == 3:
        image.SetOrigin((10.0, -20.0, 30.0))
        image.SetDirection(TURNED)
    return image


@pytest.mark.parametrize("suffix", [".mhd", ".mha", ".nrrd", ".nhdr"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_volume_is_what_nibabel_reads_of_it_as_nifti(suffix, compressed, tmp_path):
    path = tmp_path / f"a{suffix}"
    image = image_of(PIXELS)
    SimpleITK.WriteImage(image, str(path), compressed)
    SimpleITK.WriteImage(image, str(tmp_path / "a.nii.gz"))
    np.testing.assert_array_equal(read_image(path)[..., 0], PIXELS)
    header, nifti = read_header(path), read_header(tmp_path / "a.nii.gz")
    assert (header.shape, header.axes, header.dtype) == ((4, 5, 6), "zyx", "int16")
    assert header.spacing == pytest.approx(nifti.spacing[::-1])
    assert header.unit == nifti.unit == "mm"
    # NIfTI counts x first.
    np.testing.assert_allclose(header.affine, nifti.affine[:, [2, 1, 0, 3]], atol=1e-6)


def test_planes_colours_and_labels(tmp_path):
    SimpleITK.WriteImage(image_of(PIXELS[0].astype(np.float32)), str(tmp_path / "plane.mha"))
    plane = read_header(tmp_path / "plane.mha")
    assert (plane.shape, plane.axes, plane.spacing) == ((5, 6), "yx", (0.75, 0.5))
    colours = PIXELS.astype(np.uint8).reshape(5, 8, 3)
    SimpleITK.WriteImage(image_of(colours, is_vector=True), str(tmp_path / "rgb.nrrd"))
    np.testing.assert_array_equal(read_image(tmp_path / "rgb.nrrd"), colours)
    labels = (PIXELS > 0).astype(np.uint8)
    SimpleITK.WriteImage(image_of(labels), str(tmp_path / "labels.nrrd"))
    np.testing.assert_array_equal(read_mask(tmp_path / "labels.nrrd"), labels)


def test_a_header_by_hand_with_its_pixels_beside_it(tmp_path):
    header = "NDims = 3\nDimSize = 6 5 4\nElementType = MET_SHORT\nElementSpacing = 1 2 3\n"
    header += "ElementByteOrderMSB = True\nElementDataFile = {}\n"
    (tmp_path / "a.mhd").write_text(header.format("a.raw"))
    (tmp_path / "a.raw").write_bytes(PIXELS.astype(">i2").tobytes())
    np.testing.assert_array_equal(read_image(tmp_path / "a.mhd")[..., 0], PIXELS)
    assert read_header(tmp_path / "a.mhd").spacing == (3, 2, 1)
    # The pixels count in the fingerprint, too.
    assert content_files(tmp_path / "a.mhd") == [tmp_path / "a.mhd", tmp_path / "a.raw"]
    for name, reason in {
        "../a.raw": "in another folder",
        "/etc/hostname": "in another folder",
        "LIST": "in several files",
        "a%02d.raw 1 4 1": "in several files",
        "b.raw": "is not beside it",
    }.items():
        (tmp_path / "wrong.mhd").write_text(header.format(name))
        with pytest.raises(BadFileError, match=reason):
            read_header(tmp_path / "wrong.mhd")
    nrrd = "NRRD0004\ntype: short\ndimension: 3\nsizes: 6 5 4\nencoding: raw\nendian: big\n"
    (tmp_path / "a.nhdr").write_text(nrrd + "data file: a.raw\n")
    np.testing.assert_array_equal(read_image(tmp_path / "a.nhdr")[..., 0], PIXELS)
    (tmp_path / "wrong.nhdr").write_text(nrrd + "data file: ../a.raw\n")
    with pytest.raises(BadFileError, match="in another folder"):
        read_header(tmp_path / "wrong.nhdr")


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "a.nrrd").write_bytes(b"NRRD0004\ntype: short\n\n")
    (tmp_path / "b.mha").write_bytes(b"")
    (tmp_path / "c.mhd").write_bytes(b"NRRD0004\ntype: short\n\n")
    for name, reason in {"a.nrrd": "cannot be read", "b.mha": "empty", "c.mhd": "NRRD"}.items():
        with pytest.raises(BadFileError, match=reason):
            read_header(tmp_path / name)
    SimpleITK.WriteImage(image_of(PIXELS), str(tmp_path / "cut.mha"))
    (tmp_path / "cut.mha").write_bytes((tmp_path / "cut.mha").read_bytes()[:-50])
    with pytest.raises(BadFileError, match="cut"):
        read_image(tmp_path / "cut.mha")


def test_without_the_library_it_is_named(tmp_path, monkeypatch):
    SimpleITK.WriteImage(image_of(PIXELS), str(tmp_path / "a.mha"))
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    with pytest.raises(BadFileError, match=r"needs SimpleITK: pip install 'tfunet\[itk\]'"):
        read_header(tmp_path / "a.mha")
