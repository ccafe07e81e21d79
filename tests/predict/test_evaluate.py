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

from tfunet.bench.records.shown_cases import read_shown_cases
from tfunet.cli import main
from tfunet.config.case_metrics import case_metrics
from tfunet.data.shown_planes import in_8_bits
from tfunet.learning.case_metrics import measure
from tfunet.learning.dataset_scores import COUNTS
from tfunet.learning.scores import dice, iou
from tfunet.prediction.case_pictures import spread_ranks
from tfunet.prediction.evaluate import evaluate
from tfunet.prediction.options import Options
from tfunet.prediction.score_tables import group_facts, group_rows


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


def test_a_report_shows_cases_in_colour(local_run, folder):
    """The colours are those of the files, though each channel was normalised."""
    (case, *_) = read_shown_cases(local_run).cases
    pixels = tifffile.imread(folder / f"{case.case_id}_image.tif").astype(np.float32)
    shown = case.planes[0].image
    assert shown.shape == (64, 64, 3)
    expected = in_8_bits([pixels])[0]
    assert np.abs(shown.astype(int) - expected).max() <= 1


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
