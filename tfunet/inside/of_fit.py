"""What Keras's `fit` keeps to itself, and `fit` on many devices changes.

As in of_keras.py, each function has one private name.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
from keras.src.backend.tensorflow import nn, random
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.callbacks.callback_list import CallbackList
from keras.src.losses import loss as losses
from keras.src.saving import saving_api, saving_lib

from tfunet.inside.replacing import replacing

# Functions that draw numbers of a shape, which is their first argument.
DRAWS_OF_SHAPE = (
    *("normal", "uniform", "randint", "truncated_normal", "gamma", "binomial", "beta"),
)


def train_by(strategy_of: Callable[[keras.Model], Any]) -> None:
    """Have the trainer of every model run its steps by `strategy_of(model)`.

    The trainer asks it to distribute each data set, and to run each step.
    """
    TensorFlowTrainer.distribute_strategy = property(strategy_of)


def around(kind: type, name: str, instead: Callable[..., Any]) -> None:
    """Have a method of a class call `instead(original, self, *args, **kwargs)`, for good."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return instead(functools.partial(original, self), self, *args, **kwargs)

    setattr(kind, name, method)


def around_making_steps(instead: Callable[..., Any]) -> None:
    """Call `instead(make, model, step)` where the trainer makes the function of a step."""
    around(TensorFlowTrainer, "_make_function", instead)


def around_making_predict(instead: Callable[..., Any]) -> None:
    """Call `instead(make, model, ...)` where the trainer makes the function that predicts."""
    around(TensorFlowTrainer, "make_predict_function", instead)


def around_building(instead: Callable[..., Any]) -> None:
    """Call `instead(build, model, iterator, data_batch)` where the trainer may build a model."""
    around(TensorFlowTrainer, "_maybe_symbolic_build", instead)


def around_callbacks(instead: Callable[..., Any]) -> None:
    """Call `instead(init, list, callbacks, ...)` where the callbacks of a fit come together."""
    around(CallbackList, "__init__", instead)


def build(model: keras.Model, batch: Any) -> None:
    """Build a model, its metrics and its optimizer for a batch, of which shapes and types count."""
    model._symbolic_build(data_batch=batch)


def data_set_of(iterator: Any) -> Any:
    """Return the distributed data set of an iterator over an epoch."""
    return iterator._distributed_dataset


def first_epoch(model: keras.Model) -> int | None:
    """Return the epoch with which a restored fit goes on; None if it was not restored."""
    epoch: int | None = model._initial_epoch
    return epoch


def begin_with(model: keras.Model, epoch: int) -> None:
    """Have a fit go on with this epoch."""
    model._initial_epoch = epoch


def losses_of(model: keras.Model) -> list[Any]:
    """Return the losses that a built model was compiled with."""
    compiled = model._compile_loss
    return [] if compiled is None else [each.loss for each in compiled._flat_losses]


def function_of(metric: keras.Metric) -> Any:
    """Return the function of which a metric is the mean; None for one of another kind."""
    return getattr(metric, "_fn", None)


def rate_of(optimizer: keras.Optimizer) -> Any:
    """Return the learning rate of an optimizer: a variable, or a schedule."""
    return optimizer._learning_rate


def saving() -> Any:
    """Return the module whose functions save and load models and weights."""
    return saving_api


@contextmanager
def saving_through_file(least_bytes: int, prefix: str) -> Iterator[None]:
    """Have Keras put weights of so many bytes together in a file, not in memory, before it packs
    them into the file of a model. The file lies beside that one, and its name begins with `prefix`.
    """

    def is_small(model: keras.Model) -> bool:
        return bool(saving_lib.weight_memory_size(model.variables) < least_bytes)

    with replacing(saving_lib, is_memory_sufficient=is_small), replacing(tempfile, template=prefix):
        yield


def around_attributes(instead: Callable[..., Any]) -> None:
    """Call `instead(names, kind)` where saving asks for the attributes that it leaves alone.

    `names` makes an object of a kind, with variables, to see what it has.
    """
    saving_lib.get_attr_skipset = functools.partial(instead, saving_lib.get_attr_skipset)


def drawing_by(
    of_shape: Callable[..., Any], dropout: Callable[..., Any], categorical: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Draw Keras's random numbers by these in the block; each gets Keras's function first."""
    draws = {name: functools.partial(of_shape, getattr(random, name)) for name in DRAWS_OF_SHAPE}
    return replacing(
        random,
        dropout=functools.partial(dropout, random.dropout),
        categorical=functools.partial(categorical, random.categorical),
        **draws,
    )


def reducing_by(
    apply_mask: Callable[..., Any], reduce_values: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Reduce losses by these in the block; each gets Keras's function first."""
    return replacing(
        losses,
        apply_mask=functools.partial(apply_mask, losses.apply_mask),
        reduce_values=functools.partial(reduce_values, losses.reduce_values),
    )


def synchronized_moments_of(rows: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """Synchronize moments in the block over `rows(x)` instead of all rows of x."""
    before = nn._compute_moments_sync
    return replacing(
        nn, _compute_moments_sync=lambda x, *args, **kwargs: before(rows(x), *args, **kwargs)
    )
