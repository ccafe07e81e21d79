"""Training with bad samples: refused before the first step, or left out on every worker alike."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT
from PIL import Image

FILES = ("split.json", "result.json")
CONFIG = """
data = "data.toml"
patch = [32, 32]
steps = 6
global_batch = 2
model_options = { filters = 4, levels = 1 }
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Ten images: one without its mask, one with a label that no class has, one without labels."""
    folder = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    for number in range(10):
        for part in ("images", "masks"):
            path = folder / part / f"case{number}.png"
            path.parent.mkdir(exist_ok=True)
            high = 256 if part == "images" else 2
            Image.fromarray(rng.integers(0, high, (32, 32)).astype(np.uint8)).save(path)
    (folder / "masks" / "case3.png").unlink()
    Image.fromarray(np.full((32, 32), 9, np.uint8)).save(folder / "masks" / "case5.png")
    Image.new("L", (32, 32)).save(folder / "masks" / "case7.png")
    (folder / "data.toml").write_text(
        'images = "images/{case}.png"\nmasks = "masks/{case}.png"\nclasses = { cell = 1 }\n'
    )
    (folder / "run.toml").write_text(CONFIG)
    return folder


def tfunet(place, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "tfunet", *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TFUNET_CACHE": str(place / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_data_check_lists_what_opening_and_what_decoding_finds(place):
    ended = tfunet(place, "data", "check", "run.toml")
    assert ended.returncode == 2, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"{place.name}: 9 cases"
    assert "2 defects:" in lines
    assert "  images/case3.png: missing mask: no file masks/case3.png" in lines
    (label,) = [line for line in lines if line.startswith("  masks/case5.png: labels out of range")]
    assert "holds the values 9; allowed: 0, 1. Add them to classes=" in label
    ended = tfunet(place, "data", "check", "run.toml", "--json", "--folds", "4")
    report = json.loads(ended.stdout)
    assert [defect["case_id"] for defect in report["defects"]] == ["case3", "case5"]
    assert len(report["cases"]) == 8
    assert sum(case["side"] == "validation" for case in report["cases"]) in (2, 3)


@pytest.mark.multiprocess
def test_training_refuses_bad_samples_before_the_first_step(place):
    ended = tfunet(place, "train", "--config", "run.toml", "--out", "refused")
    assert ended.returncode == 2
    assert "images/case3.png: missing mask" in ended.stderr + ended.stdout
    assert "on_bad_sample" in ended.stderr + ended.stdout
    assert not (place / "refused" / "steps.csv").exists()


@pytest.mark.multiprocess
def test_bad_samples_are_left_out_on_every_worker_alike_and_recorded(place):
    records = {}
    for name, backend in (
        ("one", ["--backend", "single"]),
        ("two", ["--backend", "multiworker", "--num_replicas", "2"]),
    ):
        skip = ["--on_bad_sample", "skip", "--out", name]
        ended = tfunet(place, "train", "--config", "run.toml", *skip, *backend)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "2 defects" in ended.stdout
        # Said once, also by two workers.
        assert ended.stdout.count("warning: ") == 1
        assert "warning: images/case7.png: its mask is empty" in ended.stdout
        folder = place / name
        records[name] = [json.loads((folder / file).read_text()) for file in FILES]
    (split, result), (other_split, other) = records["one"], records["two"]
    assert split == other_split
    used = {*split["train"], *split["validation"]}
    assert used == {f"case{number}" for number in range(10)} - {"case3", "case5"}
    assert [case["case_id"] for case in split["left_out"]] == ["case3", "case5"]
    assert "holds the values 9" in split["left_out"][1]["what"]
    assert result["samples_hash"] == other["samples_hash"]
    assert result["left_out_cases"] == other["left_out_cases"] == 2


@pytest.mark.multiprocess
def test_a_bad_sample_that_is_read_when_it_is_needed_ends_the_run_in_a_line(place):
    ended = tfunet(place, "train", "--config", "run.toml", "--store", "files", "--out", "files")
    # The mask that is missing is seen at once.
    assert ended.returncode == 2
    (place / "images" / "case3.png").rename(place / "case3.png")
    try:
        ended = tfunet(place, "train", "--config", "run.toml", "--store", "files", "--out", "files")
        assert ended.returncode == 2
        lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1
        assert "case5.png: labels out of range: the mask holds the values 9" in lines[0]
        assert "on_bad_sample = 'skip'" in lines[0]
        assert "Traceback" not in ended.stderr
    finally:
        (place / "case3.png").rename(place / "images" / "case3.png")


@pytest.mark.multiprocess
def test_with_skip_the_next_case_takes_the_place_of_a_bad_one_in_all_processes(place):
    hashes = set()
    for name, backend in (
        ("next-one", ["--backend", "single"]),
        ("next-two", ["--backend", "multiworker", "--num_replicas", "2"]),
    ):
        # What an earlier run saw of the cases is kept beside its cache.
        skip = ["--on_bad_sample", "skip", "--store", "files", "--out", name]
        skip += ["--cache_dir", f"cache-{name}"]
        ended = tfunet(place, "train", "--config", "run.toml", *skip, *backend)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert (
            ended.stdout.count("case5 turned out to be of no use, and others took its place") == 1
        )
        result = json.loads((place / name / "result.json").read_text())
        assert result["left_out_cases"] == 2
        hashes.add((result["samples_hash"], round(result["loss"], 5)))
    assert len(hashes) == 1
