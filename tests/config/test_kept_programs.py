"""A record keeps the programs of its user's own, and hashes of what it began from."""

import hashlib
import json

import pytest

from tfunet.config.run import RunConfig
from tfunet.record import RunFolder


def kept(folder, **settings):
    run = RunFolder(folder / "run")
    run.create()
    run.keep_programs(RunConfig(**settings))
    table = run.path / "programs.json"
    return run.path / "programs", json.loads(table.read_text()) if table.exists() else None


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_each_file_is_copied_once_with_its_hash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    files = ("mynet.py", "other/mynet.py")
    for file in files:
        (tmp_path / file).write_text(f"# {file} \u00e9\n")
    folder, hashes = kept(
        tmp_path,
        model="mynet.py:build",
        loss="other/mynet.py:Loss",
        callbacks=({"name": "mynet.py:Callback"},),
        optimizer="nowhere.py:make",
    )
    assert hashes == {file: sha256(tmp_path / file) for file in files}
    copies = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert copies == {
        "mynet.py": (tmp_path / files[0]).read_bytes(),
        "mynet-2.py": (tmp_path / files[1]).read_bytes(),
    }
    # A changed file of a run that begins anew in the same folder.
    (tmp_path / "mynet.py").write_text("# changed\n")
    folder, hashes = kept(tmp_path, model="mynet.py:build")
    assert (folder / "mynet.py").read_text() == "# changed\n"
    assert hashes == {"mynet.py": sha256(tmp_path / "mynet.py")}
    assert kept(tmp_path)[1] == {}


def test_a_run_that_goes_on_keeps_the_programs_that_it_began_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("a.py", "b.py", "net.keras"):
        (tmp_path / file).write_text("first")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/b.py").write_text("later")
    settings = {"model": "a.py:build", "loss": "b.py:Loss", "initial_weights": "net.keras"}
    folder, before = kept(tmp_path, **settings)
    (tmp_path / "run/checkpoint.npz").touch()
    (tmp_path / "b.py").write_text("changed")
    (tmp_path / "a.py").unlink()
    (tmp_path / "net.keras").write_text("of no more use")
    settings["callbacks"] = ({"name": "other/b.py:Callback"},)
    (line,) = RunFolder(tmp_path / "run").keep_programs(RunConfig(**settings))
    assert line.startswith("b.py is another than the one that this run began with")
    assert f"(kept: {tmp_path}/run/programs/b.py). Start a new run, or" in line
    copies = {path.name: path.read_text() for path in folder.iterdir()}
    assert copies == {"a.py": "first", "b.py": "first", "b-2.py": "later"}
    _, after = kept(tmp_path, **settings)
    assert after == {**before, "other/b.py": sha256(tmp_path / "other/b.py")}


@pytest.mark.parametrize("key", ["model", "initial_weights"])
def test_a_network_is_hashed_and_not_copied(key, tmp_path):
    (tmp_path / "net.keras").write_bytes(b"network")
    folder, hashes = kept(tmp_path, **{key: str(tmp_path / "net.keras")})
    assert hashes == {str(tmp_path / "net.keras"): sha256(tmp_path / "net.keras")}
    assert not folder.exists()


def test_a_run_without_programs_has_no_such_file(tmp_path):
    folder, hashes = kept(tmp_path)
    assert hashes is None
    assert not folder.exists()
