"""What a train_step of the user's own applies and uses: found before the first step."""

import contextlib
import inspect
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.backend import Backend
from tfunet.config.own_code import OURS, explain
from tfunet.inside.of_keras import all_layers, trained_by, variable_key
from tfunet.learning.averaging import instead_of_apply, none_made
from tfunet.state.shared_slot import SharedSlot, with_slots

# Builds an optimizer for variables.
Build = Callable[[keras.Optimizer, Sequence[Any]], None]
MADE_IN_STEP = (
    "The model's train_step makes an optimizer itself: its state could not be saved, and several "
    "replicas could not make it together. Make it once, in the model's __init__, and keep it as an "
    "attribute."
)


def build_all(optimizer: keras.Optimizer, variables: Sequence[Any]) -> None:
    """Build an optimizer with all its state."""
    optimizer.build(variables)


@final
@dataclass(frozen=True)
class Plain:
    """A variable of TensorFlow's, with what a checkpoint asks of Keras's."""

    variable: tf.Variable

    @property
    def value(self) -> tf.Tensor:
        """Its value."""
        return tf.convert_to_tensor(self.variable)

    @property
    def shape(self) -> tf.TensorShape:
        """Its shape."""
        return self.variable.shape

    def assign(self, value: Any) -> None:
        """Give it another value."""
        self.variable.assign(value)


@dataclass(frozen=True, kw_only=True)
class Used:
    """What a training step applies and uses.

    Args:
        optimizers: All that it applies.
        trained: Variables that these train and the model does not hold.
        others: Other variables that the step uses: those of further optimizers, and what the model
            does not hold, such as a counter.
    """

    optimizers: Sequence[keras.Optimizer]
    trained: Sequence[Any] = ()
    others: Sequence[Any] = ()


def look_at_step(
    model: keras.Model,
    backend: Backend,
    *,
    image: tuple[int, ...],
    truth: tf.TensorSpec,
    accumulation: int,
    num_replicas: int,
    build: Build = build_all,
) -> Used:
    """Return what the model's train_step applies and uses, and build its optimizers.

    The step is traced once, not run; Keras's own is known. Called by all processes together.

    Args:
        model: A compiled and built model.
        image: Shape of a batch of images, (batch, *spatial, channels).
        truth: What the image is compared with, of one sample: a mask, or numbers.
        accumulation: Passes of a step.
        num_replicas: Over all processes.
        build: Builds an optimizer for variables.

    Raises ValueError if the step cannot be cut into passes, or makes on several replicas what it
    should be given.
    """
    if getattr(model.train_step, "__func__", None) is keras.Model.train_step:
        return Used(optimizers=(model.optimizer,))
    applied = Applied()

    def replica_step() -> tf.Tensor:
        batch = tf.zeros(image), tf.zeros((image[0], *truth.shape), truth.dtype)
        check_logs(model.train_step(batch))
        return tf.zeros(())

    @tf.function(autograph=False)
    def step() -> Any:
        # TensorFlow traces again after a trace that made variables.
        may_make = num_replicas == 1 and not applied.trained
        making = contextlib.nullcontext() if may_make else none_made(MADE_IN_STEP)
        with instead_of_apply(applied.note), making:
            return backend.run(replica_step)

    unbuilt = [layer.name for layer in all_layers(model) if not layer.built]
    try:
        graph = step.get_concrete_function().graph
    except Exception as error:
        if not unbuilt or num_replicas == 1 or isinstance(error, ValueError):
            if _is_of_users(error):
                file = inspect.getsourcefile(type(model)) or ""
                explain(error, "The model's train_step cannot be traced: it raised", file)
            raise
        raise ValueError(
            f"The model's train_step cannot be traced on {num_replicas} replicas. Its layers "
            f"{', '.join(unbuilt)} have no weights before the step, which cannot make them: give "
            "them a keras.Input, or call them once in the function that builds the model."
        ) from error
    _check_can_accumulate(applied, accumulation)
    with backend.scope():
        return _used(model, applied.trained, graph, build)


def _check_can_accumulate(applied: "Applied", accumulation: int) -> None:
    """Raise ValueError for a step that cannot be cut into so many passes."""
    if accumulation > 1 and (len(applied.trained) != 1 or applied.most_calls != 1):
        raise ValueError(
            f"accumulation={accumulation} needs a train_step that applies one optimizer, once. "
            f"This one applies {len(applied.trained)}, up to {applied.most_calls} times: what "
            "follows the first would not see its weights. Leave out accumulation."
        )


def _used(
    model: keras.Model,
    applied: Sequence[tuple[keras.Optimizer, Sequence[Any]]],
    graph: Any,
    build: Build,
) -> Used:
    """Build the optimizers that a traced step applies; return what it applies and uses."""
    build_optimizers(applied, build)
    optimizers = [optimizer for optimizer, _ in applied]
    further = [optimizer for optimizer in optimizers if optimizer is not model.optimizer]
    held = _Distinct(model.optimizer)
    for variable in with_slots([*model.variables, *model.optimizer.variables]):
        held.add(variable)
    trained = [variable for _, variables in applied for variable in variables if held.add(variable)]
    others = [
        variable
        for optimizer in further
        for variable in with_slots(optimizer.variables)
        if held.add(variable)
    ]
    for variable in (state for metric in model.metrics for state in metric.variables):
        held.add(variable)  # Kept apart: their state differs between replicas.
    captured = _in_order_of_use(graph)
    others += [Plain(each) for each in captured if held.add(each)]
    return Used(optimizers=optimizers, trained=trained, others=others)


def build_optimizers(
    applied: Sequence[tuple[keras.Optimizer, Sequence[Any]]],
    build: Build = build_all,
) -> None:
    """Build each optimizer for the variables that it trains; in the scope of the backend."""
    for optimizer, variables in applied:
        if not optimizer.built:
            build(optimizer, variables)


def check_trains_model(used: Used, variables: Sequence[Any]) -> None:
    """Raise ValueError for an optimizer that trains none of the variables that a model's call uses.

    That is of an optimizer for another network, which split does not run.
    """
    for optimizer in used.optimizers[1:] and used.optimizers:
        own = {variable_key(optimizer, variable) for variable in variables}
        trained = {variable_key(optimizer, variable) for variable in trained_by(optimizer)}
        if own.isdisjoint(trained):
            raise ValueError(
                f"The model's train_step applies {len(used.optimizers)} optimizers, of which "
                f"{optimizer.name!r} trains another network, such as an adversary. Split runs only "
                "the model on parts of samples: the other network would take each part for a whole "
                "sample. Leave out split."
            )


def check_logs(logs: Any) -> None:
    """Raise ValueError for what a train_step must not return."""
    advice = "Return {metric.name: metric.result() for metric in self.metrics} as Keras does."
    if not isinstance(logs, Mapping) or "loss" not in logs:
        got = sorted(logs) if isinstance(logs, Mapping) else type(logs).__name__
        raise ValueError(
            f"The model's train_step must return a dict with 'loss', got {got}. {advice}"
        )
    for name, value in logs.items():
        if value is None or isinstance(value, str | Mapping | list | tuple):
            raise ValueError(
                f"The model's train_step returns {name!r}: {value!r:.80}, which is no number. "
                f"{advice}"
            )


def _is_of_users(error: BaseException) -> bool:
    """Whether neither tfunet nor a backend raised an error: those say what to do."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return module.partition(".")[0] not in OURS


@final
class Applied:
    """Notes the optimizers that a traced step applies.

    Attributes:
        trained: Each optimizer with the variables that it trains.
        most_calls: How often one of them is applied in a step.
    """

    def __init__(self) -> None:
        self.trained: list[tuple[keras.Optimizer, list[Any]]] = []
        self._calls: Counter[tuple[int, int]] = Counter()

    @property
    def most_calls(self) -> int:
        return max(self._calls.values(), default=0)

    def note(
        self,
        optimizer: keras.Optimizer,
        gradients: list[Any],
        variables: list[Any] | None,
        apply: Callable[[list[Any], Any], None],
    ) -> None:
        """Take the place of `apply` while a step is traced."""
        # MirroredStrategy traces each replica in a thread of its own.
        self._calls[id(optimizer), threading.get_ident()] += 1
        given = trained_by(optimizer) if variables is None else variables
        known = next((trained for applied, trained in self.trained if applied is optimizer), None)
        if known is None:
            self.trained.append((optimizer, list(given)))
        else:
            known += [
                variable for variable in given if not any(variable is other for other in known)
            ]


@final
class _Distinct:
    """Tells variables apart, of Keras or TensorFlow, whole or one replica's part."""

    def __init__(self, optimizer: keras.Optimizer) -> None:
        self._optimizer = optimizer
        self._keys: set[str] = set()

    def add(self, variable: Any) -> bool:
        """Whether it is new."""
        if isinstance(variable, SharedSlot):
            return True
        before = len(self._keys)
        self._keys.add(variable_key(self._optimizer, variable))
        return len(self._keys) > before


def _in_order_of_use(graph: Any) -> Iterator[tf.Variable]:
    """Yield the variables of a traced step: in the same order in all processes."""
    by_handle = {id(variable.handle): variable for variable in graph.variables}
    for handle, _ in graph.captures:
        if id(handle) in by_handle:
            yield by_handle[id(handle)]
