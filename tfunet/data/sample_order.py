"""Which samples each step and each replica takes: integer arithmetic. Imports no TensorFlow.

The order of an epoch is a permutation of its samples, cut into global batches, and these into the
batches of the replicas (here 2 replicas with replica_batch=2):

    position   0  1  2  3 |  4  5  6  7 | 8 9
    step            0     |       1     | dropped: too few for a step
    replica     0  |  1   |   0  |  1   |

So the samples of a step depend neither on the number of replicas nor on that of processes. The
dropped samples differ from epoch to epoch.
"""


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Return the number of optimizer steps in one epoch.

    Raises:
        ValueError: An epoch has fewer samples than one step needs.
    """
    if global_batch < 1:
        raise ValueError(f"global_batch must be at least 1, got {global_batch}.")
    if num_samples < global_batch:
        raise ValueError(
            f"An epoch has {num_samples} training samples, fewer than the global_batch="
            f"{global_batch} of one step. Use fewer replicas, a smaller batch, more "
            "patches_per_case or a smaller validation_share."
        )
    return num_samples // global_batch


def epoch_spans(first_step: int, last_step: int, steps: int) -> list[tuple[int, int, int]]:
    """Return (epoch, first step in it, one past its last) for steps first_step..last_step-1."""
    epochs = range(first_step // steps, -(-last_step // steps))
    return [
        (epoch, max(first_step - epoch * steps, 0), min(last_step - epoch * steps, steps))
        for epoch in epochs
        if last_step > first_step
    ]


def fed_position(element: int, replicas: range, *, replica_batch: int, num_replicas: int) -> int:
    """Return the position in the epoch's order of one sample that a process feeds.

    A process feeds the batches of its adjacent `replicas` in turn, step by step. `element` counts
    its samples from the epoch's first step, and may be an integer tensor.
    """
    fed = len(replicas) * replica_batch
    step = element // fed
    return step * (num_replicas * replica_batch) + replicas.start * replica_batch + element % fed
