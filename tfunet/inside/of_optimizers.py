"""What Keras's optimizers keep to themselves, and this package uses."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfunet.inside.of_keras import clipping_by, free_value, has_value
from tfunet.inside.of_tensorflow import VariableElsewhere
from tfunet.inside.replacing import replacing

# What an optimizer on TensorFlow does by way of tf.distribute, and any other does itself.
DISTRIBUTED = (
    *("_var_key", "_apply_weight_decay", "_backend_update_step", "add_variable_from_reference"),
    "_overwrite_model_variables_with_average_value",
)
EXCLUDED, PATTERN = "_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"


def undistributed(kind: Any) -> Any:
    """Return a subclass of an optimizer's class that leaves tf.distribute alone."""
    changed = {
        name: vars(BaseOptimizer)[name]
        for name in DISTRIBUTED
        if name in vars(TFOptimizer) and getattr(kind, name) is vars(TFOptimizer)[name]
    }
    if "_backend_update_step" in changed:
        changed["_backend_update_step"] = _update_beside
    # Nadam's own calls that of tf.distribute.
    changed["_distributed_tf_update_step"] = _update_each
    # Keras's own key is the variable, and Nadam asks for that of what is in it.
    key = {"_var_key": lambda _, variable: id(getattr(variable, "_value", variable))}
    return type(kind.__name__, (kind,), changed | (key if "_var_key" in changed else {}))


def remade(optimizer: keras.Optimizer) -> keras.Optimizer:
    """Return an optimizer like another, not built, that leaves tf.distribute alone.

    Raises ValueError for one that cannot be made again from its configuration.
    """
    rate = optimizer._learning_rate
    schedules = keras.optimizers.schedules.LearningRateSchedule, keras.Variable
    is_called = callable(rate) and not isinstance(rate, schedules)
    written = {"_learning_rate": None} if is_called else {}  # Keras would write down its program.
    try:
        with replacing(optimizer, **written):
            config = optimizer.get_config()
    except Exception as error:
        raise ValueError(
            f"The optimizer {type(optimizer).__name__} cannot be made again, to update parts of "
            f"variables: its get_config raised {type(error).__name__}: {error}"
        ) from error
    config |= {"learning_rate": rate} if is_called else {}
    return undistributed(type(optimizer)).from_config(config)


def empty_like(like: Any) -> keras.Variable:
    """Return an empty variable with as many axes as another, and its name and path."""
    made = keras.Variable(np.zeros((0,) * len(like.shape), str(like.dtype)), dtype=like.dtype)
    made._name, made._path = like.name, like.path
    return made


def _update_beside(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], learning_rate: Any
) -> None:
    """Update variables as tf.distribute does: TensorFlow's optimizer then leaves the same alone."""
    for gradient, variable in zip(gradients, variables, strict=True):
        variable = getattr(variable, "_value", variable)
        optimizer.update_step(gradient, variable, learning_rate)


def _update_each(optimizer: Any, _: Any, pairs: Sequence[Any], learning_rate: Any) -> None:
    for gradient, variable in pairs:
        optimizer.update_step(gradient, variable, learning_rate)


def of_any_length(like: Any) -> keras.Variable:
    """Return a variable of one axis of any length, empty, with the name and path of another."""
    made = keras.Variable(np.zeros(0, str(like.dtype)), dtype=like.dtype, name=like.name)
    empty = np.zeros(0, str(like.dtype))
    made._value = tf.Variable(empty, shape=[None], trainable=True, name=like.name)
    made._path, made._shape = like.path, (None,)
    return made


def adding(optimizer: keras.Optimizer, add: Callable[..., Any]) -> AbstractContextManager[None]:
    """Have an optimizer add its variables by `add(before, reference, **options)` in the block.

    `before(**options)` is how it adds one; `reference` is the variable whose state it is, or None.
    """
    add_variable = optimizer.add_variable
    from_reference = optimizer.add_variable_from_reference
    is_inner = "add_variable" in vars(optimizer)  # A block around this one adds them, too.
    references: list[Any] = []

    def added_from(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        references.append(reference_variable)
        try:
            is_off = isinstance(getattr(reference_variable, "_value", None), VariableElsewhere)
            if is_off and not is_inner:
                # Not beside its reference, which is on no device.
                plain = BaseOptimizer.add_variable_from_reference
                return plain(optimizer, reference_variable, *args, **kwargs)
            return from_reference(reference_variable, *args, **kwargs)
        finally:
            references.pop()

    def added(*args: Any, **kwargs: Any) -> Any:
        names = ("shape", "initializer", "dtype", "aggregation", "layout", "name")
        options = dict(zip(names, args, strict=False)) | kwargs
        return add(add_variable, references[-1] if references else None, **options)

    return replacing(optimizer, add_variable=added, add_variable_from_reference=added_from)


def apply(optimizer: keras.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Have an optimizer use gradients as its class does: `applying_by` does not matter."""
    type(optimizer)._backend_apply_gradients(optimizer, gradients, variables)


def add_without_value(
    add: Callable[..., Any], options: dict[str, Any], instead: Callable[..., Any]
) -> Any:
    """Have an optimizer add a variable without a value: `instead(shape, dtype)` is asked for it."""
    made = add(**options | {"shape": (), "initializer": "zeros"})
    made._shape = tuple(options["shape"])
    free_value(made, instead)
    return made


def assigning_values(optimizer: keras.Optimizer) -> AbstractContextManager[None]:
    """Have an optimizer assign nothing to variables without a value in the block."""
    assign = optimizer.assign

    def assigned(variable: Any, value: Any) -> None:
        if has_value(variable):
            assign(variable, value)

    return replacing(optimizer, assign=assigned)


def apply_clipped(
    optimizer: keras.Optimizer, gradients: Sequence[Any], variables: Sequence[Any]
) -> None:
    """Have an optimizer use gradients that are clipped already: weight decay, update, averages."""
    with clipping_by(optimizer, lambda gradients: gradients), tf.name_scope(optimizer.name):
        apply(optimizer, gradients, variables)


def applying_by(
    optimizer: keras.Optimizer, apply: Callable[[Sequence[Any], Sequence[Any]], None]
) -> AbstractContextManager[None]:
    """Have an optimizer hand gradients, scaled back but not clipped, and variables to `apply`."""
    return replacing(optimizer, _backend_apply_gradients=apply)


def share_counters(optimizer: keras.Optimizer, other: keras.Optimizer) -> None:
    """Have an optimizer count steps and read its learning rate where another does."""
    for name in ("_iterations", "_learning_rate"):
        object.__setattr__(optimizer, name, getattr(other, name))


def own_numbers(optimizer: keras.Optimizer) -> dict[str, Any]:
    """Return the numbers that an optimizer changes in each step, by attribute, beside its steps."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, keras.Variable)
        and tuple(value.shape) == ()
        and name not in ("_iterations", "_learning_rate")
    }


def share_exclusions(
    optimizer: keras.Optimizer, variable: Any, other: keras.Optimizer, original: Any
) -> None:
    """Have an optimizer leave a variable out of weight decay if another leaves `original` out."""
    excluded = other._var_key(original) in getattr(other, EXCLUDED, ())
    keys = {optimizer._var_key(variable)} if excluded else set()
    object.__setattr__(optimizer, EXCLUDED, keys)
    object.__setattr__(optimizer, PATTERN, getattr(other, PATTERN, None))


def decays(optimizer: keras.Optimizer, variable: Any) -> bool:
    """Whether weight decay is for a variable, too."""
    return bool(optimizer._use_weight_decay(variable))


def only_training(
    optimizer: keras.Optimizer, variables: Sequence[Any]
) -> AbstractContextManager[None]:
    """Have an optimizer average the weights of some of its variables only, with `use_ema`."""
    if not optimizer.use_ema:
        return nullcontext()
    before = optimizer._trainable_variables, optimizer._model_variables_moving_average
    keys = {optimizer._var_key(variable) for variable in variables}
    some = [pair for pair in zip(*before, strict=True) if optimizer._var_key(pair[0]) in keys]
    return replacing(
        optimizer,
        _trainable_variables=[variable for variable, _ in some],
        _model_variables_moving_average=[average for _, average in some],
    )


def leaves(optimizer: keras.Optimizer) -> list[keras.Optimizer]:
    """Return the optimizers within an optimizer that hold no others; itself if it holds none."""
    if (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        return leaves(inner)
    return getattr(optimizer, "optimizers", None) or [optimizer]


def num_slots(optimizer: keras.Optimizer) -> int:
    """Return how many states an optimizer keeps of each number of a weight."""
    states = []

    def add(before: Any, reference: Any, **options: Any) -> Any:
        if reference is not None:
            states.append(reference)
        return before(**options)

    made = remade(optimizer)
    with adding(made, add):
        made.build([keras.Variable(np.zeros(0, "float32"), name="probe")])
    return len(states)


def bounded(
    optimizer: keras.Optimizer, bounds: Callable[[Sequence[Any]], AbstractContextManager[None]]
) -> AbstractContextManager[None]:
    """Have an optimizer that scales losses update within `bounds(variables)`."""
    apply = optimizer._common_apply

    def applied(grads: Any, trainable_variables: Any = None) -> None:
        trained = trainable_variables or optimizer._trainable_variables
        with bounds(trained):
            apply(grads, trainable_variables)

    return replacing(optimizer, _common_apply=applied)
