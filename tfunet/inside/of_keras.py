"""What Keras keeps to itself, and this package uses; each function has one private name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow import nn
from keras.src.backend.tensorflow.core import Variable as KerasVariable

from tfunet.inside.replacing import replacing

# Where Keras keeps the generator of random numbers without a seed.
UNSEEDED = "global_seed_generator"


def all_layers(layer: Any, *, include_self: bool = True) -> list[Any]:
    """Return all layers of a model or layer, those within others, too, itself first."""
    return list(layer._flatten_layers(include_self=include_self))


def inner_layers(layer: Any) -> list[Any]:
    """Return the layers that a layer holds itself."""
    held: list[Any] = layer._layers
    return held


def graph_of(model: Any) -> Any:
    """Return the functional model of a sequential one, and any other model as it is."""
    return model._functional if isinstance(model, keras.Sequential) else model


def has_graph(model: Any) -> bool:
    """Whether a model is a graph of layers."""
    return hasattr(model, "_nodes_by_depth")


def calls_of(graph: Any) -> Iterator[Any]:
    """Yield the calls of a graph of layers in the order in which they run, by depth."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from graph._nodes_by_depth[depth]


def run_graph(graph: Any, inputs: Sequence[Any], operation: Callable[[Any], Any]) -> Any:
    """Return the outputs of a graph; `operation` gets a layer and returns what is called."""
    return graph._run_through_graph(inputs, operation_fn=operation)


def readers_of(operation: Any) -> list[Any]:
    """Return the layers and operations that read what this one makes."""
    return [node.operation for node in operation._outbound_nodes]


def takes_training(layer: Any) -> bool:
    """Whether the call of a layer takes `training`."""
    return bool(layer._call_has_training_arg)


def is_told_of_training(operation: Any) -> bool:
    """Whether the layers around a layer tell it whether they train."""
    return "training" in getattr(operation, "_call_context_args", {})


def mask_of(tensor: Any) -> Any:
    """Return the mask of a symbolic tensor; None without one."""
    return getattr(tensor, "_keras_mask", None)


def seed_generators(layer: Any) -> list[Any]:
    """Return the generators of random numbers that a layer holds itself."""
    held: list[Any] = layer._seed_generators
    return held


def own_losses(layer: Any) -> list[Any]:
    """Return what the last call of a layer added to the loss."""
    added: list[Any] = layer._get_own_losses()
    return added


def keep_losses_in(layer: Any, terms: Any) -> None:
    """Have a layer keep what it adds to the loss in `terms`, which is as a list."""
    object.__setattr__(layer, "_losses", terms)


def moments_from(layer: Any, moments: Callable[..., Any]) -> AbstractContextManager[None]:
    """Have a batch normalisation take its mean and variance from `moments(inputs, mask)`."""
    return replacing(layer, _moments=moments)


def compiled_metrics(model: keras.Model) -> Any:
    """Return the metrics that a model was compiled with; None if there are none."""
    return model._compile_metrics


def mode_of_metric(metric: Any) -> str | None:
    """Return "max" or "min" for what is better of a metric; None where it does not say so.

    Keras's own know it. A class of the user's own says it as `direction`, "up" or "down".
    """
    said = getattr(metric, "direction", getattr(metric, "_direction", None))
    return {"up": "max", "down": "min"}.get(str(said))


def compile_config(model: keras.Model) -> Any:
    """Return what a model was compiled with, as it was given; None if it was not compiled."""
    return getattr(model, "_compile_config", None)


def loss_tracker(model: keras.Model) -> Any:
    """Return the running mean of the loss of a model."""
    return model._loss_tracker


def build_metrics(model: keras.Model, images: Any, truth: Any) -> None:
    """Make the variables of compiled metrics, as `fit` does, but none of the optimizer."""
    with replacing(model, optimizer=None):
        model._symbolic_build(data_batch=(images, truth))


def variable_key(optimizer: keras.Optimizer, variable: Any) -> str:
    """Return what tells variables apart, of Keras or TensorFlow, whole or a replica's part."""
    key: str = optimizer._var_key(variable)
    return key


def trained_by(optimizer: keras.Optimizer) -> list[Any]:
    """Return the variables that an optimizer was built for."""
    trained: list[Any] = optimizer._trainable_variables
    return trained


def clipping_of(optimizer: keras.Optimizer) -> Callable[[list[Any]], list[Any]]:
    """Return what clips the gradients of an optimizer."""
    clip: Callable[[list[Any]], list[Any]] = optimizer._clip_gradients
    return clip


def clipping_by(
    optimizer: keras.Optimizer, clip: Callable[[list[Any]], list[Any]]
) -> AbstractContextManager[None]:
    """Have an optimizer clip its gradients by `clip`."""
    return replacing(optimizer, _clip_gradients=clip)


def has_value(variable: keras.Variable) -> bool:
    """Whether a variable has a value yet."""
    return variable._value is not None


def make_value(variable: keras.Variable) -> None:
    """Give a variable without a value its first one, on the device of the scope."""
    variable._deferred_initialize()


def give_value(variable: keras.Variable, value: Any) -> None:
    """Give a variable a value on the device of the scope, whether it has one or not."""
    variable._initialize(value)


def name_value(variable: keras.Variable, before: Any) -> None:
    """Give the value of a variable the name by which optimizers know the one that it had before."""
    value = variable._value
    getattr(value, "_primary", value)._unique_id = before._unique_id


def making_values(make: Callable[..., None]) -> AbstractContextManager[None]:
    """Have variables get their first values by `make(before, variable, value)` in the block.

    `before(variable, value)` is Keras's way. A value may be a function that returns it.
    """
    before = KerasVariable._initialize
    return replacing(
        KerasVariable, _initialize=lambda variable, value: make(before, variable, value)
    )


def free_value(variable: keras.Variable, instead: Callable[..., Any]) -> None:
    """Free the value of a variable; `instead(shape, dtype)` is asked for it from now on."""
    variable._value = None
    variable._initializer = instead


def instead_of_value(variable: Any) -> Any:
    """Return what is asked for the value of a variable without one; None of any other."""
    is_free = isinstance(variable, keras.Variable) and variable._value is None
    return variable._initializer if is_free else None


def pooling_by(pool: Callable[..., Any]) -> AbstractContextManager[None]:
    """Have Keras's layers pool by `pool(keras_max_pool, inputs, ...)` in the block."""
    before = nn.max_pool
    return replacing(nn, max_pool=lambda *args, **kwargs: pool(before, *args, **kwargs))


def unseeded_generator() -> Any:
    """Return the generator of random numbers without a seed; None if none was drawn."""
    return global_state.get_global_attribute(UNSEEDED)


def set_unseeded_generator(generator: Any) -> None:
    """Have random numbers without a seed drawn by this generator."""
    global_state.set_global_attribute(UNSEEDED, generator)
