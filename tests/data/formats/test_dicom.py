"""DICOM: what white is, palettes, functional groups, segments, compressions."""

import shutil

import imagecodecs
import numpy as np
import pydicom
import pytest
from dicom_files import AXIAL, dataset, enhanced, item, save, segmentation, slices
from pydicom.data import get_testdata_file
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    JPEGLosslessSV1,
    JPEGLSLossless,
    ParametricMapStorage,
    RTDoseStorage,
    VLWholeSlideMicroscopyImageStorage,
)
from small_images import whole

from tfunet.data.check import check
from tfunet.data.image_files import read_header, read_image, read_mask
from tfunet.data.layouts.folder import open_folder

RNG = np.random.default_rng(0)
PLANE = RNG.integers(0, 4096, (20, 31)).astype(np.uint16)
VOLUME = RNG.integers(0, 2000, (6, 20, 31)).astype(np.uint16)
# Planes are 2 mm apart.
POSITIONS = [(10, 20, 2.0 * number) for number in range(6)]
SHUFFLED = [3, 0, 5, 1, 4, 2]


@pytest.mark.parametrize(
    ("pixels", "bits", "ends"),
    [
        (PLANE, 12, 4095),
        (PLANE, 16, 65535),
        ((PLANE // 16).astype(np.uint8), 8, 255),
        (PLANE.astype(np.int16) - 2000, 16, -1),
    ],
)
def test_white_at_zero_is_black_at_zero(tmp_path, pixels, bits, ends):
    rescale = {"RescaleSlope": 2, "RescaleIntercept": 7, "Modality": "DX"}
    one = dataset(pixels, meaning="MONOCHROME1", bits_stored=bits, **rescale)
    image = read_image(save(tmp_path / "a.dcm", one))[..., 0]
    np.testing.assert_array_equal(image, 2 * (ends - pixels.astype(float)) + 7)


def test_a_mask_with_white_at_zero_keeps_its_labels(tmp_path):
    path = save(tmp_path / "a.dcm", dataset(PLANE % 3, meaning="MONOCHROME1"))
    np.testing.assert_array_equal(read_mask(path), PLANE % 3)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_palette_is_colours_in_an_image_and_labels_in_a_mask(tmp_path, bits):
    indices = RNG.integers(0, 200, (20, 31)).astype(np.uint8)
    one = dataset(indices, meaning="PALETTE COLOR")
    tables = RNG.integers(0, 2**bits, (3, 200)).astype(f"<u{bits // 8}")
    for name, table in zip(("Red", "Green", "Blue"), tables, strict=True):
        setattr(one, f"{name}PaletteColorLookupTableDescriptor", [200, 0, bits])
        setattr(one, f"{name}PaletteColorLookupTableData", table.tobytes())
    path = save(tmp_path / "a.dcm", one)
    np.testing.assert_array_equal(read_image(path), np.moveaxis(tables[:, indices], 0, -1))
    np.testing.assert_array_equal(read_mask(path), indices)
    header = read_header(path)
    assert (header.shape, header.channels, header.dtype) == ((20, 31), 3, f"uint{bits}")
    assert read_header(path, mask=True).channels == 1


def test_a_table_of_the_modality_is_applied(tmp_path):
    table = item(
        LUTDescriptor=[4096, 0, 16],
        ModalityLUTType="OD",
        LUTData=(np.arange(4096) ** 2 % 5000).astype("<u2").tobytes(),
    )
    path = save(tmp_path / "a.dcm", dataset(PLANE, ModalityLUTSequence=[table]))
    image = read_image(path)[..., 0]
    np.testing.assert_array_equal(image, PLANE.astype(np.int64) ** 2 % 5000)


def transformation(slope, intercept):
    return {"RescaleSlope": slope, "RescaleIntercept": intercept, "RescaleType": "HU"}


def test_an_enhanced_ct_is_rescaled_and_sized_by_its_shared_groups(tmp_path):
    groups = {"PixelValueTransformationSequence": transformation(2, -1024)}
    path = save(tmp_path / "a.dcm", enhanced(VOLUME, POSITIONS, shared_groups=groups))
    np.testing.assert_array_equal(read_image(path)[..., 0], VOLUME * 2.0 - 1024)
    header = read_header(path)
    assert (header.shape, header.spacing, header.unit) == ((6, 20, 31), (2, 0.5, 0.25), "mm")
    expected = [[0, 0, -0.25, -10], [0, -0.5, 0, -20], [2, 0, 0, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(header.affine, expected, atol=1e-12)


def test_frames_are_placed_and_rescaled_one_by_one(tmp_path):
    scales = [transformation(number + 1, -number) for number in SHUFFLED]
    one = enhanced(
        VOLUME[SHUFFLED],
        [POSITIONS[number] for number in SHUFFLED],
        frame_groups={"PixelValueTransformationSequence": scales},
    )
    image = read_image(save(tmp_path / "a.dcm", one))[..., 0]
    number = np.arange(6).reshape(6, 1, 1)
    np.testing.assert_array_equal(image, VOLUME * (number + 1.0) - number)


def test_frames_from_head_to_foot_keep_the_order_of_their_masks(tmp_path):
    one = enhanced(VOLUME, POSITIONS[::-1])
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.dcm", one))[..., 0], VOLUME)


def turned():
    one = enhanced(VOLUME, POSITIONS)
    for frame in one.PerFrameFunctionalGroupsSequence[3:]:
        frame.PlaneOrientationSequence = [item(ImageOrientationPatient=[0, 1, 0, 0, 0, -1])]
    return one


def of_other_sizes():
    one = enhanced(VOLUME, POSITIONS)
    measures = item(PixelSpacing=[0.7, 0.25], SliceThickness=2)
    one.PerFrameFunctionalGroupsSequence[4].PixelMeasuresSequence = [measures]
    return one


def slide():
    tiles = np.zeros((4, 16, 16, 3), np.uint8)
    one = dataset(tiles, VLWholeSlideMicroscopyImageStorage, meaning="RGB")
    one.TotalPixelMatrixRows = one.TotalPixelMatrixColumns = 32
    return one


TWICE = [POSITIONS[0]] * 3 + POSITIONS[1:4]
WITH_A_GAP = [*POSITIONS[:3], *((10, 20, z) for z in (8, 10, 12))]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dataset(PLANE, PresentationLUTShape="INVERSE"), "two statements .*CHROME2.*INVER"),
        (
            lambda: dataset(PLANE, meaning="MONOCHROME1", Modality="CT"),
            r"MONOCHROME1 .* values of CT are measured",
        ),
        (lambda: enhanced(VOLUME, TWICE), r"3 slices lie at the same place: it holds several"),
        (lambda: enhanced(VOLUME, WITH_A_GAP), r"2 to 4 mm apart; one is missing"),
        (turned, "slices lie in different directions"),
        (of_other_sizes, r"slices with pixels of .0.5 .* to .0.7"),
        (slide, r"tiles of a whole slide; readable: slices and volumes. Save the lev"),
    ],
)
def test_what_makes_no_image_is_refused_by_its_header(tmp_path, make, words):
    with pytest.raises(ValueError, match=words):
        read_header(save(tmp_path / "a.dcm", make()))


def test_a_dose_is_in_gray_and_a_parametric_map_as_it_is(tmp_path):
    dose = dataset(
        VOLUME.astype(np.uint32),
        RTDoseStorage,
        DoseGridScaling=0.001,
        GridFrameOffsetVector=[0, 3, 6, 9, 12, 15],
        PixelSpacing=[2, 2],
        ImagePositionPatient=[0, 0, 0],
        ImageOrientationPatient=AXIAL,
    )
    path = save(tmp_path / "dose.dcm", dose)
    np.testing.assert_allclose(read_image(path)[..., 0], VOLUME * 0.001, rtol=1e-6)
    assert read_header(path).spacing == (3, 2, 2)
    values = RNG.normal(size=(20, 31)).astype(np.float32)
    one = dataset(PLANE, ParametricMapStorage)
    del one.PixelData, one.PixelRepresentation, one.BitsStored, one.HighBit
    one.BitsAllocated, one.FloatPixelData = 32, values.tobytes()
    path = save(tmp_path / "map.dcm", one)
    np.testing.assert_array_equal(read_image(path)[..., 0], values)
    assert read_header(path).dtype == "float32"


# Segments 1, 2 and 5 in some of the planes; of plane 4 two, which overlap.
SEGMENTS = [(4, 2), (1, 1), (4, 5), (2, 1), (3, 2)]
MASKS = np.stack([RNG.random((20, 31)) > 0.7 for _ in SEGMENTS])


def labels_of(num_planes=6):
    labels = np.zeros((num_planes, 20, 31), int)
    for (plane, number), mask in sorted(zip(SEGMENTS, MASKS, strict=True), key=lambda one: one[0]):
        labels[plane][mask] = number
    return labels


def seg(offset=0.0):
    places = [(10, 20, 2.0 * plane + offset) for plane, _ in SEGMENTS]
    return segmentation(MASKS, places, [number for _, number in SEGMENTS])


CLASSES = {"classes": {"liver": 1, "spleen": 2, "tumour": 5}}


@pytest.mark.parametrize("image", ["series", "enhanced", "head first", "one plane"])
def test_segments_are_placed_on_their_image(tmp_path, image):
    """By position and number, whatever the order of the frames and of the planes."""
    expected = labels_of()
    if image == "series":
        slices(tmp_path / "images" / "a", VOLUME)
    elif image == "one plane":
        slices(tmp_path / "images" / "a", VOLUME[4:5], first=8)
        expected = expected[4]
    else:
        order = slice(None, None, -1 if image == "head first" else 1)
        save(tmp_path / "images" / "a.dcm", enhanced(VOLUME[order], POSITIONS[order]))
        expected = expected[order]
    one = seg()
    if image == "one plane":
        places = [number for number, (plane, _) in enumerate(SEGMENTS) if plane == 4]
        numbers = [SEGMENTS[number][1] for number in places]
        one = segmentation(MASKS[places], [POSITIONS[4]] * len(places), numbers)
    save(tmp_path / "masks" / "a.dcm", one)
    pattern = f"images/{{case}}{'/' if image in ('series', 'one plane') else '.dcm'}"
    source = open_folder(root=str(tmp_path), images=pattern, masks="masks/{case}.dcm", **CLASSES)
    assert source.defects == ()
    _, mask = source.read(0)
    np.testing.assert_array_equal(mask, np.select([expected == 2, expected == 5], [2, 3], expected))
    # One plane alone has not all classes.
    missing = [defect.what for defect in check(source).defects]
    assert all("no case has a pixel of the class" in what for what in missing)
    assert bool(missing) == (image == "one plane")


def test_a_map_of_labels_is_placed_too(tmp_path):
    labels = labels_of()[SHUFFLED]
    one = segmentation(
        labels, [POSITIONS[number] for number in SHUFFLED], [1, 2, 5], kind="LABELMAP"
    )
    np.testing.assert_array_equal(read_mask(save(tmp_path / "a.dcm", one)), labels_of())


def test_segments_alone_reach_from_their_first_plane_to_their_last(tmp_path):
    path = save(tmp_path / "a.dcm", seg())
    np.testing.assert_array_equal(read_mask(path), labels_of()[1:5])
    header = read_header(path, mask=True)
    assert (header.shape, header.spacing) == ((4, 20, 31), (2, 0.5, 0.25))


def fractional(numbers):
    parts = np.where(MASKS != 0, 150, 0) + np.arange(MASKS.shape[-1])
    options = {"kind": "FRACTIONAL", "MaximumFractionalValue": 200}
    return segmentation(parts, POSITIONS[: len(MASKS)], numbers, **options)


def test_fractions_of_a_segment_are_a_map_for_a_threshold(tmp_path):
    slices(tmp_path / "images" / "a", VOLUME)
    path = save(tmp_path / "masks" / "a.dcm", fractional([1] * 5))
    files = {"root": str(tmp_path), "images": "images/{case}/"}
    source = open_folder(**files, masks={"lesion": "masks/{case}.dcm"}, threshold=0.5)
    _, mask = source.read(0)
    expected = np.zeros(VOLUME.shape, np.uint8)
    expected[: len(MASKS)] = MASKS != 0  # 150 to 180 of 200; the others have 0 to 30.
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_allclose(read_mask(path, fractions=True)[0, 0, :3] % 0.75, [0, 0.005, 0.01])
    (defect,) = check(open_folder(**files, masks="masks/{case}.dcm", classes={"a": 1})).defects
    assert "labels must be whole numbers" in defect.what
    assert "and threshold=" in defect.what


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (seg(offset=1.0), r"does not lie on the pixels of its image: it is 0.5 pixels off"),
        (seg(offset=8.0), r"next to plane 9 of 6"),
        (
            segmentation(MASKS[:, :-1], POSITIONS[: len(MASKS)], [1] * len(MASKS)),
            r"has shape \(5, 19, 31\)",
        ),
        (
            segmentation(
                MASKS, POSITIONS[: len(MASKS)], [1] * 5, shared_groups={"spacing": (0.5, 0.5)}
            ),
            r"does not lie on the pixels of its image",
        ),
        (
            segmentation(MASKS, POSITIONS[: len(MASKS)], [1] * 5, kind="PROBABLE"),
            r"SegmentationType is PROBABLE; readable: BINARY, LABELMAP and FRACTIONAL\. Export",
        ),
        (
            fractional([1, 1, 2, 2, 2]),
            r"is FRACTIONAL, with 2 segments and MaximumFractionalValue = 200; readable: one seg",
        ),
        (
            segmentation(MASKS, POSITIONS[: len(MASKS)], [1] * 5, kind="FRACTIONAL"),
            r"1 segments and MaximumFractionalValue = None; readable: one segment",
        ),
    ],
)
def test_segments_that_lie_elsewhere_are_refused(tmp_path, one, words):
    slices(tmp_path / "images" / "a", VOLUME)
    save(tmp_path / "masks" / "a.dcm", one)
    with pytest.raises(ValueError, match=words):
        open_folder(
            root=str(tmp_path), images="images/{case}/", masks="masks/{case}.dcm", **CLASSES
        )


def compressed(pixels, syntax, content):
    one = dataset(pixels, meaning="RGB" if pixels.ndim == 3 else "MONOCHROME2")
    one.file_meta.TransferSyntaxUID = syntax
    one.PixelData = encapsulate([content])
    one["PixelData"].VR = "OB"
    return one


def test_lossless_compressions_come_back(tmp_path):
    for pixels in (PLANE, (PLANE // 16).astype(np.uint8)):
        for syntax, encode in (
            (JPEGLosslessSV1, imagecodecs.ljpeg_encode),
            (JPEGLSLossless, imagecodecs.jpegls_encode),
        ):
            content = encode(pixels)
            path = save(tmp_path / "a.dcm", compressed(pixels, syntax, content))
            np.testing.assert_array_equal(read_image(path)[..., 0], pixels)
    colours = RNG.integers(0, 256, (20, 30, 3)).astype(np.uint8)
    content = imagecodecs.jpegls_encode(colours)
    path = save(tmp_path / "a.dcm", compressed(colours, JPEGLSLossless, content))
    np.testing.assert_array_equal(read_image(path), colours)


def test_what_cannot_be_decompressed_has_a_remedy(tmp_path):
    one = compressed(PLANE, pydicom.uid.MPEG2MPML, b"no film" * 100)
    path = save(tmp_path / "a.dcm", one)
    with pytest.raises(ValueError, match=r"MPEG2.*decompress it first, with 'gdcmconv --raw"):
        read_image(path)


def test_a_deflated_data_set_is_read(tmp_path):
    one = dataset(PLANE)
    one.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.dcm", one))[..., 0], PLANE)


def test_a_truncated_dicom_that_begins_as_a_tiff_is_not_called_one(tmp_path):
    """Slides are both at once: the preamble of the DICOM is the header of a TIFF."""
    content = bytearray(save(tmp_path / "a.dcm", dataset(PLANE)).read_bytes())
    content[:4] = b"II*\0"
    (tmp_path / "a.dcm").write_bytes(content)
    np.testing.assert_array_equal(read_image(tmp_path / "a.dcm")[..., 0], PLANE)
    (tmp_path / "a.dcm").write_bytes(content[:900])
    with pytest.raises(ValueError, match="cannot be read") as caught:
        read_image(tmp_path / "a.dcm")
    assert "rename" not in str(caught.value)


def test_a_slice_that_is_a_pointer_says_so(tmp_path):
    slices(tmp_path / "a", VOLUME)
    (tmp_path / "a" / "3.dcm").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"3\.dcm: it is a Git LFS pointer; .*git lfs pull"):
        read_header(tmp_path / "a")


def test_frames_of_real_files_of_several_kinds(tmp_path):
    """Not one of them is a volume in patient space, and all are read as before."""
    for name, shape in (
        ("examples_ybr_color.dcm", (30, 240, 320, 3)),
        ("SC_rgb_rle_2frame.dcm", (2, 100, 100, 3)),
        ("examples_palette.dcm", (350, 800, 3)),
    ):
        path = shutil.copy(get_testdata_file(name), tmp_path)
        assert read_image(tmp_path / name).shape == shape, path


def coronal(path, pixels, *, position, series="1.2.3", slope=1):
    place = {"PixelSpacing": [0.5, 0.25], "ImageOrientationPatient": [1, 0, 0, 0, 0, -1]}
    values = {"RescaleSlope": slope, "RescaleIntercept": -1024, "SeriesInstanceUID": series}
    save(path, dataset(pixels, ImagePositionPatient=[0, position, 0], **place, **values))


def test_a_dicom_series_is_sorted_by_position_and_rescaled(tmp_path):
    volume = whole((4, 6, 7), np.int16, 3000) - 1000
    # Neither by name nor by number: files of a series come in any order.
    for name, plane in zip("dbca", range(4), strict=True):
        path = tmp_path / "ct" / name
        coronal(path, volume[plane], position=3.0 * plane, slope=plane + 1)
    scale = np.arange(1, 5).reshape(4, 1, 1)
    expected = volume * scale - 1024
    np.testing.assert_array_equal(read_image(tmp_path / "ct")[..., 0], expected)
    header = read_header(tmp_path / "ct")
    assert (header.shape, header.channels, header.dtype) == ((4, 6, 7), 1, "int16")
    assert (header.spacing, header.unit) == ((3, 0.5, 0.25), "mm")


def test_a_dicom_series_with_a_gap_or_of_two_series_is_refused(tmp_path):
    plane = whole((6, 7), np.int16, 100)
    for number in (0, 1, 3):
        coronal(tmp_path / "gap" / f"{number}.dcm", plane, position=number)
        coronal(tmp_path / "two" / f"{number}.dcm", plane, position=number, series=f"1.{number}")
    with pytest.raises(ValueError, match=r"slices lie 1 to 2 mm apart; one is missing"):
        read_header(tmp_path / "gap")
    with pytest.raises(ValueError, match=r"3 series in one folder"):
        read_header(tmp_path / "two")
    assert read_image(tmp_path / "gap" / "0.dcm").shape == (6, 7, 1)
