"""On every backend, the weights that training ends with are scored, the same on all replicas."""

import pytest
import runs
from kept_model import check_record
from paths import SUPPORT

ROUNDING = {"name": f"{SUPPORT / 'rounding.py'}:Rounding", "when": "on_train_end"}
pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        ("mirrored", {"num_replicas": 2}),
        ("multiworker", {"split": [2, 1]}),
        ("horovod", {"num_replicas": 2}),
    ],
)
def test_record_is_of_averaged_and_rounded_weights(settings, backend, tmp_path):
    run = runs.train(
        tmp_path / "run",
        backend=backend,
        **settings,
        epochs=1,
        optimizer_options={"use_ema": True, "ema_momentum": 0.5},
        callbacks=[ROUNDING, {"name": "SwapEMAWeights"}],
    )
    assert run.exit_code == 0, run.output
    assert "Scored again: " in run.output
    check_record(run.folder)
