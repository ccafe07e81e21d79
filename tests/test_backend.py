"""What a backend cannot do is known before it is imported."""

import pytest

from tfunet.backend import check_callbacks, num_processes
from tfunet.config.run import RunConfig


def config(name, backend="horovod", stages=2, **options):
    return RunConfig(backend=backend, stages=stages, callbacks=({"name": name, **options},))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ModelCheckpoint", {"filepath": "best.keras"}),
        ("OrbaxCheckpoint", {"directory": "best"}),
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


@pytest.mark.parametrize("backend", ["mirrored", "mine.py:Backend"])
def test_stages_of_split_samples_need_a_backend_whose_devices_exchange_in_pairs(backend):
    both = {"stages": 2, "split": (2, 1)}
    with pytest.raises(ValueError, match=r"stages=2 with split=\[2, 1\] needs .* multiworker, hor"):
        num_processes(RunConfig(backend=backend, **both))
    for able in ("multiworker", "horovod"):
        assert num_processes(RunConfig(backend=able, num_replicas=2, **both)) == 8
    for fewer in ({"stages": 2}, {"split": (2, 1)}, {"stages": 2, "split": (1, 1)}):
        num_processes(RunConfig(backend=backend, **fewer))
    with pytest.raises(ValueError, match="a process for each of 4 devices, got processes=2"):
        num_processes(RunConfig(backend="multiworker", processes=2, **both))


def test_other_callbacks_stay():
    for name in ("EarlyStopping", "TensorBoard", "mine.py:ModelCheckpoint"):
        check_callbacks(config(name))
