"""A damaged record is refused in one line, before TensorFlow is imported."""

import shutil

import pytest

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.prediction.best_file import check_run
from tfunet.record import RunFolder


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def flipped(path):
    """Change a byte in the middle of the weights: the archive's directory is whole."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "config.json").unlink(), "it has no config.json"),
        (lambda run: cut(run / "config.json", 100), "config.json cannot be used"),
        (lambda run: (run / "result.json").unlink(), "is not finished: it has no result.json"),
        (lambda run: (run / "model.keras").unlink(), "no model.keras. Run the command"),
        (lambda run: cut(run / "model.keras", 0), r"model.keras is damaged \(0 bytes\)"),
        (lambda run: cut(run / "model.keras", 3000), r"damaged \(3000 bytes\).*Copy it again"),
        (lambda run: (run / "data.json").unlink(), "has no data.json"),
        (lambda run: cut(run / "data.json", 30), "data.json cannot be used"),
    ],
)
def test_a_damaged_run_is_refused(local_run, tmp_path, damage, words):
    run = tmp_path / "run"
    shutil.copytree(local_run, run)
    check_run(run)
    damage(run)
    with pytest.raises(ValueError, match=words):
        check_run(run)
    with pytest.raises(ValueError, match=words):
        check_run(local_run, ensemble=[run])


def test_other_weights_are_named_where_those_of_the_last_epoch_are_damaged(local_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(local_run, run)
    shutil.copy(run / "model.keras", run / "best.keras")
    cut(run / "model.keras", 0)
    with pytest.raises(ValueError, match=r"or use another file of it: --weights best\.keras"):
        check_run(run)
    check_run(run, "best.keras")
    (run / "own.weights.h5").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"own\.weights\.h5 is damaged"):
        check_run(run, "own.weights.h5")


def test_weights_with_a_wrong_byte_are_told_when_they_are_read(local_run, folder, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(local_run, run)
    flipped(run / "model.keras")
    assert RunFolder(run).model_path() == run / "model.keras"
    command = ["predict", str(run), str(folder / "scene.tif"), "--out", str(tmp_path / "out")]
    assert main(command) == exit_codes.BAD_INPUT
    assert f"error: {run}/model.keras is damaged" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
