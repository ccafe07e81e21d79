"""Processes take the GPUs that they were allotted, and no two of a host the same one."""

import pytest

from tf_native.replicas import first_gpu
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
    assert [first_gpu(one, num_gpus) for one in launches] == first
