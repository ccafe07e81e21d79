"""`tfunet evaluate` of data sets that are made in code."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from tfunet import exit_codes
from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.data.source import made_by, open_source
from tfunet.loop import run
from tfunet.prediction.code_images import write_image
from tfunet.prediction.network import load_network
from tfunet.prediction.scored_data import opened
from tfunet.record import RunFolder
from tfunet.single_device import SingleDevice


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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


def test_a_description_may_have_options_that_are_named_as_keys_of_runs(
    local_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        OWN_DATA.replace("def open(", "def open(seed=0, steps=0, root='', ")
    )
    (tmp_path / "described.toml").write_text("data = 'own.py:open'\nseed = 3\nfirst = 70\n")
    (tmp_path / "run.toml").write_text("data = 'own.py:open'\nepochs = 2\n")
    network = load_network(RunFolder(local_run))
    sources = [opened(name, network, skip_bad=False) for name in ("described.toml", "run.toml")]
    assert [source.case_ids[0] for source in sources] == ["case 70", "case 0"]


def test_the_same_cases_are_known_however_their_folder_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ways = [("m.py:open", "d"), ("./m.py:open", "./d"), (f"{tmp_path}/m.py:open", f"{tmp_path}/d")]
    assert len({made_by(data, {"root": root, "n": 1}) for data, root in ways}) == 1
    assert made_by("m.py:open", {"root": "e"}) != made_by("m.py:open", {"root": "d"})
    assert made_by("cells", {"num_cases": 6}) == made_by("cells", {"num_cases": 12.0})


def test_a_label_to_ignore_is_none_of_the_others(tmp_path):
    cells = open_source("cells", {"num_cases": 4, "size": 32})
    with pytest.raises(ValueError, match="ignored=1, which is one of its 2 labels"):
        replace(cells, ignored=1)


def test_a_volume_of_one_plane_is_refused_by_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"case 3 is a volume of one plane \(1, 8, 9\), which"):
        write_image(np.zeros((1, 8, 9, 2), np.float32), tmp_path, "case 3")
    for shape in ((2, 8, 9, 1), (1, 9, 1)):
        assert write_image(np.zeros(shape, np.float32), tmp_path, "case 4").exists()
