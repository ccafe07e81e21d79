"""The real data sets that lie beside a development checkout, opened from TOML alone.

Where they are absent, the same descriptions are tried on generated files of the same layout.
"""

import json
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image

from tfunet.data.check import case_defects, check
from tfunet.data.folder import open_folder

STUDIES = Path(__file__).parents[2] / "studies"
REAL = Path(__file__).parents[3] / "shared" / "data"

NUCLEI = """
root = "../shared/data/dsb2018_nuclei256"
images = "images/{case}.png"
masks = { nucleus = "labels/{case}.png" }
threshold = 0
table = { file = "index.csv", key = "id", group = "split", keep = { split = ["train", "val"] } }
"""


def study(name):
    return tomllib.loads((STUDIES / name).read_text())["base"]


def write(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        Image.fromarray(pixels).save(path)
    else:
        nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), path)


def sem_folder(root):
    """Write two animals in the layout of the SEM set, with different pixel sizes."""
    for number, (size, shape) in enumerate({0.18: (30, 40), 0.07: (50, 60)}.items(), start=1):
        animal = f"sub-rat{number}"
        stem = f"{animal}_sample-data{number}_SEM"
        masks = root / "derivatives" / "labels" / animal / "micr"
        write(
            root / animal / "micr" / f"{stem}.png",
            np.arange(shape[0] * shape[1]).reshape(shape).astype(np.uint8),
        )
        (root / animal / "micr" / f"{animal}_SEM.json").write_text(
            json.dumps({"PixelSize": [size, size]})
        )
        for part, rows in (("axon", slice(0, 10)), ("myelin", slice(10, 20))):
            mask = np.zeros(shape, np.uint8)
            mask[rows] = 255
            write(masks / f"{stem}_seg-{part}-manual.png", mask)
    return root


def hippocampus_folder(root):
    rng = np.random.default_rng(0)
    for number, dtype in enumerate((np.uint8, np.float32)):
        name = f"hippocampus_{number:03d}.nii.gz"
        write(root / "imagesTr" / name, (rng.random((35, 50, 36)) * 200).astype(dtype))
        write(root / "labelsTr" / name, rng.integers(0, 3, (35, 50, 36)).astype(dtype))
    return root


def nuclei_folder(root):
    rng = np.random.default_rng(0)
    for name in "abc":
        write(root / "images" / f"{name}.png", rng.integers(0, 256, (256, 256)).astype(np.uint8))
        write(root / "labels" / f"{name}.png", rng.integers(0, 30, (256, 256)).astype(np.uint16))
    (root / "index.csv").write_text("id,split\na,train\nb,val\nc,test\n")
    return root


def options(base, root):
    return {**base["data_options"], "root": str(root)}


def test_the_sem_study_describes_its_data(tmp_path):
    base = study("sem.toml")
    source = open_folder(**options(base, sem_folder(tmp_path)))
    assert source.case_ids == ("rat1_data1", "rat2_data2")
    assert source.groups == ("rat1", "rat2")
    assert [source.read(index)[1].shape for index in (0, 1)] == [(54, 72), (35, 42)]
    assert source.regions == {"axon": (1,), "myelin": (2,)}
    assert base["data"] == "folder"
    assert check(source) == []


def test_the_hippocampus_study_describes_its_data(tmp_path):
    base = study("hippocampus.toml")
    source = open_folder(**options(base, hippocampus_folder(tmp_path)))
    assert source.case_ids == ("000", "001")
    assert source.patch == (48, 64, 48)
    assert source.regions == {"anterior": (1,), "posterior": (2,)}
    assert check(source) == []


def test_a_table_describes_the_nuclei(tmp_path):
    source = open_folder(**{**tomllib.loads(NUCLEI), "root": str(nuclei_folder(tmp_path))})
    assert source.groups == ("train", "val")
    assert check(source) == []


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data sets are not beside this checkout")
class TestRealData:
    """The sets themselves; what they hold was counted by other means."""

    def test_sem(self):
        base = study("sem.toml")
        source = open_folder(**options(base, REAL / "axondeepseg_sem"))
        assert len(source.case_ids) == 10
        assert len(set(source.groups)) == 8
        assert set(base["validation_groups"]) <= set(source.groups)
        for case_id, shape in {
            "rat1_data1": (1663, 2300),
            "rat2_data5": (887, 1190),
            "rat3_data10": (758, 737),
            "rat6_data15": (967, 1500),  # stored with an alpha channel
        }.items():
            image, mask = source.read(source.case_ids.index(case_id))
            assert image.shape == (*mask.shape, 1) == (*shape, 1)
        shares = [(mask == label).mean() for label in (1, 2)]
        np.testing.assert_allclose(shares, [0.2887, 0.3943], atol=5e-4)

    def test_hippocampus(self):
        base = study("hippocampus.toml")
        source = open_folder(**options(base, REAL / "msd_hippocampus"))
        assert len(source.case_ids) == len(set(source.groups)) == 260
        counts = np.zeros(3, int)
        for index in range(260):
            image, mask = source.read(index)
            assert case_defects(source, image, mask) == []
            counts += np.bincount(mask.ravel(), minlength=3)
        np.testing.assert_allclose(counts / counts.sum(), [0.9475, 0.0273, 0.0252], atol=5e-5)

    def test_nuclei(self):
        described = tomllib.loads(NUCLEI)
        source = open_folder(**{**described, "root": str(REAL / "dsb2018_nuclei256")})
        assert set(source.groups) == {"train", "val"}
        image, mask = source.read(source.case_ids.index("00071198d059ba7f"))
        assert image.shape == (256, 256, 1)
        assert round(float(mask.mean()), 4) == 0.0872  # as index.csv says
