"""What MirroredStrategy and MultiWorkerMirroredStrategy have in common."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfunet.backend import Launch
from tfunet.config.refs import check_known

AnyStrategy = TypeVar("AnyStrategy", bound=type[tf.distribute.Strategy])
COLLECTIVES = ("auto", "ring", "nccl")


def unscaled(strategy_class: AnyStrategy) -> AnyStrategy:
    """Return a subclass that tells each replica that it is the only one.

    Keras divides a loss by `num_replicas_in_sync` and expects gradients to be summed. A user's own
    train step often does not divide, so its steps would be too large by the number of replicas.
    With 1 here nothing is divided, and the mean over replicas is right for both.
    """

    class Unscaled(strategy_class):  # type: ignore[misc, valid-type]  # a class known at run time
        num_replicas_in_sync = 1

    return Unscaled  # type: ignore[return-value]  # a subclass of what came


def feed(pipeline: Callable[[range], tf.data.Dataset], local: range) -> tf.data.Dataset:
    """Return the batches of all local replicas, those of a step as one element, for `run`.

    The strategy's own distributed dataset is not used. Its iterators have a tuning thread that
    sleeps for up to a minute, and deleting such an iterator waits for the thread.
    """
    dataset = pipeline(local)
    return dataset if len(local) == 1 else dataset.batch(len(local), drop_remainder=True)


def run(
    strategy: tf.distribute.Strategy,
    step: Callable[..., Any],
    arguments: Sequence[Any],
    local: range,
) -> Any:
    """Run `step` on each local replica, and stack the results along a leading axis.

    `arguments` are elements of `feed`. Each replica gets its own part of them.
    """

    def part(context: tf.distribute.experimental.ValueContext) -> Any:
        if len(local) == 1:
            return tuple(arguments)
        index = context.replica_id_in_sync_group - local.start
        with tf.device("CPU:0"):  # So that each device fetches only its replica's part.
            return tf.nest.map_structure(lambda value: value[index], tuple(arguments))

    parts = strategy.experimental_distribute_values_from_function(part) if arguments else ()

    def stacked(value: Any) -> tf.Tensor:
        return tf.stack(strategy.experimental_local_results(value))

    return tf.nest.map_structure(stacked, strategy.run(step, args=parts))


def average(
    gradients: Sequence[tf.Tensor], options: tf.distribute.experimental.CommunicationOptions
) -> list[tf.Tensor]:
    """Return the means over all replicas. Called inside a replica."""
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(gradients), options=options))


def communication_options(
    collective: str, bytes_per_pack: int
) -> tf.distribute.experimental.CommunicationOptions:
    """Return TensorFlow's options for a backend's options."""
    check_known("collective", collective, COLLECTIVES)
    if bytes_per_pack < 0:
        raise ValueError(f"bytes_per_pack must not be negative, got {bytes_per_pack}.")
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=bytes_per_pack,
        implementation=tf.distribute.experimental.CommunicationImplementation[collective.upper()],
    )


def first_gpu(launch: Launch, num_gpus: int) -> int:
    """Return the index of this process's first GPU among the `num_gpus` that it sees.

    Processes of a host that see the same GPUs take different ones. If a process sees too few GPUs
    for all processes, it sees only its own, and takes them from the first.
    """
    num_replicas = len(launch.local_replicas)
    index, count = launch.place_on_host
    return index * num_replicas if num_gpus >= count * num_replicas else 0


def take_devices(launch: Launch) -> list[str]:
    """Return a device for each local replica: GPUs, or logical CPUs if there is no GPU."""
    replicas = launch.local_replicas
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if len(gpus) < len(replicas):
            raise ValueError(
                f"{len(replicas)} replicas in a process need as many GPUs, but it sees "
                f"{len(gpus)}. Lower num_replicas, or hide the GPUs with CUDA_VISIBLE_DEVICES= to "
                "use the CPU."
            )
        first = first_gpu(launch, len(gpus))
        chosen = gpus[first : first + len(replicas)]
        tf.config.set_visible_devices(chosen, "GPU")
        for gpu in chosen:
            tf.config.experimental.set_memory_growth(gpu, True)
        return [f"GPU:{index}" for index in range(len(chosen))]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(replicas) > 1:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in replicas]
        tf.config.set_logical_device_configuration(cpu, logical)
    return [f"CPU:{index}" for index in range(len(replicas))]
