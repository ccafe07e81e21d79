"""Cases whose headers disagree with each other: units of pixel sizes, directions of axes."""

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet.data.doubts import CaseLook, doubts
from tfunet.data.layouts.folder import open_folder
from tfunet.prediction.prepare import preparation

RNG = np.random.default_rng(0)


def opened(root, suffix, **options):
    patterns = {
        "images": f"{{case}}{suffix}",
        "masks": {"cell": f"{{case}}_mask{suffix}"},
        "exclude": [f"*_mask{suffix}"],
    }
    return open_folder(root=str(root), name="set", **{**patterns, **options})


def ome(path, pixels, size, unit):
    metadata = {"axes": "YX"}
    for letter in "XY":
        metadata |= {f"PhysicalSize{letter}": size, f"PhysicalSize{letter}Unit": unit}
    tifffile.imwrite(path, pixels, ome=True, metadata=metadata)


def plane(value=None):
    image = RNG.integers(0, 256, (64, 80)).astype(np.uint8)
    return image if value is None else (image > value).astype(np.uint8)


@pytest.fixture
def units(tmp_path):
    """Three planes whose pixels are of 0.25 or 0.5 µm; one says it in nanometres."""
    for name, size, unit in (("a", 0.25, "µm"), ("b", 250.0, "nm"), ("c", 0.5, "µm")):
        ome(tmp_path / f"{name}.ome.tif", plane(), size, unit)
        ome(tmp_path / f"{name}_mask.ome.tif", plane(100), size, unit)
    return tmp_path


def test_pixel_sizes_in_several_units_are_compared_and_resampled_in_one(units):
    source = opened(units, ".ome.tif", target_pixel_size=0.5)
    assert source.unit == "µm"
    assert source.shapes == ((32, 40), (32, 40), (64, 80))
    assert [source.read(case)[0].shape for case in range(3)] == [(32, 40, 1)] * 2 + [(64, 80, 1)]
    assert source.preparation["unit"] == "µm"
    as_stored = opened(units, ".ome.tif")
    assert as_stored.spacings == ((0.25, 0.25), (0.25, 0.25), (0.5, 0.5))
    (warning,) = as_stored.warnings
    assert str(warning) == (
        "set: pixel sizes are in several units: µm in 2 (a, c), nm in 1 (b); all are taken in µm"
    )
    # A size that the user gives has its own unit.
    given = opened(units, ".ome.tif", pixel_size=2, target_pixel_size=2)
    assert (given.unit, given.warnings) == ("", ())


def test_an_image_is_predicted_at_the_pixel_size_of_the_run_in_any_unit(units):
    recorded = opened(units, ".ome.tif", target_pixel_size=0.5).preparation
    for name in "ab":
        assert preparation(recorded).open([units / f"{name}.ome.tif"]).shape == (32, 40)
    # An earlier version did not record the unit.
    del recorded["unit"]
    assert preparation(recorded).open([units / "a.ome.tif"]).shape == (32, 40)


def volume(path, affine):
    image = RNG.normal(size=(8, 9, 10)).astype(np.float32)
    for name, pixels in ((path, image), (f"{path}_mask", (image > 1).astype(np.uint8))):
        nibabel.save(nibabel.Nifti1Image(pixels, affine), f"{name}.nii.gz")


PIR = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]], float)


@pytest.mark.parametrize(
    ("affine", "words"),
    [
        (np.diag([1, 1, 2, 1]), ""),
        # Turned by 10 degrees, as the head of a patient is.
        (nibabel.affines.from_matvec(nibabel.eulerangles.euler2mat(0.17)), ""),
        (np.diag([-1, -1, 1, 1]), "RAS in 2 (a, b), LPS in 1 (c)"),
        (np.diag([-1, 1, 1, 1]), "RAS in 2 (a, b), LAS in 1 (c)"),
        (PIR, "RAS in 2 (a, b), PIR in 1 (c)"),
    ],
)
def test_volumes_that_lie_in_other_directions_are_said(tmp_path, affine, words):
    for name in "ab":
        volume(f"{tmp_path}/{name}", np.eye(4))
    volume(f"{tmp_path}/c", affine)
    source = opened(tmp_path, ".nii.gz")
    said = [str(warning) for warning in source.warnings]
    assert len(said) == bool(words)
    assert all(words in line and "set: the axes of volumes" in line for line in said)
    # Training and `data check` say what is seen at opening.
    look = {"side": "", "label_pixels": (1,), "num_pixels": 9, "constant": {}, "spacing": None}
    look["notes"] = ()
    looks = [CaseLook(case_id=name, file=name, content=name, **look) for name in "abc"]
    assert doubts(source, looks)[1] == list(source.warnings)


@pytest.mark.parametrize(
    ("shape", "image", "mask", "is_said"),
    [
        ((8, 8), ".nii.gz", ".png", True),
        ((8, 8), ".png", ".nii.gz", True),
        ((8, 8), ".nii.gz", ".nii.gz", False),
        ((8, 8), ".png", ".tif", False),
        ((8, 8), ".nii.gz", ".npy", False),  # Nobody says what the axes of an array are.
        ((8, 9), ".nii.gz", ".png", False),  # The shape says that both have the same order.
        ((8, 9, 8), ".nii.gz", ".tif", True),
        ((8, 9, 10), ".nii.gz", ".tif", False),
    ],
)
def test_a_mask_in_a_format_with_other_axes_may_be_turned(tmp_path, shape, image, mask, is_said):
    pixels = RNG.integers(0, 256, shape).astype(np.uint8)
    for name, suffix, values in (("a", image, pixels), ("a_m", mask, (pixels > 99) * np.uint8(1))):
        if suffix == ".nii.gz":
            nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / f"{name}{suffix}")
        elif suffix == ".npy":
            np.save(tmp_path / f"{name}{suffix}", values)
        elif suffix == ".tif":
            tifffile.imwrite(tmp_path / f"{name}{suffix}", values, photometric="minisblack")
        else:
            Image.fromarray(values).save(tmp_path / f"{name}{suffix}")
    source = open_folder(
        root=str(tmp_path),
        images=f"{{case}}{image}",
        masks={"cell": f"{{case}}_m{mask}"},
        exclude=[f"*_m{mask}"],
    )
    assert len(source.warnings) == is_said
    assert all("is it turned?" in str(warning) for warning in source.warnings)
