"""Cases that a run, or the one whose weights it began with, was trained on."""

import json
import shutil

import pytest
from test_evaluate import rows

from tfunet.backend import Launch
from tfunet.cli import main
from tfunet.config.run import RunConfig
from tfunet.data.source import open_source
from tfunet.loop import run
from tfunet.prediction.trained_cases import seen_before, trained_on
from tfunet.single_device import SingleDevice


def options_of(root):
    return {"root": str(root), "images": "{case}_image.tif", "masks": "{case}_mask.tif"}


def changed(place, **keys):
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **keys}))
    return place


def tune(first, root, tmp_path, **keys):
    """Train on the cases of a folder, beginning with the weights of another run."""
    config = RunConfig(
        model_options={"filters": 2, "levels": 2, "normalization": "none"},
        data="folder",
        data_options=options_of(root),
        patch=(32, 32),
        patches_per_case=4,
        epochs=1,
        initial_weights=str(first / "model.keras"),
        cache_dir=str(tmp_path / "cache"),
        **keys,
    )
    run(config, SingleDevice(Launch()), tmp_path / "tuned")
    return tmp_path / "tuned"


@pytest.fixture
def tuned(local_run, folder, tmp_path):
    """A run on other cases that began with the weights of another one."""
    for name in ("new0", "new1"):
        for kind in ("image", "mask"):
            (tmp_path / "new").mkdir(exist_ok=True)
            shutil.copy(folder / f"case0_{kind}.tif", tmp_path / f"new/{name}_{kind}.tif")
    return tune(local_run, tmp_path / "new", tmp_path)


def test_validation_cases_that_the_weights_were_trained_on_are_told_before_training(
    local_run, folder, tmp_path, capsys
):
    sides = json.loads((local_run / "split.json").read_text())
    held_out = [*sides["validation"], sides["train"][0]]
    tune(local_run, folder, tmp_path, validation_groups=tuple(held_out))
    lines = capsys.readouterr().out.splitlines()
    (told,) = [number for number, line in enumerate(lines) if "whose weights this run" in line]
    assert lines[told] == (
        f"warning: 1 of 2 validation cases was a training case of {local_run}, whose weights this "
        f"run begins with, so its score is too good: {sides['train'][0]}. Hold out the cases that "
        "were held out there."
    )
    (begun,) = [number for number, line in enumerate(lines) if line.startswith("Initial weights")]
    assert told < begun


def test_only_validation_cases_that_were_trained_on_are_told(local_run, folder, tmp_path, capsys):
    sides = json.loads((local_run / "split.json").read_text())
    source = open_source("folder", options_of(folder))
    trained, held_out = (
        [source.case_ids.index(name) for name in sides[side]] for side in ("train", "validation")
    )
    began = RunConfig(initial_weights=str(local_run / "model.keras"))
    assert seen_before(began, source, held_out) == ""
    told = seen_before(began, source, trained)
    assert told.startswith("warning: 2 of 2 validation cases were training cases of ")
    assert f": {', '.join(sides['train'])}. Hold out" in told
    # The whole network from the file; no weights; weights without a record.
    assert seen_before(RunConfig(model=began.initial_weights), source, trained) == told
    assert seen_before(RunConfig(), source, trained) == ""
    alone = tmp_path / "alone/model.keras"
    alone.parent.mkdir()
    shutil.copy(local_run / "model.keras", alone)
    assert seen_before(RunConfig(initial_weights=str(alone)), source, trained) == ""
    # A damaged record never ends a training.
    (alone.parent / "config.json").write_text("{")
    told = seen_before(RunConfig(initial_weights=str(alone)), source, trained)
    assert told.startswith("warning: cases that the initial weights were trained on are not rec")
    assert capsys.readouterr().err == ""


def test_cases_of_the_run_whose_weights_it_began_with_are_left_out(
    tuned, local_run, folder, tmp_path, capsys
):
    trained = json.loads((local_run / "split.json").read_text())["train"]
    command = ["evaluate", str(tuned), str(folder), "--no-overlay", "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "2 cases are left out: the network was trained on them (--training_cases). 2 of" in said
    assert f"training cases of {local_run}, whose weights it began with" in said
    assert {row["case"] for row in rows(tmp_path / "out/scores.csv")}.isdisjoint(trained)
    assert main([*command, "--training_cases"]) == 0
    assert f"of these cases. 2 of them were training cases of {local_run}" in (
        capsys.readouterr().err
    )


def test_the_chain_of_weights_is_followed_however_data_are_described(
    local_run, folder, tmp_path, capsys
):
    trained = json.loads((local_run / "split.json").read_text())["train"]
    runs = [tmp_path / name for name in ("second", "third")]
    weights = local_run / "model.keras"
    for place, key in zip(runs, ("model", "initial_weights"), strict=True):
        shutil.copytree(local_run, place)
        changed(place, data_options={"root": str(tmp_path)}, **{key: str(weights)})
        (place / "split.json").write_text('{"train": [], "validation": [], "left_out": []}')
        data = json.loads((place / "data.json").read_text())
        (place / "data.json").write_text(json.dumps({**data, "training_files": []}))
        weights = place / "model.keras"
    lines = [f"{name},{folder}/{name}_image.tif,{folder}/{name}_mask.tif" for name in trained]
    (tmp_path / "t.csv").write_text("\n".join(["id,image,mask", *lines]))
    table = open_source("csv", {"file": str(tmp_path / "t.csv"), "key": "id"})
    for source in (table, open_source("folder", options_of(folder))):
        found = trained_on(runs[-1], source)
        assert {source.case_ids[index] for index in found} == set(trained)
        assert set(found.values()) == {local_run}
    # Runs that name each other, and weights that are gone.
    changed(runs[0], model="unet", initial_weights=str(weights))
    assert trained_on(runs[-1], table) == {}
    assert capsys.readouterr().err == ""
    changed(runs[0], initial_weights="gone.keras")
    assert trained_on(runs[-1], table) == {}
    assert "the weights gone.keras, which are not there any more" in capsys.readouterr().err
