"""Where the layers of a run's network are: all of them on each device, or in stages."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import keras
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.learning.averaging import Averaging, Switch
from tfunet.parallel.feed import own_part
from tfunet.parallel.network import Groups, SplitNetwork
from tfunet.swap import LargeModelSupport
from tfunet.training.attempt import Attempt
from tfunet.training.held import Held
from tfunet.training.run_data import RunData

if TYPE_CHECKING:
    from tfunet.training.staged_network import StagedNetwork

Batch = dict[str, tf.Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The compiled model of a run, which has not been looked at yet; see `Network`."""

    model: keras.Model
    loss: keras.Loss
    groups: Groups | None
    split: SplitNetwork | None


@final
@dataclass(frozen=True, kw_only=True)
class Ready:
    """What trains a model; see `Network`."""

    average: Switch
    averaging: Averaging
    held: Held
    weights: Sequence[Any]
    variables: Sequence[Any]
    stages: "StagedNetwork | None" = None


class Placed(Protocol):
    """A model whose layers are where they run; it is looked at before it trains."""

    @property
    def support(self) -> LargeModelSupport | None:
        """Plans the memory of the look."""

    @property
    def run(self) -> Callable[..., tf.Tensor] | None:
        """Calls a forward pass with an image on all devices, and returns the whole output.

        None if one device has it all.
        """

    def looking(self) -> AbstractContextManager[None]:
        """Return the context in which the graph of the whole model may be looked at."""

    def ready(self, batch: Batch) -> Ready:
        """Return what trains the model, once its metrics are made; `batch` has whole windows.

        Called by all processes together.
        """


class Placing(Protocol):
    """Makes a model, and places its layers. All processes call each method together."""

    def scope(self) -> AbstractContextManager[Any]:
        """Return the context in which the variables of models and metrics are made."""

    def make(self, loss: keras.Loss) -> keras.Model:
        """Return the compiled model of the run; ValueError for one that cannot be placed so."""

    def place(self, made: Assembled, batch: Batch) -> Placed:
        """Place the layers; `batch` has whole windows. ValueError where that is not possible."""

    def alike(self, attempt: Attempt, data: RunData) -> "Placing":
        """Return what places another model as this one was placed."""


def on_devices(
    backend: Backend,
    split: SplitNetwork | None,
    forward: Callable[[tf.Tensor], tf.Tensor],
    image: tf.Tensor,
) -> tf.Tensor:
    """Return the whole output of a forward pass with an image, which all devices compute."""

    def on_device() -> tf.Tensor:
        if split is None:
            return forward(image)
        group = split.group()
        part = own_part({"image": image}, group, split.bounds)["image"]
        return split.whole_output(forward(part), group)

    return backend.run(on_device)[0]
