"""Metrics of whole cases on three processes, which cannot share the cases equally."""

import json

import pytest
from paths import ROOT

from tfunet import exit_codes
from tfunet.cli import main
from tfunet.config.case_metrics import PLAIN

COMMON = {
    "data": "tumours",
    "data_options.num_cases": 8,
    "data_options.size": 24,
    "validation_share": 0.5,
    "patch": "16,16,16",
    "model_options.filters": 2,
    "model_options.levels": 1,
    "global_batch": 6,
    "patches_per_case": 6,
    "steps": 2,
    # The same network everywhere: rounding of gradients could give one voxel another label.
    "optimizer": "sgd",
    "learning_rate": 1e-12,
    "metrics": ",".join([*PLAIN, "nsd@1px"]),
}


JOURNAL = """
from pathlib import Path
import keras

class Journal(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = Path(path)

    def on_epoch_end(self, epoch, logs=None):
        with self.path.open("a") as file:
            file.write(f"{self.is_chief}\\n")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One run by itself, and one of three processes with callbacks of its own."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "mine.py").write_text(JOURNAL)
    tables = [
        {"name": f"{folder / 'mine.py'}:Journal", "path": str(folder / name), **more}
        for name, more in (("everywhere", {}), ("once", {"chief_only": True}))
    ]
    words = [word for key, value in COMMON.items() for word in (f"--{key}", str(value))]
    three = ["--backend", "multiworker", "--num_replicas", "3", "--share_cores", "true"]
    three += ["--callbacks", json.dumps(tables)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=":")
        patch.setenv("TFUNET_CACHE", str(folder / "cache"))
        for name, more in (("one", ["--backend", "single"]), ("three", three)):
            assert main(["train", *words, *more, "--out", str(folder / name)]) == exit_codes.OK
    return folder


@pytest.mark.multiprocess
def test_every_metric_has_the_bytes_of_one_process(folder):
    one, other = ((folder / name / "cases.csv").read_text() for name in ("one", "three"))
    assert len(one.splitlines()) > 4
    assert one == other


@pytest.mark.multiprocess
def test_callbacks_of_ones_own_run_everywhere_or_once(folder):
    epochs = len((folder / "one/epochs.csv").read_text().splitlines()) - 1
    lines = (folder / "everywhere").read_text().split()
    assert sorted(lines) == sorted(["True", "False", "False"] * epochs)
    assert (folder / "once").read_text().split() == ["True"] * epochs
    said = (folder / "three/log-0.txt").read_text()
    assert said.count("mine.py:Journal: runs in each of the 3 processes") == 1
