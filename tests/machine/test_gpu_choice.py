"""Processes take the GPUs that they were allotted, and no two of a host the same one."""

from contextlib import nullcontext

import pytest

from tf_native.replicas import check_collective, first_gpu
from tfunet.backend import Launch

FOUR = ("a:1", "a:2", "b:1", "b:2")


@pytest.mark.parametrize(
    ("hosts", "replicas", "num_gpus", "first"),
    [
        (FOUR, 4, 2, [0, 1, 0, 1]),  # Both of a host see its two GPUs.
        (FOUR, 4, 1, [0, 0, 0, 0]),  # Each sees its own only.
        (FOUR, 8, 4, [0, 2, 0, 2]),  # Two replicas a process.
        (("a:1", "a:2"), 2, 8, [0, 1]),
        (("a:1", "b:1", "a:2"), 3, 2, [0, 0, 1]),  # Placed in turn.
        (("localhost:0",), 2, 2, [0]),
    ],
)
def test_processes_of_a_host_take_different_gpus(hosts, replicas, num_gpus, first):
    launches = [
        Launch(process_index=i, process_count=len(hosts), num_replicas=replicas, addresses=hosts)
        for i in range(len(hosts))
    ]
    assert [first_gpu(launch, num_gpus) for launch in launches] == first


@pytest.mark.parametrize(
    ("collective", "num_gpus", "is_alone", "is_refused"),
    [
        ("nccl", 1, True, True),
        ("nccl", 2, True, False),
        ("nccl", 0, True, False),  # On CPUs TensorFlow takes the ring.
        ("nccl", 1, False, False),  # Each process may have been given its own.
        ("auto", 1, True, False),
        ("ring", 1, True, False),
    ],
)
def test_nccl_is_refused_where_processes_share_a_gpu(collective, num_gpus, is_alone, is_refused):
    launch = Launch(process_count=2, num_replicas=2, addresses=("a:1", "a:2"))
    with pytest.raises(ValueError, match="share 1") if is_refused else nullcontext():
        check_collective(collective, launch, num_gpus, is_alone=is_alone)
