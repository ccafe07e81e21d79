"""What is written is what was predicted, with the image's place and pixel size."""

from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
import zarr

from tfunet.data.image_files import read_header, read_mask
from tfunet.prediction.jobs import identity_of, plan_jobs
from tfunet.prediction.output import SUFFIXES, check_rank, default_format, write
from tfunet.prediction.raster import RawFile, raster_of

SIZES = {2: (300, 270), 3: (5, 300, 270)}


def raw(tmp_path, rank, num_classes):
    shape = (*SIZES[rank], *([num_classes] if num_classes else []))
    values = np.random.default_rng(0).integers(0, 200, shape)
    file = RawFile(
        path=tmp_path / "values.raw", shape=shape, dtype="float32" if num_classes else "uint8"
    )
    for part in np.array_split(values, 3):
        file.append(part)
    return values, raster_of(file, SIZES[rank], num_classes)


@pytest.mark.parametrize("num_classes", [None, 3])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("kind", [kind for kind in SUFFIXES if kind != "png"])
def test_every_format_holds_the_values(kind, rank, num_classes, tmp_path):
    values, raster = raw(tmp_path, rank, num_classes)
    path = tmp_path / f"out{SUFFIXES[kind]}"
    spacing = (0.5, 2.0, 3.0)[:rank]
    write(kind, raster, path, image=tmp_path / "image.png", spacing=spacing, unit="m")
    assert read_header(path).unit == "m"
    if kind == "nifti":
        image = nibabel.load(path)
        written = np.asanyarray(image.dataobj).reshape(values.shape)
        assert image.header.get_zooms()[:rank] == spacing
    elif kind == "tiff":
        written = tifffile.imread(path)
        with tifffile.TiffFile(path) as file:
            assert file.pages[0].is_tiled
            assert 'PhysicalSizeX="' + str(spacing[-1]) in file.ome_metadata
    else:
        group = zarr.open_group(path, mode="r")
        written = group["0"][...]
        (image,) = group.attrs["ome"]["multiscales"]
        scale = image["datasets"][0]["coordinateTransformations"][0]["scale"]
        assert tuple(scale[-rank:]) == spacing
    if num_classes and kind != "nifti":
        written = np.moveaxis(written, 0, -1)
    np.testing.assert_array_equal(written, values)
    assert written.dtype == raster.dtype
    assert {path.name for path in tmp_path.iterdir()} == {"values.raw", path.name}


def test_a_png_holds_the_labels_of_a_plane(tmp_path):
    values, raster = raw(tmp_path, 2, None)
    write("png", raster, tmp_path / "out.png", image=tmp_path / "image.jpg", spacing=None)
    np.testing.assert_array_equal(read_mask(tmp_path / "out.png"), values)
    assert {path.name for path in tmp_path.iterdir()} == {"values.raw", "out.png"}


@pytest.mark.parametrize(
    ("image", "kind", "names"),
    [
        ("a.png", None, ["a.png", "a_probabilities.tif"]),
        ("a.JPG", None, ["a.png", "a_probabilities.tif"]),
        ("a.webp", None, ["a.png", "a_probabilities.tif"]),
        ("a.png", "tiff", ["a.tif", "a_probabilities.tif"]),
        ("a.tif", "png", ["a.png", "a_probabilities.tif"]),
        ("a.npy", None, ["a.tif", "a_probabilities.tif"]),
        ("a.nii", None, ["a.nii.gz", "a_probabilities.nii.gz"]),
    ],
)
def test_the_format_is_that_of_the_image_and_keeps_labels(image, kind, names, tmp_path):
    (job,) = plan_jobs([image], tmp_path, kind, probabilities=True)
    assert [path.name for path in job.outputs] == names


def test_a_volume_is_no_png():
    check_rank("png", Path("a.tif"), 2)
    check_rank("tiff", Path("a.tif"), 3)
    with pytest.raises(ValueError, match=r"a\.tif is a volume, and a PNG holds one plane"):
        check_rank("png", Path("a.tif"), 3)


def test_an_overlay_and_a_prediction_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"would be called a_overlay\.png"):
        plan_jobs(["a.png", "a_overlay.png"], tmp_path, None, probabilities=False, overlay=True)


def test_nifti_keeps_the_orientation_of_the_image(tmp_path):
    affine = np.array([[0, 0, 2, 5], [0, -3, 0, 6], [4, 0, 0, 7], [0, 0, 0, 1.0]])
    image = nibabel.Nifti1Image(np.zeros(SIZES[3], np.int16), affine)
    image.header.set_slope_inter(7, 1)
    image.to_filename(tmp_path / "image.nii")
    values, raster = raw(tmp_path, 3, None)
    image_path = tmp_path / "image.nii"
    write("nifti", raster, tmp_path / "out.nii.gz", image=image_path, spacing=(4.0, 3.0, 2.0))
    written = nibabel.load(tmp_path / "out.nii.gz")
    np.testing.assert_array_equal(written.affine, affine)
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), values)
    assert written.get_data_dtype() == np.uint8
    assert default_format(image_path) == "nifti"


def test_a_geotiff_is_predicted_to_its_place(tmp_path):
    scale, tie = (0.25, 0.25, 0.0), (0.0, 0.0, 0.0, 400000.0, 5600000.0, 0.0)
    tags = [(33550, "d", 3, scale, True), (33922, "d", 6, tie, True)]
    tifffile.imwrite(tmp_path / "image.tif", np.zeros(SIZES[2], np.uint8), extratags=tags)
    _, raster = raw(tmp_path, 2, None)
    write("tiff", raster, tmp_path / "out.tif", image=tmp_path / "image.tif", spacing=scale[:2])
    with tifffile.TiffFile(tmp_path / "out.tif") as file:
        assert not file.is_ome  # Which would call these micrometres.
        assert file.pages[0].tags[33550].value == scale
        assert file.pages[0].tags[33922].value == tie


def test_what_cannot_be_finished_leaves_nothing(tmp_path):
    _, raster = raw(tmp_path, 2, None)

    def broken(first, last):
        if last == SIZES[2][0]:
            raise KeyboardInterrupt
        return raster.rows(first, last)

    for kind, suffix in SUFFIXES.items():
        with pytest.raises(KeyboardInterrupt):
            write(
                kind,
                replace(raster, rows=broken),
                tmp_path / f"out{suffix}",
                image=tmp_path / "image.png",
                spacing=None,
            )
        assert {path.name for path in tmp_path.iterdir()} == {"values.raw"}


def test_an_array_in_a_file_has_a_prediction_of_its_own_that_is_old_when_the_file_is_newer(
    tmp_path,
):
    store = zarr.open_group(tmp_path / "store.zarr", mode="w")
    array = store.create_array("raw/a", shape=(4, 4), chunks=(2, 2), dtype="u1")
    store.create_array("raw/b", shape=(4, 4), chunks=(2, 2), dtype="u1")
    images = [f"{tmp_path}/store.zarr:raw/{name}" for name in "ab"]
    jobs = plan_jobs(images, tmp_path / "out", None, probabilities=False)
    assert [job.labels.name for job in jobs] == ["store_raw_a.zarr", "store_raw_b.zarr"]
    before = identity_of(jobs[0], {})
    assert identity_of(jobs[0], {}) == before
    array[...] = 1  # Within the folder; what the folder itself says stays as it is.
    assert identity_of(jobs[0], {}) != before
