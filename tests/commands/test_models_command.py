"""`tfunet models show`: plans of stages and tiles, and what cannot be planned."""

import re

import pytest

from tfunet import exit_codes
from tfunet.cli import main

SMALL = ["--shape", "32,32,1", "--option", "filters=4", "--option", "levels=2"]


def show(*words):
    return main(["models", "show", *map(str, words)])


def test_stages_are_printed_with_their_schedule_and_drawn(capsys, tmp_path):
    picture = tmp_path / "schedule.svg"
    assert show("unet", *SMALL, "--stages", 3, "--micro_batches", 4, "--out", picture) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "unet in 3 stages, micro_batches 4, schedule 1f1b"
    assert "batch 4. Times are predicted for v100-nvlink2" in lines[1]
    header = lines.index(next(line for line in lines if line.startswith("device ")))
    assert [line[0] for line in lines[header + 1 : header + 4]] == ["1", "2", "3"]
    assert any(line.startswith("balance   the slowest device takes 1.") for line in lines)
    assert any("33.3% with equal stages" in line for line in lines)  # (3 - 1) / (4 + 3 - 1)
    table = [line.split()[0] for line in lines[lines.index("") :] if line]
    assert {"gpipe", "1f1b", "v"} <= set(table)
    drawing = [line for line in lines if line.startswith(("  1  ", "  2  ", "  3  "))]
    assert len(drawing) == 3
    assert all(set(line[5:]) <= set("0123abcd.") for line in drawing)
    assert "<svg" in picture.read_text()


def test_schedule_v_has_two_chunks_a_device(capsys):
    assert show("unet", *SMALL, "--stages", 2, "--schedule", "v", "--memory", "1GiB") == 0
    lines = capsys.readouterr().out.splitlines()
    header = lines.index(next(line for line in lines if line.startswith("device ")))
    assert [line[0] for line in lines[header + 1 : header + 5]] == ["1", "2", "2", "1"]


def test_recomputed_stages_take_less_memory_and_more_time(capsys):
    larger = ["--shape", "256,256,1", *SMALL[2:]]
    steps, peaks = [], []
    for more in ([], ["--recompute"]):
        assert show("unet", *larger, "--stages", 2, "--schedule", "gpipe", *more) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith("schedule gpipe, recomputed" if more else "schedule gpipe")
        (row,) = (line.split() for line in lines if line.startswith("gpipe"))
        steps.append(float(row[1]))
        peaks.append(float(row[3]))
    assert any(line.startswith("v         recompute is not built for v") for line in lines)
    assert steps[1] > 1.15 * steps[0]
    assert peaks[1] < peaks[0]


def test_tiles_are_printed_with_the_best(capsys):
    words = ["--image", "200,100", "--memory", "4MiB"]
    assert show("unet", *SMALL, "--option", "normalization='none'", *words) == 0
    printed = capsys.readouterr().out
    assert "halo             23 x 23 pixels" in printed
    assert "alignment        4 x 4" in printed
    assert printed.count("best") == 1
    best = next(line for line in printed.splitlines() if line.startswith("Best: "))
    assert re.search(r"train with tiling = \[\d+, \d+\]\.$", best)
    assert "Not exact" not in printed
    assert show("unet", *SMALL, *words) == 0
    assert "Not exact: down0_0_normalization and" in capsys.readouterr().out
    # Sizes that the network does not pool evenly.
    assert show("unet", *SMALL, "--image", "199,100", "--memory", "4MiB") == 0
    assert "and patch = [200, 100]." in capsys.readouterr().out
    assert show("unet", *SMALL, "--image", "200,100", "--memory", "1KiB") == 0
    assert "alone take" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["unet", *SMALL, "--stages", 400], "can be cut into at most 37 stages"),
        (["unet", *SMALL, "--stages", 0], "at least 1 stage"),
        (["unet", *SMALL, "--stages", 2, "--memory", "1KiB"], "the largest needs"),
        (
            ["unet", *SMALL, "--image", "100,100,100", "--memory", "1GiB"],
            "has 2 spatial sizes, got 3",
        ),
        (["unet", *SMALL, "--image", "0,100", "--memory", "1GiB"], "at least 1, got 0,100"),
        (["ours.py:build", "--stages", 2], "give --shape"),
        (["unet", "--stages", 2, "--image", "9,9"], "not both"),
        (["unet", "--image", "100,100"], "--image needs --memory"),
        (["unet", "--memory", "1GiB"], "give --stages or --image"),
        (["unet", "--micro_batches", 4], "--micro_batches is for a pipeline"),
        (["unet", "--schedule", "v"], "--schedule is for a pipeline"),
        (["unet", "--stages", 2, "--batch", 5], "batch of 5 cannot be cut into 8 micro-batches"),
        (["unet", "--stages", 2, "--micro_batches", 0], "at least 1 micro-batch"),
        (["unet", "--recompute"], "--recompute is for a pipeline"),
        (["unet", *SMALL, "--stages", 2, "--schedule", "v", "--recompute"], "not built for v"),
        (["unet", "--stages", 2, "--schedule", "1f"], "Unknown schedule '1f'"),
        (["unet", "--stages", 2, "--device", "v10"], "Unknown device 'v10'"),
        (["unet", "--stages", 2, "--memory", "much"], "--memory must be an amount"),
        (["unet", "--stages", 2, "--link", "0"], "at least 1 byte a second"),
        (["unet", "--stages", 2, "--measure"], "give --link"),
        (["unet", "--stages", 2, "--measure", "--device", "gh200"], "or --device, not both"),
        (["unet", "--image", "9,9", "--memory", "1GiB", "--batch", 2], "leave out --batch"),
    ],
)
def test_what_cannot_be_planned_is_refused(capsys, words, message):
    assert show(*words) == exit_codes.BAD_INPUT
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


def test_a_layer_whose_halo_is_not_known_is_named(capsys, tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "import keras\n"
        "def build(*, image_shape, num_classes):\n"
        "    image = keras.Input(image_shape)\n"
        "    turned = keras.layers.Permute((2, 1, 3), name='turn')(image)\n"
        "    return keras.Model(image, keras.layers.Conv2D(num_classes, 1)(turned))\n"
    )
    words = [f"{file}:build", "--shape", "16,16,1", "--image", "64,64", "--memory", "1GiB"]
    assert show(*words) == exit_codes.BAD_INPUT
    assert "halo of" in (error := capsys.readouterr().err)
    assert "'turn' of type Permute" in error
    # Stages need no halo.
    assert show(f"{file}:build", "--shape", "16,16,1", "--stages", 2) == exit_codes.OK
