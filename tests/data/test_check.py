"""What `tfunet data check` says of a data set without defects, and of one that leaks."""

import json

import numpy as np
import pytest
from PIL import Image

from tfunet.bench.study.toml_writer import config_toml
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.data.check import check, report_text
from tfunet.data.early_checks import check_early
from tfunet.data.source import open_source
from tfunet.data.split import Split

SPLIT = Split(train=(0, 1, 2), validation=(3,))


@pytest.fixture
def folder(tmp_path):
    """Four images of two sizes, a quarter of each in the class."""
    rng = np.random.default_rng(0)
    for name, width in zip("abcd", (8, 8, 8, 16), strict=True):
        mask = np.zeros((10, width), np.uint8)
        mask[:, : width // 4] = 1
        pixels = rng.integers(0, 200, mask.shape).astype(np.uint8)
        pixels[0, :2] = 0, 200
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        Image.fromarray(mask).save(tmp_path / f"{name}_m.png")
    return tmp_path


def opened(folder, **options):
    patterns = {"images": "{case}.png", "masks": {"cell": "{case}_m.png"}}
    options = {"root": str(folder), "name": "set", **patterns, **options}
    return open_source("folder", options, skip_bad=True)


def test_a_sound_data_set_is_summed_up(folder):
    asked = []
    report = check(opened(folder), SPLIT, progress=lambda indices: asked.append(indices) or indices)
    assert asked == [range(4)]
    training = [
        np.array(Image.open(folder / case.file)) for case in report.cases if case.side == "train"
    ]
    pixels = np.concatenate([image.ravel() for image in training]).astype(float)
    assert report_text(report).splitlines() == [
        "set: 4 cases",
        "  shape             10 x 8 to 10 x 16, median 10 x 8",
        "  image type        uint8 (4)",
        "  mask type         uint8 (4)",
        "  intensity         0 to 200; means of the cases "
        + " to ".join(f"{pick(case.mean[0] for case in report.cases):g}" for pick in (min, max)),
        f"  statistics        {{ mean = [{pixels.mean():.6g}], deviation = [{pixels.std():.6g}] }} "
        "over all pixels of the training cases",
        "  class background  75.00% of all pixels, in 4 cases",
        "  class 1 cell      25.00% of all pixels, in 4 cases",
        "  split             train (3), validation (1)",
        "",
        "no warnings",
        "",
        "no defects",
    ]
    assert json.loads(json.dumps(report.to_json()))["cases"][3]["shape"] == [10, 16]


def test_the_same_image_on_both_sides_is_a_defect_and_on_one_a_warning(folder):
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes())
    # The same pixels in another file.
    with Image.open(folder / "a.png") as image:
        image.save(folder / "d.png", compress_level=0)
    Image.new("L", (8, 10)).save(folder / "d_m.png")
    report = check(opened(folder), SPLIT)
    (defect,) = report.defects
    assert str(defect).startswith("d.png: has the same pixels as a.png, and they are on both sides")
    warnings = [str(warning) for warning in report.warnings]
    assert warnings == [
        "b.png: has the same pixels as a.png, which then counts twice. Remove one of them.",
        "d.png: its mask is empty",
        "set: no case of validation has the class 1 cell",
    ]
    assert not check(opened(folder)).defects  # without a split nothing leaks


def test_a_constant_channel_and_unlike_pixel_sizes_are_warnings(folder):
    Image.new("L", (8, 10), 7).save(folder / "b.png")
    (folder / "t.csv").write_text("id,um\na,1\nb,1\nc,1\nd,2\n")
    sizes = {"pixel_size": {"column": "um"}, "target_pixel_size": 1}
    table = {"table": {"file": "t.csv", "key": "id"}}
    report = check(opened(folder, **sizes, **table), SPLIT)
    assert [str(warning) for warning in report.warnings] == ["b.png: every pixel of channel 0 is 7"]
    assert report.cases[3].spacing == (2, 2)


@pytest.mark.parametrize("unlabelled", ["a", "abcd"])
def test_an_image_of_which_no_pixel_counts_is_looked_at(folder, unlabelled):
    for name in unlabelled:
        Image.new("L", Image.open(folder / f"{name}.png").size, 9).save(folder / f"{name}_m.png")
    labels = {"masks": "{case}_m.png", "classes": {"cell": 1}, "ignore_label": 9}
    report = check(opened(folder, **labels), SPLIT)
    said = report_text(report)
    assert ("statistics " in said) == (unlabelled == "a")
    assert "nan" not in said
    assert "a.png: its mask is empty" in said
    assert bool(report.defects) == (unlabelled == "abcd")
    assert (report.cases[0].low, report.cases[0].high) == ((0.0,), (200.0,))


def test_few_masks_are_named_before_what_they_leave_is_too_little(folder, capsys):
    for name in "bcd":
        (folder / f"{name}_m.png").unlink()
    options = {"root": str(folder), "images": "{case}.png", "masks": {"cell": "{case}_m.png"}}
    config = RunConfig(data="folder", data_options=options, on_bad_sample="skip")
    run = folder / "run.toml"
    run.write_text(config_toml(config))
    assert main(["data", "check", str(run)]) == 2
    said = capsys.readouterr().out
    missing = "b.png: missing mask: no file b_m.png (2 more like it: c.png, d.png)"
    assert said.index(missing) < said.index("has a single group ('a')")
    assert said.count(missing) == 1
    with pytest.raises(
        ValueError, match=r"single group .*Left out: b\.png: missing mask: .*d\.png"
    ):
        check_early(config)


def test_what_left_too_few_cases_for_a_batch_is_named(folder):
    (folder / "c_m.png").unlink()
    options = {"root": str(folder), "images": "{case}.png", "masks": {"cell": "{case}_m.png"}}
    config = RunConfig(data="folder", data_options=options, on_bad_sample="skip", global_batch=3)
    with pytest.raises(ValueError, match=r"global_batch=3.* Left out: c\.png: missing mask"):
        check_early(config)


def test_ten_files_of_a_defect_are_named_and_all_in_json(folder):
    Image.new("L", (8, 10)).save(folder / "a_m.png")
    for number in range(20, 40):
        Image.new("L", (8, 10)).save(folder / f"{number}.png")
    report = check(opened(folder))
    (line,) = [line for line in report_text(report).splitlines() if "missing mask" in line]
    assert "19 more like it" in line
    assert [str(number) in line.split("more like it")[1] for number in range(20, 40)] == [
        20 < number < 30 for number in range(20, 40)
    ]
    assert "  --json names every file." in report_text(report).splitlines()
    assert len(report.to_json()["defects"]) == 20
    assert "--json" not in report_text(check(opened(folder, exclude=["2?.png", "3?.png"])))
