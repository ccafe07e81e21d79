"""Which sample is seen when and by which replica: integer arithmetic. Imports no TensorFlow.

The order of an epoch is a permutation of its samples. Step k of all replicas together is
positions k*G..(k+1)*G-1 of it, G the global batch, and replica r takes the r-th part of these.
So the samples of a step depend neither on the number of replicas nor on that of processes. The
tail that fills no step is dropped; it differs from epoch to epoch.
"""


def steps_per_epoch(num_samples: int, global_batch: int) -> int:
    """Return the optimizer steps of one epoch.

    Raises:
        ValueError: There are fewer samples than one step needs.
    """
    if global_batch < 1:
        raise ValueError(f"global_batch must be at least 1, got {global_batch}.")
    if num_samples < global_batch:
        raise ValueError(
            f"An epoch has {num_samples} training samples, fewer than global_batch="
            f"{global_batch} takes in one step. Use fewer replicas, a smaller batch, more "
            "patches_per_case or a smaller validation_share."
        )
    return num_samples // global_batch


def epoch_and_step(global_step: int, steps: int) -> tuple[int, int]:
    """Return the epoch, from 0, and the step in it, of an optimizer step counted over the run."""
    return global_step // steps, global_step % steps


def epoch_spans(first_step: int, last_step: int, steps: int) -> list[tuple[int, int, int]]:
    """Return (epoch, first step in it, one past its last) for steps first_step..last_step-1."""
    epochs = range(first_step // steps, -(-last_step // steps))
    return [
        (epoch, max(first_step - epoch * steps, 0), min(last_step - epoch * steps, steps))
        for epoch in epochs
        if last_step > first_step
    ]


def replica_positions(step: int, replica: int, *, replica_batch: int, num_replicas: int) -> range:
    """Return the positions in the epoch's order that one replica takes at a step of it."""
    first = (step * num_replicas + replica) * replica_batch
    return range(first, first + replica_batch)


def fed_position(element: int, replicas: range, *, replica_batch: int, num_replicas: int) -> int:
    """Return the position in the epoch's order of a sample that one process feeds.

    A process feeds the batches of its own `replicas` (adjacent ones) in turn, step by step;
    `element` counts its samples from the epoch's first step. It may be an integer tensor.
    """
    fed = len(replicas) * replica_batch
    step = element // fed
    return step * (num_replicas * replica_batch) + replicas.start * replica_batch + element % fed
