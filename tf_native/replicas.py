"""What MirroredStrategy and MultiWorkerMirroredStrategy have in common."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfunet.backend import Launch

AnyStrategy = TypeVar("AnyStrategy", bound=type[tf.distribute.Strategy])
COLLECTIVES = ("auto", "ring", "nccl")


def unscaled(strategy_class: AnyStrategy) -> AnyStrategy:
    """Return a subclass whose replicas believe that they are alone.

    Keras divides a loss by `num_replicas_in_sync` and counts on a sum of gradients; a train step
    of the user's own often does not, and would take steps that are too large by the number of
    replicas. With 1 here nothing divides, and the mean over replicas is right for both.
    """

    class Unscaled(strategy_class):  # type: ignore[misc, valid-type]  # a class known at run time
        num_replicas_in_sync = 1

    return Unscaled  # type: ignore[return-value]  # a subclass of what came


def feed(pipeline: Callable[[range], tf.data.Dataset], local: range) -> tf.data.Dataset:
    """Return the batches of a step of all local replicas as one element, for `run`.

    Not the strategy's own distributed dataset: its iterators have a thread that tunes them, which
    sleeps for up to a minute, and one that is dropped waits for it.
    """
    dataset = pipeline(local)
    return dataset if len(local) == 1 else dataset.batch(len(local), drop_remainder=True)


def run(
    strategy: tf.distribute.Strategy,
    step: Callable[..., Any],
    arguments: Sequence[Any],
    local: range,
) -> Any:
    """Run `step` on each local replica; results get a leading axis of local replicas.

    `arguments` are elements of `feed`, of which each replica gets its part.
    """

    def part(context: tf.distribute.experimental.ValueContext) -> Any:
        if len(local) == 1:
            return tuple(arguments)
        index = context.replica_id_in_sync_group - local.start
        with tf.device("CPU:0"):  # Each replica's device fetches its part, and no other.
            return tf.nest.map_structure(lambda value: value[index], tuple(arguments))

    parts = strategy.experimental_distribute_values_from_function(part) if arguments else ()

    def stacked(value: Any) -> tf.Tensor:
        return tf.stack(strategy.experimental_local_results(value))

    return tf.nest.map_structure(stacked, strategy.run(step, args=parts))


def average(
    gradients: Sequence[tf.Tensor], options: tf.distribute.experimental.CommunicationOptions
) -> list[tf.Tensor]:
    """Return the mean over replicas, from inside a replica."""
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.MEAN, list(gradients), options=options))


def communication_options(
    collective: str, bytes_per_pack: int
) -> tf.distribute.experimental.CommunicationOptions:
    """Return TensorFlow's options for the tunables that users sweep."""
    if collective not in COLLECTIVES:
        raise ValueError(f"Unknown collective {collective!r}. Known: {', '.join(COLLECTIVES)}.")
    if bytes_per_pack < 0:
        raise ValueError(f"bytes_per_pack must not be negative, got {bytes_per_pack}.")
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=bytes_per_pack,
        implementation=tf.distribute.experimental.CommunicationImplementation[collective.upper()],
    )


def first_gpu(launch: Launch, num_gpus: int) -> int:
    """Return the first of this process's GPUs among the `num_gpus` that it sees.

    Processes of one host that see the same GPUs take different ones; where they are too few for
    all, each process was allotted its own and sees no others.
    """
    own = len(launch.local_replicas)
    index, count = launch.place_on_host
    return index * own if num_gpus >= count * own else 0


def take_devices(launch: Launch) -> list[str]:
    """Return this process's devices, one a replica: GPUs, or logical CPUs where there are none."""
    replicas = launch.local_replicas
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if len(gpus) < len(replicas):
            raise ValueError(
                f"{len(replicas)} replicas in a process need as many GPUs; it sees {len(gpus)}. "
                "Lower num_replicas, or hide the GPUs with CUDA_VISIBLE_DEVICES= to use the CPU."
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
