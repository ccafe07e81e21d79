"""The cap on what TensorFlow takes of a GPU's memory."""

from contextlib import nullcontext

import pytest

from tfunet.backend import Launch
from tfunet.config.run import RunConfig
from tfunet.machine.gpu_memory import _mib, cap_gpus, check_shared, check_size


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        ("1000KB", "gpu_memory must be a whole number of MiB, at least 1, got '1000KB'"),
        ("0.5", "gpu_memory must be an amount such as"),
        ("auto", "gpu_memory must be an amount such as"),
    ],
)
def test_what_tensorflow_cannot_be_told_is_refused(amount, words):
    with pytest.raises(ValueError, match=words):
        RunConfig(gpu_memory=amount)


def test_a_run_is_on_cpus_or_on_gpus():
    with pytest.raises(ValueError, match="Give one of them"):
        RunConfig(gpu_memory="16GiB", cpu_memory="1GiB")
    assert RunConfig(gpu_memory="16GiB").gpu_memory == "16GiB"


def test_a_run_on_cpus_refuses_a_cap_of_a_gpu():
    cap_gpus(None)
    with pytest.raises(ValueError, match="TensorFlow sees no GPU"):
        cap_gpus("16GiB")


def test_more_than_a_gpu_has_is_refused():
    assert [_mib(text) for text in ("81559 MiB", "[N/A]", "")] == [81559, None, None]
    check_size("79GiB", [81559])
    check_size("200GiB", [])
    with pytest.raises(ValueError, match=r"more than a GPU here has: 79\.6 GiB"):
        check_size("80GiB", [16384, 81559])


@pytest.mark.parametrize(
    ("amount", "swap", "num_gpus", "is_refused"),
    [
        (None, "auto", 1, True),
        (None, "8GiB", 1, True),
        ("16GiB", "auto", 1, False),
        (None, "auto", 2, False),
        (None, "auto", 0, False),
        (None, "none", 1, False),
    ],
)
def test_processes_that_share_a_gpu_each_have_their_part_to_swap(
    amount, swap, num_gpus, is_refused
):
    launch = Launch(process_count=2, num_replicas=2, addresses=("a:1", "a:2"))
    with pytest.raises(ValueError, match="2 replicas on 1 GPU") if is_refused else nullcontext():
        check_shared(amount, swap, launch, num_gpus)
