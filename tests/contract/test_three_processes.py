"""Metrics of whole cases on three processes, which cannot share the cases equally."""

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


@pytest.mark.multiprocess
def test_every_metric_has_the_bytes_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    monkeypatch.setenv("TFUNET_CACHE", str(tmp_path / "cache"))
    words = [word for key, value in COMMON.items() for word in (f"--{key}", str(value))]
    three = ["--backend", "multiworker", "--num_replicas", "3", "--share_cores", "true"]
    for name, more in (("one", ["--backend", "single"]), ("three", three)):
        assert main(["train", *words, *more, "--out", str(tmp_path / name)]) == exit_codes.OK
    one, other = ((tmp_path / name / "cases.csv").read_text() for name in ("one", "three"))
    assert len(one.splitlines()) > 4
    assert one == other
