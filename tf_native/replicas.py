"""What MirroredStrategy and MultiWorkerMirroredStrategy have in common."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from tfunet.backend import Launch
from tfunet.config.words import check_known

AnyStrategy = TypeVar("AnyStrategy", bound=type[tf.distribute.Strategy])
COLLECTIVES = ("auto", "ring", "nccl")


class StrategyBackend:
    """The methods of a backend that are the same for both strategies.

    `start` of a subclass sets the strategy.
    """

    _strategy: tf.distribute.Strategy

    def __init__(
        self, launch: Launch, options: tf.distribute.experimental.CommunicationOptions
    ) -> None:
        self._launch = launch
        self._options = options

    def scope(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    def feed(self, pipeline: Callable[[range], tf.data.Dataset]) -> Iterable[Any]:
        return feed(pipeline, self._launch.local_replicas)

    def run(self, step: Callable[..., Any], *arguments: Any) -> Any:
        local = self._launch.local_replicas

        def part(context: tf.distribute.experimental.ValueContext) -> Any:
            if len(local) == 1:
                return arguments
            index = context.replica_id_in_sync_group - local.start
            with tf.device("CPU:0"):  # So that each device fetches only its replica's part.
                return tf.nest.map_structure(lambda value: value[index], arguments)

        def stacked(value: Any) -> tf.Tensor:
            return tf.stack(self._strategy.experimental_local_results(value))

        distribute = self._strategy.experimental_distribute_values_from_function
        outputs = self._strategy.run(step, args=distribute(part) if arguments else ())
        return tf.nest.map_structure(stacked, outputs)

    def average(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        context, mean = tf.distribute.get_replica_context(), tf.distribute.ReduceOp.MEAN
        return list(context.all_reduce(mean, list(gradients), options=self._options))

    def profile(self, folder: Path) -> AbstractContextManager[Any]:
        return nullcontext()


def own_index() -> int:
    """Return which replica is being traced."""
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    return int(tf.get_static_value(index))


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
    """Return the batches of the local replicas, those of a step as one element.

    The strategy's own distributed dataset is not used. Its iterators have a tuning thread that
    sleeps for up to a minute, and deleting such an iterator waits for the thread.
    """
    dataset = pipeline(local)
    return dataset if len(local) == 1 else dataset.batch(len(local), drop_remainder=True)


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


def check_collective(collective: str, launch: Launch, num_gpus: int, *, is_alone: bool) -> None:
    """Raise ValueError if NCCL was chosen for processes that share a GPU, which it refuses.

    Args:
        num_gpus: GPUs that this process sees.
        is_alone: Whether tfunet started all processes of this host, so that all see the same GPUs.
    """
    _, count = launch.place_on_host
    needed = count * len(launch.local_replicas)
    if collective == "nccl" and is_alone and 0 < num_gpus < needed:
        raise ValueError(
            f"collective = 'nccl' needs a GPU for each replica, and the {needed} replicas on this "
            f"host share {num_gpus}. Leave collective out, or choose 'ring'."
        )


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
            if tf.config.get_logical_device_configuration(gpu) is None:  # It has no cap.
                tf.config.experimental.set_memory_growth(gpu, True)
        return [f"GPU:{index}" for index in range(len(chosen))]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(replicas) > 1:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in replicas]
        tf.config.set_logical_device_configuration(cpu, logical)
    return [f"CPU:{index}" for index in range(len(replicas))]
