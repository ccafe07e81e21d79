"""What a backend cannot do is known before it is imported."""

import pytest

from tfunet.backend import check_callbacks
from tfunet.config.run import RunConfig


def config(name, backend="horovod", stages=2, **options):
    return RunConfig(backend=backend, stages=stages, callbacks=({"name": name, **options},))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ModelCheckpoint", {"filepath": "best.keras"}),
        ("SwapEMAWeights", {}),
        ("EarlyStopping", {"restore_best_weights": True}),
        ("TensorBoard", {"histogram_freq": 1}),
    ],
)
def test_callbacks_that_read_all_weights_are_refused_where_processes_have_stages(name, options):
    with pytest.raises(ValueError, match=f"stages=2 cannot be combined with the callback {name}"):
        check_callbacks(config(name, **options))
    # One process has all weights.
    check_callbacks(config(name, "mirrored", **options))
    check_callbacks(config(name, stages=1, **options))


def test_other_callbacks_stay():
    for name in ("EarlyStopping", "TensorBoard", "mine.py:ModelCheckpoint"):
        check_callbacks(config(name))
