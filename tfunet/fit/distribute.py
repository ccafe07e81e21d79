"""`tfunet.distribute()`: from here on, this script's Keras models train on all devices of a run."""

import atexit
import importlib.abc
import math
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from tfunet.backend import Backend, Topology
from tfunet.config.words import check_known
from tfunet.fit.joined import join, leave
from tfunet.fit.keras_choice import check_keras
from tfunet.process.terminal import counted, lines_of

BATCHES = ("global", "replica")
OLD_KERAS = (
    "This script uses tf_keras (Keras 2), which tfunet does not distribute: each process would "
    "train alone. Import keras (Keras 3)."
)


@final
@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How this script is distributed, and the place of this process in it.

    Args:
        backend: Name of the backend.
        num_replicas: Over all processes, each with a device.
        process_index: From 0; process 0 is the chief.
        process_count: Number of processes.
        batch: What a batch of the script is: "global", shared out among the replicas, or that of
            each "replica".
    """

    backend: str
    num_replicas: int
    process_index: int
    process_count: int
    batch: str

    @property
    def is_chief(self) -> bool:
        """Whether this is process 0: the one that should print, and write files of the script."""
        return self.process_index == 0


@final
@dataclass
class _State:
    """What `distribute` made of this process."""

    asked: dict[str, Any] = field(default_factory=dict)
    made: Distribution | None = None


_state = _State()


def distribute(
    *,
    batch: str = "global",
    backend: str | None = None,
    backend_options: Mapping[str, Any] | None = None,
    split: Sequence[int] = (),
    scale_learning_rate: bool = False,
) -> Distribution:
    """Have Keras's own `fit`, `evaluate`, `predict` and `train_on_batch` use all devices of a run.

    Call it once, after the imports and before the first tensor or model.
    `tfunet run --backend horovod --num_replicas 4 script.py` says which devices; with plain
    `python script.py` there is one, and nothing changes.

    Args:
        batch: "global": the rows of each batch are shared out among the replicas, and the result is
            that of one device. "replica": each replica takes a batch of the script, so that a step
            has num_replicas times as many rows.
        backend: Where srun, mpirun or torchrun starts `python script.py` itself: the backend's
            name. `tfunet run` knows it.
        backend_options: Keyword arguments of the backend.
        split: Parts of each sample along its spatial axes, such as [2, 1] or [2, 1, 1]. As many
            devices then share a sample, and are one replica. The model is a functional one, or its
            `call` uses layers and operations of Keras only.
        scale_learning_rate: Multiply the learning rate of each optimizer that a model is compiled
            with by the number of replicas (linear scaling rule, Goyal et al. 2017).

    Raises ValueError where it comes too late or in another way than before, where Keras does not
    run on TensorFlow, and where the processes of the run do not fit.
    """
    asked = {
        "batch": batch,
        "backend": backend,
        "backend_options": backend_options,
        "split": list(split),
        "scale_learning_rate": scale_learning_rate,
    }
    if _state.made is not None:
        if asked != _state.asked:
            changed = [key for key, value in asked.items() if value != _state.asked[key]]
            raise ValueError(
                f"distribute() was called with {_told(_state.asked, changed)}, and now with "
                f"{_told(asked, changed)}. Call it once."
            )
        return _state.made
    check_known("batch", batch, BATCHES)
    check_keras(os.environ, Path.home())
    if "tf_keras" in sys.modules:
        raise ValueError(OLD_KERAS)
    # Only now: Keras cannot even be imported where another backend is chosen.
    import keras

    from tfunet.fit.hooks import install
    from tfunet.inside.of_tensorflow import has_devices

    if has_devices():
        raise ValueError(
            "distribute() came after TensorFlow took its devices, as the first tensor, layer with "
            "weights or data set makes it do. Call it before them, right after the imports."
        )
    joined = join(backend, backend_options)
    topology = joined.backend.start()
    num_replicas = topology.num_replicas // math.prod(split) or 1
    made = Distribution(
        backend=joined.backend.name,
        num_replicas=num_replicas,
        process_index=topology.process_index,
        process_count=topology.process_count,
        batch=batch,
    )
    keras.callbacks.Callback.is_chief = topology.is_chief
    if topology.num_replicas > 1:
        _begin_alike(joined.backend, topology)
        install(
            joined.backend,
            topology,
            joined=num_replicas if batch == "replica" else 1,
            split=split if math.prod(split) > 1 else (),
            scales_rate=scale_learning_rate,
            begin=joined.begin,
        )
        atexit.register(_leave)
        sys.meta_path.insert(0, _NoOldKeras())
        if topology.is_chief:
            print(lines_of(_line(made, split, scale_learning_rate)), flush=True)
    _state.asked, _state.made = asked, made
    return made


@final
class _NoOldKeras(importlib.abc.MetaPathFinder):
    """Refuses to import tf_keras, whose models each process would train alone."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "tf_keras":
            raise ImportError(OLD_KERAS)


def _begin_alike(backend: Backend, topology: Topology) -> None:
    """Have all processes draw the same random numbers; ValueError if they have other seeds."""
    import keras

    from tfunet.inside.of_tensorflow import global_seed

    seed = global_seed()
    own = float(2**52 if seed is None else int(seed) % 2**52)
    of_all = np.zeros(topology.process_count)
    of_all[topology.process_index] = own
    seeds = backend.sum(of_all)
    if len({*seeds.tolist()}) > 1:
        raise ValueError(
            "The processes have different random seeds, and would read the data in different "
            "orders. Give all the same seed, with no rank in it: "
            "keras.utils.set_random_seed(1)."
        )
    if seed is None:
        drawn = np.zeros(1)
        if topology.is_chief:
            drawn[0] = random.SystemRandom().randrange(2**31)
        keras.utils.set_random_seed(int(backend.sum(drawn)[0]))


def _leave() -> None:
    """Wait for the other processes at the end of a script that went well."""
    if not hasattr(sys, "last_value"):
        leave()


def _line(made: Distribution, split: Sequence[int], scales_rate: bool) -> str:
    processes = counted(made.process_count, "process")
    batch = (
        f"a batch of the script is shared out among {counted(made.num_replicas, 'replica')}"
        if made.batch == "global"
        else f"a step takes {made.num_replicas} batches of the script, one for each replica"
    )
    rate = f"multiplied by {made.num_replicas}" if scales_rate else "as it is"
    parts = f" of {math.prod(split)} devices each" if math.prod(split) > 1 else ""
    return (
        f"tfunet: {counted(made.num_replicas, 'replica')}{parts} of the backend {made.backend} in "
        f"{processes}; {batch}; the learning rate is {rate}."
    )


def _told(asked: Mapping[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{key}={asked[key]!r}" for key in keys)
