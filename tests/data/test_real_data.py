"""The real data sets that lie beside a development checkout, opened from TOML alone.

Where they are absent, the same descriptions are tried on generated files of the same layout.
"""

import json
import re
import subprocess
import sys
import tomllib

import nibabel
import numpy as np
import pytest
from paths import ROOT
from PIL import Image

from tfunet.data.check import case_defects
from tfunet.data.layouts.folder import open_folder

STUDIES = ROOT / "studies"
REAL = ROOT.parent / "shared" / "data"

PAGE = ROOT / "docs" / "example-data.md"
ON_PAGE = re.findall(r"```toml\n(data = \"folder\"\n.*?)```", PAGE.read_text(), re.DOTALL)


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


def places(name, make):
    """Return the folders to try: generated, and the real one."""

    def real(_):
        if not (REAL / name).is_dir():
            pytest.skip(f"No real data here: there is no folder ../shared/data/{name}.")
        return REAL / name

    named = {"generated": make, "real": real}
    return pytest.mark.parametrize(("place", "find"), named.items(), ids=list(named))


def opened(data_options, root):
    return open_folder(**{**data_options, "root": str(root)})


def read_soundly(source, case_id):
    image, mask = source.read(source.case_ids.index(case_id))
    assert case_defects(source, image, mask) == []
    return image, mask


SEM_SHAPES = {
    "generated": {"rat1_data1": (54, 72), "rat2_data2": (35, 42)},
    "real": {
        "rat1_data1": (1663, 2300),
        "rat2_data5": (887, 1190),
        "rat3_data10": (758, 737),
        "rat6_data15": (967, 1500),  # stored with an alpha channel
    },
}


@places("axondeepseg_sem", sem_folder)
def test_the_sem_study_describes_its_data(tmp_path, place, find):
    base = study("sem.toml")
    source = opened(base["data_options"], find(tmp_path))
    assert base["data"] == "folder"
    assert source.regions == {"axon": (1,), "myelin": (2,)}
    for case_id, shape in SEM_SHAPES[place].items():
        image, mask = read_soundly(source, case_id)
        assert image.shape == (*mask.shape, 1) == (*shape, 1)
        assert source.groups[source.case_ids.index(case_id)] == case_id.split("_")[0]
    shares = [(mask == label).mean() for label in (1, 2)]
    if place == "real":
        assert len(source.case_ids) == 10
        assert set(base["validation_groups"]) < set(source.groups)
        np.testing.assert_allclose(shares, [0.2887, 0.3943], atol=5e-4)
    else:
        np.testing.assert_allclose(shares, [0.2, 0.2])


@places("msd_hippocampus", hippocampus_folder)
def test_the_hippocampus_study_describes_its_data(tmp_path, place, find):
    source = opened(study("hippocampus.toml")["data_options"], find(tmp_path))
    assert len(source.case_ids) == len(set(source.groups)) == {"generated": 2, "real": 260}[place]
    assert source.patch == (48, 64, 48)
    assert source.regions == {"anterior": (1,), "posterior": (2,)}
    counts = np.zeros(3, int)
    for case_id in source.case_ids:
        counts += np.bincount(read_soundly(source, case_id)[1].ravel(), minlength=3)
    shares = {"generated": (1 / 3, 1 / 3, 1 / 3), "real": (0.9475, 0.0273, 0.0252)}[place]
    tolerance = {"generated": 0.01, "real": 5e-5}[place]
    np.testing.assert_allclose(counts / counts.sum(), shares, atol=tolerance)


@places("dsb2018_nuclei256", nuclei_folder)
def test_a_table_describes_the_nuclei(tmp_path, place, find):
    source = opened(tomllib.loads(ON_PAGE[2])["data_options"], find(tmp_path))
    assert set(source.groups) == {"train", "val"}
    case_id, share = {"generated": ("a", 29 / 30), "real": ("00071198d059ba7f", 0.0872)}[place]
    image, mask = read_soundly(source, case_id)
    assert image.shape == (256, 256, 1)
    assert abs(mask.mean() - share) < 0.002  # of the real one, as index.csv says


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "name", "make", "held_out"),
    [
        (0, "axondeepseg_sem", sem_folder, ["--validation_groups", '["rat2"]']),
        (1, "msd_hippocampus", hippocampus_folder, []),
        (2, "dsb2018_nuclei256", nuclei_folder, []),
    ],
)
def test_the_page_is_enough_to_check_and_train(tmp_path, number, name, make, held_out):
    config = tmp_path / "run.toml"
    config.write_text(ON_PAGE[number])
    root = ["--data_options.root", str(REAL / name)]
    if not REAL.is_dir():
        root = ["--data_options.root", str(make(tmp_path / "files")), *held_out]
    elif "validation_share" in ON_PAGE[number]:
        root += ["--validation_share", "0.02"]  # A few of hundreds of cases are scored.
    cache = ["--cache_dir", str(tmp_path / "cache")]
    small = ["--steps", "2", "--patches_per_case", "8", "--model_options.filters", "2"]
    for command in (
        ["data", "check", str(config), *root],
        ["train", str(config), *root, *cache, *small, "--out", str(tmp_path / "run")],
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "tfunet", *command], capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "no defects" in ended.stdout or "Record: " in ended.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == 2
    assert all(result["dice"].values())
