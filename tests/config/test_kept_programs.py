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
    # A changed file that goes on in the same folder.
    (tmp_path / "mynet.py").write_text("# changed\n")
    folder, hashes = kept(tmp_path, model="mynet.py:build")
    assert (folder / "mynet.py").read_text() == "# changed\n"
    assert hashes == {"mynet.py": sha256(tmp_path / "mynet.py")}


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
