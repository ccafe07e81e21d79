"""`tfunet evaluate`: predictions against masks, case by case."""

import csv
import json
import re
import shutil

import keras
import numpy as np
import pytest
import tifffile
from PIL import Image

from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.bench.records.shown_cases import read_shown_cases
from tfunet.cli import main
from tfunet.config.case_metrics import case_metrics
from tfunet.config.run import RunConfig
from tfunet.data.lazy_image import LazyImage, open_image
from tfunet.data.shown_planes import in_8_bits, shown_channels
from tfunet.learning.case_metrics import measure
from tfunet.learning.dataset_scores import COUNTS
from tfunet.learning.scores import dice, iou
from tfunet.loop import run
from tfunet.prediction.case_pictures import spread_ranks
from tfunet.prediction.evaluate import evaluate
from tfunet.prediction.overlay_picture import write_errors, write_overlay
from tfunet.prediction.run import Options
from tfunet.prediction.score_tables import group_facts, group_rows
from tfunet.single_device import SingleDevice


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def others(folder, tmp_path):
    """Two cases that no run was trained on, laid out as those of the run; one mask is empty."""
    for name in ("other0", "other1"):
        image = tifffile.imread(folder / "case1_image.tif")
        mask = tifffile.imread(folder / "case1_mask.tif") * (name == "other0")
        bands = {"photometric": "minisblack", "planarconfig": "contig"}
        tifffile.imwrite(tmp_path / f"{name}_image.tif", image, **bands)
        tifffile.imwrite(tmp_path / f"{name}_mask.tif", mask.astype(np.uint8))
    return tmp_path


def test_a_folder_is_read_as_the_run_read_its_own(local_run, others, tmp_path, capsys):
    command = ["evaluate", str(local_run), str(others), "--out", str(tmp_path / "out")]
    own = tmp_path / "own.py"
    own.write_text(
        "def missed(truth, predicted, spacing):\n    return (truth & ~predicted).sum()\n"
    )
    command += ["--metrics", f"hd95,dice,{own}:missed"]
    assert main(command) == 0
    table = rows(tmp_path / "out/scores.csv")
    assert [row["case"] for row in table] == ["other0", "other1"]
    labels = tifffile.imread(tmp_path / "out/predictions/other0.tif")
    truth = tifffile.imread(others / "other0_mask.tif")
    both = (labels & truth).sum()
    counts = np.array([both, labels.sum() - both, truth.sum() - both])
    assert float(table[0]["dice"]) == float(dice(counts))
    assert int(table[0]["true_positive"]) == both
    # Both cases together; the other mask is empty.
    wrong, found = (int(table[1][name]) for name in ("false_positive", "true_positive"))
    assert found == 0
    assert (tmp_path / "out/confusion.csv").read_text() == (
        f"true,0 background,1 foreground\n"
        f"0 background,{2 * truth.size - int(counts.sum()) - wrong},{int(counts[1]) + wrong}\n"
        f"1 foreground,{int(counts[2])},{both}\n"
    )
    with Image.open(tmp_path / "out/confusion.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 10
    # No true surface: no distance, and the mean says in how many cases there is one.
    assert table[1]["hd95"] == ("" if labels.any() else "0.0")
    said, complaints = capsys.readouterr()
    assert "region      cases  present  Dice   IoU    Dice where present" in said
    # The second table has a row for each score, with a deviation of two cases and no interval.
    assert re.search(r"\nforeground  Dice    2      0\.\d{3} +0\.\d{3} +0\.\d{3}   -\n", said)
    assert re.search(rf"\nforeground  hd95    {2 - (table[1]['hd95'] == '')} ", said)
    assert re.search(r"\nforeground  missed  2 ", said)
    assert max(map(len, said.splitlines())) < 120 + len(str(tmp_path))
    for row in table:
        assert float(row["missed"]) == float(row["false_negative"])
    assert "Distances and volumes of metrics are in pixels" in said
    assert complaints == ""
    names = {path.name for path in (tmp_path / "out/errors").iterdir()}
    assert names == {"other0.png", "other1.png"}
    # Nothing is predicted again.
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    assert [row["case"] for row in printed["scores"]] == ["other0", "other1"]
    # One mask has the region: the pixels of both cases together.
    counts[1] += int(table[1]["false_positive"])
    its = printed["regions"]["foreground"]
    assert (its["cases"], its["present"]) == (2, 1)
    assert its["dataset_iou"] == printed["miou"] == float(iou(counts))
    assert its["dataset_dice"] == float(dice(counts))
    assert its["dice_where_present"] == float(table[0]["dice"])
    assert printed["mean_dice"] == its["dice"] == np.mean([float(row["dice"]) for row in table])
    assert f"mIoU {iou(counts):.3f} (dataset IoU), mean Dice {its['dice']:.3f}" in said
    assert ("1 of 2 cases have no foreground. In" in said) == (2 * its["empty"] > 2 * its["dice"])
    (row,) = rows(tmp_path / "out/region_scores.csv")
    texts = {name: "" if value is None else str(value) for name, value in its.items()}
    assert row == {"region": "foreground", **texts}
    for name, values in {
        "dice": [float(row["dice"]) for row in table],
        "missed": [float(row["missed"]) for row in table],
    }.items():
        assert its[name] == np.mean(values)
        assert its[f"{name}_sd"] == pytest.approx(np.std(values, ddof=1))
        assert its[f"{name}_median"] == np.median(values)
        assert its[f"{name}_low"] is its[f"{name}_high"] is None
    assert its["missed_cases"] == 2
    assert "done already" in captured.err


def test_scores_are_complete_before_the_first_picture(local_run, others, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/errors").write_text("No picture can be written here.")
    command = ["evaluate", str(local_run), str(others), "--out", str(tmp_path / "out")]
    assert main(command) != 0
    assert [row["case"] for row in rows(tmp_path / "out/scores.csv")] == ["other0", "other1"]
    said, complaint = capsys.readouterr()
    assert f"Scores: {tmp_path / 'out/scores.csv'}" in said
    assert "errors" in complaint


def test_some_pictures_go_from_the_worst_over_the_median_to_the_best(
    local_run, others, tmp_path, capsys
):
    assert spread_ranks(np.array([0.5, 0.9, 0.1, 0.3, 0.7]), 3) == [2, 0, 1]
    assert spread_ranks(np.array([0.5, 0.9]), 2) == [0, 1]
    options = Options(overlay=False)
    scored = evaluate(local_run, str(others), tmp_path / "out", options)
    worst = min(scored.rows, key=lambda row: row["dice"])["case"]
    pictures = tmp_path / "errors"
    pictures.mkdir()
    for name in ("other0", "other1", "mine"):
        (pictures / f"{name}.png").write_text("of an earlier prediction")
    scored.cases.draw(scored.rows, pictures, most=1)
    assert {path.name for path in pictures.iterdir()} == {f"{worst}.png", "mine.png"}
    assert "Drawing 1 of 2 cases" in capsys.readouterr().out


def test_pixels_to_ignore_are_not_scored(local_run, others, tmp_path):
    truth = tifffile.imread(others / "other0_mask.tif")
    truth[:, 32:] = 7
    tifffile.imwrite(others / "other0_mask.tif", truth)
    (others / "others.toml").write_text(
        """
        images = "{case}_image.tif"
        masks = "{case}_mask.tif"
        classes = {foreground = 1}
        ignore_label = 7
        """
    )
    command = ["evaluate", str(local_run), str(others / "others.toml"), "--no-overlay"]
    names = ("arand", "vi_split", "vi_merge", "cldice", "lesion_f1", "hd95", "assd", "nsd@2px")
    assert main([*command, "--out", str(tmp_path / "out"), "--metrics", ",".join(names)]) == 0
    labels = tifffile.imread(tmp_path / "out/predictions/other0.tif")
    assert labels[:, 32:].any()
    both = (labels & truth)[:, :32].sum()
    row = rows(tmp_path / "out/scores.csv")[0]
    assert int(row["true_positive"]) == both
    assert int(row["false_positive"]) == labels[:, :32].sum() - both
    matrix = rows(tmp_path / "out/confusion.csv")
    counted = 32 * 64 + len(truth[0]) * len(truth)  # All of the other case.
    cells = [int(row[name]) for row in matrix for name in ("0 background", "1 foreground")]
    assert sum(cells) == counted
    masks = [np.where(truth == 7, 0, values) for values in (labels, truth)]
    values = measure(case_metrics(names), *masks, None)
    assert [row[name] for name in names] == [str(value) for value in values]
    labels[:, 32:] ^= 1
    masks[0] = np.where(truth == 7, labels, masks[0])
    assert measure(case_metrics(names), *masks, None) != values


def test_objects_that_touch_are_counted_by_their_numbers(local_run, others, tmp_path):
    """Each true component is two objects: what is left and what is right of the middle."""
    truth = tifffile.imread(others / "other0_mask.tif")
    numbers = truth * np.where(np.arange(64) < 32, np.uint8(1), np.uint8(200))
    tifffile.imwrite(others / "other0_mask.tif", numbers)
    lines = """
        images = "{case}_image.tif"
        masks = { foreground = "{case}_mask.tif" }
        objects = "numbers"
        """
    (others / "others.toml").write_text(lines)
    out, names = tmp_path / "out", ("instance_recall", "panoptic_quality", "lesion_recall")
    command = ["evaluate", str(local_run), str(others / "others.toml"), "--no-overlay"]
    assert main([*command, "--out", str(out), "--metrics", ",".join(names)]) == 0
    row = rows(out / "scores.csv")[0]
    labels = tifffile.imread(out / "predictions/other0.tif")
    metrics = case_metrics(names)
    by_hand = measure(metrics, labels > 0, numbers > 0, None, numbers)
    assert [float(row[name]) for name in names] == by_hand
    assert measure(metrics, labels > 0, numbers > 0, None) != by_hand


def test_scores_by_group(local_run, others, tmp_path, capsys):
    """Two images of one stain, and one of another."""
    for case, group in (("other0", "pink"), ("other1", "blue"), ("other0", "blue")):
        (tmp_path / group).mkdir(exist_ok=True)
        for kind in ("image", "mask"):
            shutil.copy(others / f"{case}_{kind}.tif", tmp_path / f"{group}/{case}_{kind}.tif")
    lines = """
        images = "{group}/{case}_image.tif"
        masks = "{group}/{case}_mask.tif"
        classes = { foreground = 1 }
        """
    (tmp_path / "stains.toml").write_text(lines)
    out = tmp_path / "out"
    command = ["evaluate", str(local_run), str(tmp_path / "stains.toml"), "--out", str(out)]
    assert main([*command, "--no-overlay", "--metrics", "volume_difference"]) == 0
    said = capsys.readouterr().out
    cases = rows(out / "scores.csv")
    assert {row["case"]: row["group"] for row in cases} == {
        "pink_other0": "pink",
        "blue_other0": "blue",
        "blue_other1": "blue",
    }
    blue, pink = rows(out / "group_scores.csv")
    assert (blue["group"], blue["cases"], blue["present"]) == ("blue", "2", "1")
    for name in ("dice", "iou", "volume_difference"):
        values = [float(row[name]) for row in cases if row["group"] == "blue"]
        assert float(blue[name]) == np.mean(values)
        assert float(blue[f"{name}_sd"]) == pytest.approx(np.std(values, ddof=1))
    assert re.search(r"\ngroup +region +cases +present +Dice +IoU +volume_difference\n", said)
    assert re.search(rf"\npink +foreground +1 +1 +{float(pink['dice']):.3f} ", said)
    assert main([*command, "--no-overlay", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["groups"]
    assert [row["dice"] for row in printed] == [float(row["dice"]) for row in (blue, pink)]


@pytest.mark.parametrize(
    ("groups", "is_shown"),
    [
        ("aab", True),
        ("aaa", False),  # One group: these are the means of all.
        ("abc", False),  # Each case is a group.
        ([str(at // 2) for at in range(40)], True),
        ([str(at // 2) for at in range(42)], False),  # More than 20 groups.
    ],
)
def test_means_of_a_few_groups_are_shown(groups, is_shown):
    scored = {"region": "cell", **dict.fromkeys(COUNTS, 1), "dice": 0.5, "iou": 1 / 3}
    table = [{"case": str(at), "group": group, **scored} for at, group in enumerate(groups)]
    assert bool(group_rows(table, ())) == is_shown
    assert len(group_facts(table, ())) == len(set(groups))
    assert group_rows([{"case": "1", **scored}], ()) == []


OWN_DATA = """
import numpy as np
from tfunet.data.source import DataSource

def open(first=0, shape=(32, 48), channels=2):
    shape = tuple(shape)

    def read(index):
        rng = np.random.default_rng(first + index)
        mask = np.zeros(shape, np.uint8)
        mask[(*map(slice, rng.integers(0, 8, len(shape)), (20,) * len(shape)),)] = 1
        image = rng.normal(size=(*shape, channels)) + 3 * mask[..., None]
        return image.astype(np.float32), mask

    names = tuple(f"case {first + index}" for index in range(4))
    return DataSource(
        name="own", case_ids=names, groups=names, num_classes=2, channels=channels,
        regions={"foreground": (1,)}, patch=shape, read=read,
        fingerprint=f"{first} {shape}",
    )
"""


@pytest.mark.parametrize(("shape", "channels"), [((32, 48), 2), ((16, 18, 20), 1)])
def test_a_data_set_in_code_is_scored_as_in_training(
    tmp_path, monkeypatch, capsys, shape, channels
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN_DATA)
    options = {"shape": list(shape), "channels": channels}
    config = RunConfig(
        model="unet",
        model_options={"filters": 2, "levels": 1, "normalization": "none"},
        data=f"{tmp_path / 'own.py'}:open",
        data_options=options,
        cache_dir=str(tmp_path / "cache"),
        global_batch=2,
        steps=40,
        learning_rate=0.05,
        metrics=("hd",),
    )
    run(config, SingleDevice(Launch()), tmp_path / "run")
    held_out = {row["case"]: row for row in rows(tmp_path / "run/cases.csv")}
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    (tmp_path / "own.toml").write_text(f"data = 'own.py:open'\n[data_options]\n{lines}first = 0\n")
    (tmp_path / "new.toml").write_text(f"data = 'own.py:open'\n[data_options]\n{lines}first = 70\n")
    for name, num_cases in (("own", 1), ("new", 4)):
        command = ["evaluate", str(tmp_path / "run"), str(tmp_path / f"{name}.toml")]
        command += ["--out", str(tmp_path / name), "--tiles", "halo"]
        for _ in range(2):
            assert main(command) == 0
        said, complaints = capsys.readouterr()
        assert said.count("done already") == num_cases
        assert "stored" not in complaints
        for row in rows(tmp_path / name / "scores.csv"):
            assert float(row["dice"]) > 0.8
            if row["case"] in held_out:
                same = ("true_positive", "false_positive", "false_negative", "hd")
                kept = held_out[row["case"]]
                assert [float(row[name]) for name in same] == [float(kept[name]) for name in same]
                num_cases -= 1
        assert num_cases == (0 if name == "own" else 4)


def test_images_in_code_do_not_fit_a_run_that_prepared_those_of_files(
    local_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN_DATA)
    lines = "[data_options]\nchannels = 3\n"
    (tmp_path / "own.toml").write_text(f"data = 'own.py:open'\n{lines}")
    command = ["evaluate", str(local_run), str(tmp_path / "own.toml"), "--out", str(tmp_path / "x")]
    assert main(command) == exit_codes.BAD_INPUT
    assert "made in code, and those of this run were read from files" in capsys.readouterr().err


def test_cases_that_the_run_was_trained_on_are_left_out(local_run, folder, tmp_path, capsys):
    trained = json.loads((local_run / "split.json").read_text())["train"]
    command = ["evaluate", str(local_run), str(folder), "--out", str(tmp_path / "out")]
    assert main([*command, "--no-overlay"]) == 0
    assert f"{len(trained)} cases are left out" in capsys.readouterr().out
    table = rows(tmp_path / "out/scores.csv")
    assert {row["case"] for row in table}.isdisjoint(trained)
    assert not list((tmp_path / "out").rglob("*.png"))
    assert main([*command, "--training_cases"]) == 0
    assert "warning: the network was trained on 2 of these cases" in capsys.readouterr().err
    assert len(rows(tmp_path / "out/scores.csv")) == 3


def test_training_cases_are_known_by_their_files_however_they_are_described(
    local_run, folder, tmp_path, capsys
):
    """A table lists them under other names, which no file can have."""
    rest = [f"case{number}_{{}}.tif" for number in range(3)]
    lines = [
        f"../{name[:5]},{folder / name.format('image')},{folder / name.format('mask')}"
        for name in rest
    ]
    (tmp_path / "t.csv").write_text("\n".join(["id,image,mask", *lines]))
    (tmp_path / "t.toml").write_text('data = "csv"\nfile = "t.csv"\nkey = "id"\n')
    out = tmp_path / "in/out"
    command = ["evaluate", str(local_run), str(tmp_path / "t.toml"), "--no-overlay"]
    assert main([*command, "--out", str(out)]) == 0
    assert "2 cases are left out: the network was trained on them" in capsys.readouterr().out
    (held_out,) = json.loads((local_run / "split.json").read_text())["validation"]
    assert [row["case"] for row in rows(out / "scores.csv")] == [f"../{held_out}"]
    assert (out / f"predictions/__{held_out}.tif").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "t.toml", "in"}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ('classes = { a = 1, b = 2 }\nmasks = "{case}_mask.tif"', "has the classes 1 a, 2 b"),
        ('masks = { other = "{case}_mask.tif" }', "trained on 1 foreground"),
    ],
)
def test_other_classes_are_refused(description, message, local_run, others, tmp_path, capsys):
    file = tmp_path / "data.toml"
    file.write_text(f'root = "{others}"\nimages = "{{case}}_image.tif"\n{description}\n')
    assert main(["evaluate", str(local_run), str(file), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_weights_of_the_run(local_run, others, tmp_path, capsys):
    """The weights of another epoch, which a callback kept, give other predictions."""
    run = tmp_path / "run"
    shutil.copytree(local_run, run)
    command = ["predict", str(run), str(others / "other0_image.tif"), "--no-overlay"]
    missing = [*command, "--weights", "best.keras", "--out", str(tmp_path / "m")]
    assert main(missing) == 2
    assert "The folder holds: model.keras" in capsys.readouterr().err
    model = keras.models.load_model(run / "model.keras", compile=False)
    model.set_weights([np.zeros_like(weights) for weights in model.get_weights()])
    model.save(run / "best.keras")
    assert main([*command, "--weights", "best.keras", "--out", str(tmp_path / "best")]) == 0
    assert main([*command, "--out", str(tmp_path / "last")]) == 0
    best, last = (tifffile.imread(tmp_path / out / "other0_image.tif") for out in ("best", "last"))
    assert not best.any()
    assert last.any()


def test_what_is_no_data_set_is_refused(local_run, tmp_path, capsys):
    for data in ("missing.toml", str(tmp_path / "missing")):
        assert main(["evaluate", str(local_run), data, "--out", str(tmp_path / "out")]) == 2
        assert "is neither a folder nor a .toml file" in capsys.readouterr().err
    (tmp_path / "bom.toml").write_text("\ufeffdata = 'csv'")
    command = ["evaluate", str(local_run), str(tmp_path / "bom.toml"), "--out", str(tmp_path)]
    assert main(command) == 2
    assert (
        "bom.toml is not a TOML file: it begins with a byte order mark" in capsys.readouterr().err
    )
    # A configuration may name a description.
    (tmp_path / "run.toml").write_text(f"data = '{tmp_path / 'bom.toml'}'\nepochs = 3\n")
    command = ["evaluate", str(local_run), str(tmp_path / "run.toml"), "--out", str(tmp_path)]
    assert main(command) == 2
    assert "bom.toml' cannot be read (it begins with" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(900, 700), (12, 20, 16)])
def test_a_picture_shows_both_kinds_of_error_in_colours_of_their_own(shape, tmp_path):
    mask, labels = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    mask[tuple(slice(size // 4, size // 2) for size in shape)] = 1
    labels[tuple(slice(size // 3, size * 2 // 3) for size in shape)] = 1
    path = tmp_path / "a_errors.png"
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    write_errors(path, image, mask, labels, {1: "1 cell"}, title="a")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    # The legend is below.
    height, width, _ = pixels.shape
    drawn, right = pixels[: height * 4 // 5], 3 * width // 4
    for colour in ((0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)):
        is_near = np.abs(drawn - np.array(colour)).sum(-1) < 120
        assert is_near[:, right:].sum() > 100
        assert not is_near[:, : width // 4].any()  # The image.


def test_pictures_show_a_colour_file_in_colour(tmp_path):
    colours = np.full((40, 60, 4), (200, 20, 20, 250), np.float32)
    colours[:20] = (20, 20, 200, 250)
    Image.fromarray(colours[..., :3].astype(np.uint8)).save(tmp_path / "a.png")
    mask = np.zeros((40, 60), np.uint8)
    infrared = LazyImage(
        shape=(40, 60),
        channels=4,
        read=lambda start, stop: colours[start[0] : stop[0], start[1] : stop[1]],
        by_parts=True,
        in_colour=True,
    )
    path = tmp_path / "picture.png"
    pictures = [
        (write_overlay, (open_image(tmp_path / "a.png"), lambda first, last: mask[first:last])),
        (write_overlay, (infrared, lambda first, last: mask[first:last])),
        (write_errors, (shown_channels(colours, in_colour=True), mask, mask)),
    ]
    for write, arguments in pictures:
        write(path, *arguments, {1: "1 cell"}, title="")
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
        for colour in ((255, 25, 25), (25, 25, 255)):
            assert (pixels == colour).all(-1).sum() > 5000


def test_a_report_shows_cases_in_colour(local_run, folder):
    """Those of the files, though each channel was normalised."""
    (case, *_) = read_shown_cases(local_run).cases
    pixels = tifffile.imread(folder / f"{case.case_id}_image.tif").astype(np.float32)
    shown = case.planes[0].image
    assert shown.shape == (64, 64, 3)
    expected = in_8_bits([pixels])[0]
    assert np.abs(shown.astype(int) - expected).max() <= 1


def black(shape):
    return LazyImage(
        shape=shape,
        channels=1,
        read=lambda start, stop: np.zeros((*np.subtract(stop, start), 1), np.float32),
        by_parts=True,
    )


@pytest.mark.parametrize("shape", [(1700, 40), (24, 40, 32)])
def test_an_overlay_shows_the_labels_where_they_are(shape, tmp_path):
    """In the picture the label's colour is where the label is, in any part that was read."""
    labels = np.zeros(shape, np.uint8)
    labels[tuple(slice(size // 2, size * 3 // 4) for size in shape)] = 1
    image = black(shape)
    path = tmp_path / "overlay.png"
    write_overlay(path, image, lambda first, last: labels[first:last], {1: "1 cell"}, title="x")
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    green = np.abs(pixels - (0, 0xDC, 0xB5)).sum(-1) < 20
    # Outlines in the upper part of the picture; the legend is at its end.
    assert green[: len(green) * 9 // 10].any()


def test_one_missing_and_one_damaged_mask_do_not_stop_the_scoring_of_the_others(
    local_run, others, tmp_path, capsys
):
    shutil.copy(others / "other0_image.tif", others / "other2_image.tif")
    shutil.copy(others / "other0_image.tif", others / "other3_image.tif")
    tifffile.imwrite(others / "other3_mask.tif", np.eye(64, dtype=np.uint8) * 4 + 3)
    command = ["evaluate", str(local_run), str(others), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "--on_bad_sample skip" in capsys.readouterr().err
    assert main([*command, "--on_bad_sample", "skip", "--no-overlay"]) == 0
    said = capsys.readouterr().err
    assert "warning: left out: other2_image.tif: " in said
    assert "warning: left out: other3_mask.tif: " in said
    assert [row["case"] for row in rows(tmp_path / "out/scores.csv")] == ["other0", "other1"]


@pytest.mark.parametrize(
    ("command", "picture"),
    [("predict", "NAME_overlay.png"), ("evaluate", "errors/NAME.png")],
)
def test_the_help_says_which_pictures_there_are(command, picture, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert picture in said
    assert ("_overlay" in said) == (command == "predict")


@pytest.mark.parametrize(
    ("shape", "in_dots"),
    [
        ((250, 512), (1620 * 250 / 512, 1620)),
        ((512, 250), (1620, 1620 * 250 / 512)),
        # Larger than the usual width: a dot for each pixel.
        ((1000, 2048), (1000, 2048)),
    ],
)
def test_a_picture_has_the_shape_of_its_image(shape, in_dots, tmp_path):
    image = black(shape)
    path = tmp_path / "overlay.png"
    write_overlay(path, image, lambda *_: np.zeros(shape, np.uint8), {1: "1"}, title="x")
    with Image.open(path) as picture:
        is_black = np.asarray(picture.convert("L")) < 10
    # Titles are small; the image is the rest that is black.
    rows, columns = (is_black.mean(1 - axis) > 0.3 for axis in (0, 1))
    assert (rows.sum(), columns.sum()) == pytest.approx(in_dots, rel=0.1)
    assert rows.mean() > 0.75
