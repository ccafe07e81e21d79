"""Averages gradients over replicas inside the `apply` of every optimizer, for every backend."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import keras
import tensorflow as tf

from tfunet.inside.of_tensorflow import updating_alone
from tfunet.timing.stamps import Note, timed

Average = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
# Takes an optimizer, its gradients, their variables (None: those it was built with) and Keras's own
# `apply` for these two.
Instead = Callable[[keras.Optimizer, list[Any], Any, Callable[[list[Any], Any], None]], None]

NO_GRADIENT = (
    "No gradient reaches any weight: the loss does not depend on them, or something between them "
    "has no gradient, such as argmax, a comparison, a cast to whole numbers, stop_gradient or "
    "NumPy. Let the model return the logits of its last layer."
)


@final
class Switch:
    """A backend's average, which is left out of what is traced in `off`; `note` is told of each."""

    def __init__(self, average: Average, note: Note | None = None) -> None:
        self._average = average
        self._note = note
        self._is_off = False

    @property
    def is_off(self) -> bool:
        """Whether it is left out of what is traced now."""
        return self._is_off

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the mean over replicas, or the gradients as they are."""
        if self._is_off:
            return list(gradients)
        return timed("all-reduce", self._note, self._average, list(gradients))

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Leave the average out of what is traced in the block."""
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False


@final
@dataclass(frozen=True, kw_only=True)
class Averaging:
    """How the optimizers of a step average their gradients over replicas before they use them.

    The average comes first: clipping, weight decay and the finite check of a loss-scale
    optimizer then see what one device with the global batch would see. Keras under tf.distribute
    clips each replica's gradients before they are summed, so its result depends on the number of
    replicas.

    With `accumulation`, `apply` must be called that many times in one traced step. The gradients
    of the calls are averaged; only the last call communicates and updates.

    Args:
        average: The backend's `average`.
        accumulation: Calls of `apply` that make one step.
        keep: Returns sums of gradients for the next pass, which nothing else needs yet.
        optimizers: Optimizers that the step may apply; None for any.
        is_alone: Whether there is one replica only. Otherwise optimizers that are not Keras 3's,
            which sum over replicas, are refused.
        shared: Averages gradients and applies an optimizer whose state is shared out among devices:
            `shared(optimizer, gradients, variables, apply)`, as `Instead`. None if each has all.
    """

    average: Average
    accumulation: int = 1
    keep: Average = list
    optimizers: Sequence[keras.Optimizer] | None = None
    is_alone: bool = False
    shared: Instead | None = None
    _held: threading.local = field(default_factory=threading.local, init=False, repr=False)
    # MirroredStrategy traces each replica in a thread of its own.
    _sums: threading.local = field(default_factory=threading.local, init=False, repr=False)

    def following(self, value: tf.Tensor) -> tf.Tensor:
        """Return the input of a pass, which is there once the pass before is done.

        Passes do not hang on each other otherwise, and side by side each would hold its
        activations at once.
        """
        before = [part for part in getattr(self._sums, "gradients", ()) if part is not None]
        with tf.control_dependencies(before):
            return tf.identity(value)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Average and update only after the block, on the replica that traces it."""
        updates: list[Callable[[], None]] = []
        self._held.updates = updates
        try:
            yield
        finally:
            self._held.updates = None
        for update in updates:
            update()

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Average in every optimizer that is applied in the block, however the step holds it."""
        sums = threading.local()  # A step whose tracing failed left nothing.
        object.__setattr__(self, "_sums", sums)

        def apply_averaged(
            optimizer: keras.Optimizer,
            gradients: list[Any],
            variables: Any,
            apply: Callable[[list[Any], Any], None],
        ) -> None:
            self._check(optimizer)
            if gradients and all(gradient is None for gradient in gradients):
                raise ValueError(NO_GRADIENT)
            number = getattr(sums, "number", 0) + 1
            summed = _sum(sums.gradients, gradients) if number > 1 else gradients
            if number < self.accumulation:
                sums.number, sums.gradients = number, _for_each(self.keep, summed)
                return
            sums.number, sums.gradients = 0, []

            def update() -> None:
                own = _divided(summed, self.accumulation)
                if self.shared is not None:
                    self.shared(optimizer, own, variables, apply)
                    return
                averaged = average_present(own, self.average)
                with updating_alone():  # What all have is the same.
                    apply(averaged, variables)

            held = getattr(self._held, "updates", None)
            if held is None:
                update()
            else:
                held.append(update)

        with instead_of_apply(apply_averaged), contextlib.ExitStack() as refused:
            if not self.is_alone:
                refused.enter_context(_others_refused())
            yield

    def _check(self, optimizer: keras.Optimizer) -> None:
        known = self.optimizers
        if known is not None and not any(optimizer is other for other in known):
            raise ValueError(
                f"The model's train_step makes the optimizer {optimizer.name!r} itself, anew each "
                "time TensorFlow traces it, so its state could not be saved. Make it once, in the "
                "model's __init__, and keep it as an attribute."
            )


@contextlib.contextmanager
def instead_of_apply(instead: Instead) -> Iterator[None]:
    """Call `instead` for every keras.Optimizer that is applied in the block.

    It may be of any class, also of the user's, and be held anywhere: all classes that define
    `apply` are changed for the time of the block. An optimizer inside another one, as in
    LossScaleOptimizer, is left to that one. Nothing is reduced over replicas by Keras itself.
    """
    active = threading.local()
    inner: list[keras.Optimizer] = []

    def replacement(original: Callable[..., None]) -> Callable[..., None]:
        def apply(optimizer: keras.Optimizer, grads: Any, trainable_variables: Any = None) -> None:
            is_inside = getattr(active, "is_inside", False)
            active.is_inside = True
            try:
                # Under MirroredStrategy an inner one may be applied in another thread.
                if is_inside or any(optimizer is other for other in inner):
                    original(optimizer, grads, trainable_variables)
                    return
                inner.extend(_inside(optimizer))
                if trainable_variables is not None:
                    trainable_variables = list(trainable_variables)
                instead(optimizer, list(grads), trainable_variables, partial(original, optimizer))
            finally:
                active.is_inside = is_inside

        return apply

    def not_reduced(optimizer: keras.Optimizer, grads_and_vars: Any) -> Any:
        return grads_and_vars

    with contextlib.ExitStack() as changed:
        for kind in _kinds(keras.Optimizer):
            own = vars(kind)
            if "apply" in own:
                changed.enter_context(_replaced(kind, "apply", replacement(own["apply"])))
            if "_all_reduce_sum_gradients" in own:
                changed.enter_context(_replaced(kind, "_all_reduce_sum_gradients", not_reduced))
        yield


@contextlib.contextmanager
def none_made(why: str) -> Iterator[None]:
    """Raise ValueError(`why`) where an optimizer is made in the block."""

    def refuse(optimizer: keras.Optimizer, *_: Any, **__: Any) -> None:
        raise ValueError(why)

    with contextlib.ExitStack() as changed:
        for kind in _kinds(keras.Optimizer):
            if issubclass(kind, keras.Optimizer) and "__init__" in vars(kind):
                changed.enter_context(_replaced(kind, "__init__", refuse))
        yield


def check_overwriting(optimizers: Iterable[keras.Optimizer]) -> None:
    """Raise ValueError for optimizers that overwrite weights in a step, where that is impossible.

    Call it in the scope of the backend.
    """
    if not tf.distribute.has_strategy():
        return
    for optimizer in optimizers:
        for part in (optimizer, *_inside(optimizer)):
            if part.use_ema and part.ema_overwrite_frequency:
                raise ValueError(
                    f"The optimizer {part.name!r} has ema_overwrite_frequency="
                    f"{part.ema_overwrite_frequency}: Keras overwrites the weights in a branch of "
                    "the step, which this backend's strategy of tf.distribute cannot do. Leave it "
                    "out (use_ema alone gives the model the averages at the end), or choose the "
                    "backend single or horovod."
                )


def _inside(optimizer: keras.Optimizer) -> list[keras.Optimizer]:
    """Return the optimizers that an optimizer holds, and those that they hold."""
    found: list[keras.Optimizer] = []
    pending: list[Any] = list(vars(optimizer).values())
    while pending:
        value = pending.pop()
        if isinstance(value, keras.Optimizer) and not any(
            value is optimizer for optimizer in found
        ):
            found.append(value)
            pending.extend(vars(value).values())
        elif isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list | tuple):
            pending.extend(value)
    return found


def _kinds(base: type) -> list[type]:
    """Return a class with all that it inherits from and all that inherit from it."""
    kinds: dict[type, None] = dict.fromkeys(base.__mro__)
    pending = [base]
    while pending:
        kind: type
        for kind in type.__subclasses__(pending.pop()):
            if kind not in kinds:
                kinds[kind] = None
                pending.append(kind)
    return list(kinds)


@contextlib.contextmanager
def _replaced(kind: type, name: str, value: Any) -> Iterator[None]:
    before = vars(kind)[name]
    setattr(kind, name, value)
    try:
        yield
    finally:
        setattr(kind, name, before)


@contextlib.contextmanager
def _others_refused() -> Iterator[None]:
    """Refuse the optimizers of TensorFlow 1 and of tf_keras, which sum over replicas."""
    bases: list[type] = [tf.compat.v1.train.Optimizer]
    if "tf_keras" in sys.modules:
        optimizers = sys.modules["tf_keras"].optimizers
        bases += [optimizers.Optimizer, optimizers.legacy.Optimizer]

    def refuse(optimizer: Any, *_: Any, **__: Any) -> None:
        kind = type(optimizer)
        raise ValueError(
            f"The model's train_step applies {kind.__module__}.{kind.__qualname__}, which sums its "
            "gradients over replicas. Use one of keras.optimizers (Keras 3), or train with "
            "one replica."
        )

    with contextlib.ExitStack() as changed:
        for base in bases:
            for kind in _kinds(base):
                if "apply_gradients" in vars(kind):
                    changed.enter_context(_replaced(kind, "apply_gradients", refuse))
        yield


def average_present(gradients: Sequence[Any], average: Average) -> list[Any]:
    """Average the gradients that exist; None (a variable the loss does not reach) stays."""
    return _for_each(average, gradients)


def _for_each(made: Average, gradients: Sequence[Any]) -> list[Any]:
    present = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    after = iter(made(present))
    return [None if gradient is None else next(after) for gradient in gradients]


def _sum(before: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    return [
        None if one is None or other is None else tf.add_n([one, other])
        for one, other in zip(before, gradients, strict=True)
    ]


def _divided(sums: Sequence[Any], passes: int) -> list[Any]:
    if passes == 1:
        return list(sums)
    return [None if each is None else each / passes for each in sums]
