"""Every command, configuration and snippet of the README and of docs/ does what it says."""

import re
import runpy
import shlex
import subprocess
import sys
import tomllib

import nibabel
import numpy as np
import pytest
from paths import ROOT
from PIL import Image
from record_files import encoded, write_records
from scan_files import write_scans

from tfunet import exit_codes
from tfunet.cli import main

PAGES = [
    "README.md",
    "docs/backends.md",
    "docs/choosing.md",
    "docs/data.md",
    "docs/example-data.md",
    "docs/ensembles.md",
    "docs/large-models.md",
    "docs/large-models-internals.md",
    "docs/many-weights.md",
    "docs/metrics.md",
    "docs/models.md",
    "docs/pipeline.md",
    "docs/security.md",
    "docs/spatial-parallelism.md",
    "docs/tiles.md",
    "docs/training.md",
]
# Set-up and the whole suite: they are what runs this test.
BY_HAND = ("make env", "make demo", "make test")
# Needs an object store: tests/docs/test_servers_section.py starts one.
ON_A_SERVER = ("tfunet init s3:", "tfunet data check remote.toml")
# What makes a run on the reader's own images short; other runs are on generated ones.
OWN_DATA = [
    "--model_options.levels",
    "2",
    "--model_options.filters",
    "4",
    "--patches_per_case",
    "2",
]


def blocks(page, language):
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page):
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if not line.startswith((*BY_HAND, *ON_A_SERVER))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that the pages show, each under the name in its first line."""
    folder = tmp_path_factory.mktemp("reader")
    for page in PAGES:
        for block in [*blocks(page, "python"), *blocks(page, "toml")]:
            name = re.match(r"# (\S+)\n", block)
            if name:
                (folder / name[1]).write_text(block)
    write_own_data(folder)
    return folder


def write_own_data(folder):
    """Write the images and masks that the README begins with, and new images."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:64, :64]
    for name in ("mydata/images", "mydata/masks", "new"):
        (folder / name).mkdir(parents=True)
    for number in range(10):
        cell = (rows - rng.integers(16, 48)) ** 2 + (columns - 32) ** 2 < 144
        image = (rng.normal(60, 10, cell.shape) + 100 * cell).clip(0, 255).astype(np.uint8)
        if number < 8:
            Image.fromarray(image).save(folder / f"mydata/images/{number}.png")
            Image.fromarray(np.uint8(255 * cell)).save(folder / f"mydata/masks/{number}.png")
        else:
            Image.fromarray(image).save(folder / f"new/{number}.png")
    write_street(folder / "street", rng)
    write_nuclei(folder / "nuclei", rng)
    write_brains(folder / "brains", rng)
    write_scans(folder)
    for number in range(2):
        write_records(folder / f"records/train-{number}.tfrecord", some_records(number, rng))


def some_records(number, rng):
    """Return records as docs/data.md describes them."""
    mask = np.repeat(np.repeat([[0, 1], [2, 0]], 16, 0), 16, 1).astype(np.uint8)
    return [
        {
            "image/encoded": encoded(rng.integers(0, 255, (32, 32), np.uint8)),
            "mask/encoded": encoded(mask),
            "image/name": f"scan {number}-{at}",
            "patient": 2 * number + at // 2,
        }
        for at in range(4)
    ]


def write_street(folder, rng):
    """Write the folders train, val and test of docs/data.md, with a strip without a label."""
    mask = np.repeat(np.repeat([[0, 0], [1, 2]], 32, 0), 32, 1).astype(np.uint8)
    mask[:4] = 11
    for side in ("train", "val", "test"):
        for name in (side, f"{side}annot"):
            (folder / name).mkdir(parents=True)
        for number in range(4):
            image = (rng.normal(60, 10, mask.shape) + 60 * mask).clip(0, 255).astype(np.uint8)
            Image.fromarray(image).save(folder / side / f"{number}.png")
            Image.fromarray(mask).save(folder / f"{side}annot/{number}.png")


def write_nuclei(folder, rng):
    """Write the images of docs/data.md with a mask file for each object."""
    for case in ("01", "02", "03", "04"):
        for name in ("images", "masks"):
            (folder / case / name).mkdir(parents=True)
        image = rng.integers(0, 255, (48, 48), np.uint8)
        Image.fromarray(image).save(folder / case / "images" / f"{case}.png")
        for number in range(1 + int(case)):
            mask = np.zeros((48, 48), np.uint8)
            mask[8 * number : 8 * number + 8, 10:20] = 255
            Image.fromarray(mask).save(folder / case / "masks" / f"{rng.integers(1 << 16):x}.png")


def write_brains(folder, rng):
    """Write the folders of patients of docs/data.md."""
    mask = np.repeat(np.arange(5, dtype=np.uint8), 4)[:, None, None].repeat(18, 1).repeat(16, 2)
    for number, side in enumerate(("train", "train", "validation", "test")):
        patient = folder / side / f"pat0{number}"
        patient.mkdir(parents=True)
        for name in ("Flair", "T1c", "brainmask", "OTMultiClass"):
            pixels = rng.normal(50, 9, mask.shape).astype(np.float32) + 10 * mask
            pixels = {"brainmask": mask // 2 // 2, "OTMultiClass": mask}.get(name, pixels)
            nibabel.save(nibabel.Nifti1Image(pixels, np.eye(4)), patient / f"{name}.nii.gz")


def run(arguments, place, **environment):
    from os import environ

    own = {"TFUNET_CACHE": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        arguments,
        cwd=place,
        env={**environ, **own, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("page", "command"), [(page, command) for page in PAGES for command in commands(page)]
)
def test_command_works(page, command, place, monkeypatch):
    words = shlex.split(command, comments=True)
    if words[0] == "python":
        ended = run([sys.executable, *words[1:]], place)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return
    at = words.index("tfunet")
    variables = dict(word.split("=") for word in words[:at])
    rest = words[at + 1 :]
    if rest[0] not in ("train", "run"):  # Here, where TensorFlow is loaded once for all of them.
        monkeypatch.chdir(place)
        monkeypatch.setenv("TFUNET_CACHE", str(place / "cache"))
        assert main(rest) == exit_codes.OK
        return
    if rest[0] == "run":
        ended = run([sys.executable, "-m", "tfunet", *rest], place)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return
    if {"run.toml", "street.toml"} & set(rest):
        ended = run([sys.executable, "-m", "tfunet", *rest, *OWN_DATA], place)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return
    more = ["--data_options.num_cases", "10", "--data_options.size", "32"]
    # A network of the page's own, or one that has to fill memory, stays as it is.
    if not re.search(r"swap|memory|--model", command):
        more += ["--model_options.levels", "1", "--model_options.convolutions", "1"]
    ended = run([sys.executable, "-m", "tfunet", *rest, *more], place, **variables)
    # The page says what happens where a private network cannot be had.
    is_refused = "TFUNET_PRIVATE_NETWORK" in variables and "the kernel refuses" in ended.stderr
    assert ended.returncode == (2 if is_refused else 0), ended.stdout + ended.stderr


@pytest.mark.multiprocess
def test_comparison_from_python_ends_with_a_report(place):
    script = place / "compare_mine.py"
    shorter = script.read_text().replace(
        "steps=4", 'steps=4, data_options={"num_cases": 10, "size": 32}'
    )
    script.write_text(shorter)
    ended = run([sys.executable, "compare_mine.py"], place)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = place / ended.stdout.splitlines()[-1]
    assert "horovod" in report.read_text()


@pytest.fixture
def script(place, monkeypatch, capsys):
    """Runs a script of the pages here, where TensorFlow is loaded, and returns what it printed."""

    def ran(name):
        # As Python would, for the scripts that import another one.
        monkeypatch.syspath_prepend(place)
        runpy.run_path(str(place / name))
        return capsys.readouterr().out

    return ran


def test_keras_model_trains_with_large_model_support(script):
    assert "Large-model support: all fits" in script("train_large.py")


def test_evaluations_are_supported_as_the_page_says(script):
    script("evaluate_large.py")


@pytest.mark.parametrize("page", PAGES)
def test_toml_is_what_tfunet_reads(page):
    from tfunet.arguments import from_dict
    from tfunet.bench.study.study_file import study_from_dict

    for block in blocks(page, "toml"):
        table = tomllib.loads(block)
        study_from_dict(table) if "base" in table else from_dict(table)
