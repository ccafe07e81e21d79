"""Every kind of bad file in every format: all are found in one pass, by file, and left out alike.

Each folder below holds sound cases, and one case for each defect, named after it.
"""

import json
import os
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from dicom_files import AXIAL, dataset, save
from paths import ROOT
from PIL import Image

from tfunet.data.check import check
from tfunet.data.defects import DefectsError
from tfunet.data.source import open_source

RNG = np.random.default_rng(0)
SOUND = ("sound1", "sound 2 µm, größe", "sound3")


def save_pillow(path, pixels, spacing=1.0):
    Image.fromarray(pixels).save(path, lossless=True)


def save_tiff(path, pixels, spacing=1.0):
    tifffile.imwrite(
        path,
        pixels,
        ome=True,
        metadata={
            "axes": "YXS" if pixels.ndim == 3 else "YX",
            "PhysicalSizeX": spacing,
            "PhysicalSizeY": spacing,
        },
    )


def save_nifti(path, pixels, spacing=1.0):
    affine = np.diag([spacing, spacing, spacing, 1])
    nibabel.save(nibabel.Nifti1Image(pixels, affine), path)


def save_npy(path, pixels, spacing=1.0):
    np.save(path, pixels)


def save_hdf5(path, pixels, spacing=1.0):
    with h5py.File(str(path).removesuffix(":raw"), "w") as file:
        file["raw"] = pixels


def save_zarr(path, pixels, spacing=1.0):
    group = zarr.create_group(path, zarr_format=2)
    array = group.create_array("0", shape=pixels.shape, chunks=pixels.shape, dtype=pixels.dtype)
    array[...] = pixels
    spatial = [{"name": name, "type": "space"} for name in "zyx"[: min(pixels.ndim, 3)]]
    axes = spatial + [{"name": "c", "type": "channel"}] * (pixels.ndim - 3)
    scale = [{"type": "scale", "scale": [spacing] * 3 + [1] * (pixels.ndim - 3)}]
    level = {"path": "0", "coordinateTransformations": scale}
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": [level]}]


# All have one length: where a file is cut in half must not depend on chance.
UIDS = (f"1.2.826.0.1.3680043.8.498.{number}" for number in count(10**30))


def save_dicom(path, pixels, spacing=1.0):
    meaning, series = "MONOCHROME2" if pixels.ndim == 3 else "RGB", next(UIDS)
    # Written in another order than they lie.
    for number in RNG.permutation(len(pixels)):
        place = {"PixelSpacing": [spacing] * 2, "ImageOrientationPatient": AXIAL}
        place["ImagePositionPatient"] = [0, 0, float(number) * spacing]
        names = {"SeriesInstanceUID": series, "SOPInstanceUID": next(UIDS)}
        one = dataset(pixels[number], meaning=meaning, **names, **place)
        one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID
        save(path / f"{next(UIDS)}.dcm", one)


# For each format what to write with, the pattern's end, the shape, and whether it holds floating
# point, pixel sizes and channels.
FORMATS = {
    "png": (save_pillow, ".png", (40, 48), ("colours",)),
    "webp": (save_pillow, ".webp", (40, 48, 3), ()),
    "tiff": (save_tiff, ".ome.tif", (40, 48), ("floats", "sizes", "colours")),
    "nifti": (save_nifti, ".nii.gz", (20, 24, 8), ("floats", "sizes", "channels")),
    "npy": (save_npy, ".npy", (8, 20, 24), ("floats", "channels")),
    "hdf5": (save_hdf5, ".h5:raw", (8, 20, 24), ("floats", "channels")),
    "zarr": (save_zarr, ".zarr", (8, 20, 24), ("floats", "sizes", "channels")),
    "dicom": (save_dicom, "/", (8, 20, 24), ("sizes", "colours")),
}


class Folder:
    """A folder of one format, with sound cases and bad ones."""

    def __init__(self, root, name):
        self.root = root
        self.save, self.end, self.shape, self.can = FORMATS[name]
        self.options = {
            "images": f"images/{{case}}{self.end}",
            "masks": f"masks/{{case}}{self.end}",
        }
        for part in ("images", "masks"):
            (root / part).mkdir()
        for case in SOUND:
            self.write(case)

    def path(self, part, case):
        return self.root / part / f"{case}{self.end}".rstrip("/")

    def file(self, part, case):
        """A file with pixels, where a case is a folder."""
        path = Path(str(self.path(part, case)).removesuffix(":raw"))
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if file.is_file()]
            return max(inside, key=lambda one: one.stat().st_size)
        return path

    def image(self):
        return RNG.integers(0, 256, self.shape).astype(np.uint8)

    def mask(self):
        mask = np.zeros(self.shape, np.uint8)
        mask[2:6, 3:9] = 1
        return mask

    def write(self, case, image=None, mask=None, spacing=1.0):
        self.save(self.path("images", case), self.image() if image is None else image)
        self.save(self.path("masks", case), self.mask() if mask is None else mask, spacing)

    def spoil(self):
        """Write a bad case of each kind; return case to the part that is wrong and the words."""
        self.write("truncated")
        file = self.file("images", "truncated")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        self.write("empty file")
        self.file("images", "empty file").write_bytes(b"")
        self.write("wrong suffix")
        Image.fromarray(self.image()[..., 0]).save(self.root / "other.jpg", quality=95)
        content = (self.root / "other.jpg").read_bytes()
        self.file("masks", "wrong suffix").write_bytes(content)
        self.write("other shape", mask=self.mask()[:-1])
        self.write("unknown label", mask=self.mask() * 7)
        self.write("no mask")
        self.write("no image")
        for part, case in (("masks", "no mask"), ("images", "no image")):
            path = Path(str(self.path(part, case)).removesuffix(":raw"))
            path.rename(self.root / f"{part}-{path.name}")
        expected = {
            "truncated": ("images", "cannot be read"),
            "empty file": ("images", "cannot be read"),
            "wrong suffix": ("masks", "cannot be read"),
            "other shape": ("masks", "has shape"),
            "unknown label": ("masks", "holds the values 7; allowed: 0, 1"),
            "no mask": ("images", "missing mask"),
            "no image": ("masks", "mask without its image"),
        }
        if "floats" in self.can:
            for case, value in (("nan", np.nan), ("infinite", np.inf)):
                image = self.image().astype(np.float32)
                image.flat[7] = value
                self.write(case, image=image)
                expected[case] = ("images", "holds NaN or infinity in 1 of")
        if "sizes" in self.can:
            self.write("other spacing", spacing=1.5)
            expected["other spacing"] = ("masks", "has pixels of 1.5 x")
        if "colours" in self.can or "channels" in self.can:
            channels = 3 if "colours" in self.can else 2
            self.write("more channels", image=np.stack([self.image()] * channels, -1))
            expected["more channels"] = ("images", f"D with {channels} channels, the other")
        return expected


@pytest.mark.parametrize("name", FORMATS)
def test_every_bad_file_of_a_format_is_found_in_one_pass(tmp_path, name):
    folder = Folder(tmp_path, name)
    folder.write("empty mask", mask=folder.mask() * 0)
    expected = folder.spoil()
    options = {"root": str(tmp_path), **folder.options, "classes": {"cell": 1}}
    source = open_source("folder", options, skip_bad=True)
    report = check(source)
    assert sorted(checked.case_id for checked in report.cases) == sorted((*SOUND, "empty mask"))
    found = {str(defect) for defect in report.defects}
    assert len(found) == len(expected)
    for case, (part, words) in expected.items():
        file = f"{part}/{case}{folder.end}".rstrip("/")
        assert any(line.startswith(f"{file}: ") and words in line for line in found), (case, found)
    (warning,) = report.warnings
    assert str(warning).startswith("images/empty mask")
    assert warning.what == "its mask is empty"
    # Found by the headers alone or by decoding, the case is never used.
    usable = set(source.case_ids) - {defect.case_id for defect in report.defects}
    assert usable == {*SOUND, "empty mask"}
    with pytest.raises(DefectsError, match=r"no image.*: mask without its image"):
        open_source("folder", options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": {"cell": 1}}, "labels out of range"),
        ({}, "holds the values 0, 1, 2"),
        ({"classes": {"cell": "#ff0000"}}, "labels out of range: the mask holds the values #"),
    ],
)
def test_a_mask_saved_as_jpeg_says_what_jpeg_did_to_it(tmp_path, options, words):
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    pixels = RNG.integers(0, 256, (32, 32)).astype(np.uint8)
    mask = (pixels > 200).astype(np.uint8) * 255
    colours = np.stack([mask, mask * 0, mask * 0], -1) if "#" in words else mask
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    Image.fromarray(colours).save(tmp_path / "masks" / "a.jpg")
    described = {"root": str(tmp_path), "images": "images/{case}.png", "masks": "masks/{case}.jpg"}
    (defect,) = check(open_source("folder", {**described, **options})).defects
    assert defect.file == "masks/a.jpg"
    assert words in defect.what
    assert "JPEG changes pixel values slightly: save masks as PNG" in defect.what


@pytest.fixture
def open_folder_for_all():
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_permission_is_named(open_folder_for_all, name):
    tmp_path = open_folder_for_all
    folder = Folder(tmp_path, name)
    folder.write("secret")
    folder.file("images", "secret").chmod(0)
    options = {"root": ".", **folder.options, "classes": {"cell": 1}}
    # Root may read everything: the child becomes another user once its modules are loaded.
    code = (
        "import json, os, sys, h5py, nibabel, pydicom, tifffile, zarr, PIL.Image, imagecodecs;"
        "from tfunet.data.check import check; from tfunet.data.source import open_source;"
        "from tfunet.data import image_files; from tfunet.data.layouts import folder;"
        "from tfunet.data.formats import FORMATS;"
        "import importlib; [importlib.import_module(one) for one in FORMATS.values()];"
        "PIL.Image.init(); os.chdir(sys.argv[1]);"
        "os.geteuid() or os.seteuid(65534);"
        "source = open_source('folder', json.loads(sys.argv[2]), skip_bad=True);"
        "print(json.dumps([[one.file, one.what] for one in check(source).defects]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), json.dumps(options)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    ((file, what),) = json.loads(ended.stdout)
    assert file == f"images/secret{folder.end}".rstrip("/")
    assert "ermission" in what
