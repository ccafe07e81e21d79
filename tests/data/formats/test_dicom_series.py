"""DICOM: slices of a series become a volume."""

import numpy as np
import pydicom
import pytest
from small_images import whole

from tfunet.data.image_files import read_header, read_image


def dicom_slice(path, pixels, *, position, series="1.2.3", slope=1, intercept=0):
    one = pydicom.Dataset()
    one.file_meta = pydicom.dataset.FileMetaDataset()
    one.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = pydicom.uid.CTImageStorage
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = pydicom.uid.generate_uid()
    one.SeriesInstanceUID = series
    one.Rows, one.Columns = pixels.shape
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
    one.BitsAllocated = one.BitsStored = 16
    one.HighBit, one.PixelRepresentation = 15, 1
    one.RescaleSlope, one.RescaleIntercept = slope, intercept
    one.PixelSpacing = [0.5, 0.25]
    one.ImageOrientationPatient = [1, 0, 0, 0, 0, -1]  # coronal
    one.ImagePositionPatient = [0, position, 0]
    one.PixelData = pixels.astype("<i2").tobytes()
    path.parent.mkdir(exist_ok=True)
    pydicom.dcmwrite(path, one, enforce_file_format=True)


def test_a_dicom_series_is_sorted_by_position_and_rescaled(tmp_path):
    volume = whole((4, 6, 7), np.int16, 3000) - 1000
    # Neither by name nor by number: files of a series come in any order.
    for name, plane in zip("dbca", range(4), strict=True):
        path = tmp_path / "ct" / name
        dicom_slice(path, volume[plane], position=3.0 * plane, slope=plane + 1, intercept=-1024)
    scale = np.arange(1, 5).reshape(4, 1, 1)
    expected = volume * scale - 1024
    np.testing.assert_array_equal(read_image(tmp_path / "ct")[..., 0], expected)
    header = read_header(tmp_path / "ct")
    assert (header.shape, header.channels, header.dtype) == ((4, 6, 7), 1, "int16")
    assert (header.spacing, header.unit) == ((3, 0.5, 0.25), "mm")


def test_a_dicom_series_with_a_gap_or_of_two_series_is_refused(tmp_path):
    plane = whole((6, 7), np.int16, 100)
    for number in (0, 1, 3):
        dicom_slice(tmp_path / "gap" / f"{number}.dcm", plane, position=number)
        dicom_slice(
            tmp_path / "two" / f"{number}.dcm", plane, position=number, series=f"1.{number}"
        )
    with pytest.raises(ValueError, match=r"slices lie 1 to 2 mm apart; one is missing"):
        read_header(tmp_path / "gap")
    with pytest.raises(ValueError, match=r"3 series in one folder"):
        read_header(tmp_path / "two")
    assert read_image(tmp_path / "gap" / "0.dcm").shape == (6, 7, 1)
