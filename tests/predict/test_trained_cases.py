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
from tfunet.prediction.trained_cases import trained_on
from tfunet.single_device import SingleDevice


def options_of(root):
    return {"root": str(root), "images": "{case}_image.tif", "masks": "{case}_mask.tif"}


def changed(place, **keys):
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **keys}))
    return place


@pytest.fixture
def tuned(local_run, folder, tmp_path):
    """A run on other cases that began with the weights of another one."""
    for name in ("new0", "new1"):
        for kind in ("image", "mask"):
            (tmp_path / "new").mkdir(exist_ok=True)
            shutil.copy(folder / f"case0_{kind}.tif", tmp_path / f"new/{name}_{kind}.tif")
    config = RunConfig(
        model_options={"filters": 2, "levels": 2, "normalization": "none"},
        data="folder",
        data_options=options_of(tmp_path / "new"),
        patch=(32, 32),
        patches_per_case=4,
        epochs=1,
        initial_weights=str(local_run / "model.keras"),
        cache_dir=str(tmp_path / "cache"),
    )
    run(config, SingleDevice(Launch()), tmp_path / "tuned")
    return tmp_path / "tuned"


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
