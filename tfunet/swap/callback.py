"""Large-model support: a Keras callback that trains what does not fit in device memory."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfunet.swap import planner, rewrite, trace
from tfunet.swap.host import HostMemory, NumpyMemory, Tier
from tfunet.swap.plan import Plan

MIB = 2**20
# Of the device memory: what the allocator loses between blocks, and scratch that no tensor shows.
MARGIN = 0.1
SPEEDS = planner.Speeds(
    flops_per_second=5e10,
    bytes_per_second=5e9,
    out_bytes_per_second=5e9,
    in_bytes_per_second=5e9,
)


class LargeModelSupport(keras.callbacks.Callback):
    """Moves tensors between device and host memory, or computes them again, to fit a budget.

    Args:
        budget: Bytes of device memory for training; None swaps everything that may go.
        threshold_bytes: Smaller tensors stay on the device.
        allowed: What may be done with a tensor beside keeping it: "swap", "recompute".
        quiet: Print nothing.
    """

    def __init__(
        self,
        budget: int | None = None,
        *,
        threshold_bytes: int = MIB,
        allowed: Sequence[str] = ("swap", "recompute"),
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self.budget = budget
        self.threshold_bytes = threshold_bytes
        self.allowed = tuple(allowed)
        self.quiet = quiet
        self.plans: list[Plan] = []
        self._undo: Callable[[], None] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._install(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._remove()

    @contextmanager
    def on(self, model: keras.Model):
        """Support a model's training while the context lasts: for train_on_batch."""
        self._install(model)
        try:
            yield self
        finally:
            self._remove()

    def _install(self, model: keras.Model) -> None:
        self._remove()
        self.plans = []
        self._tier: Tier = HostMemory() if tf.config.list_logical_devices("GPU") else NumpyMemory()
        train_step, jit_compile = model.train_step, model.jit_compile
        # A graph may hold the steps of several replicas, which are traced in turns.
        read_ops: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

        def supported(*args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            begin = len(graph.get_operations())
            logs = train_step(*args, **kwargs)
            ops = graph.get_operations()
            self._rewrite(ops[max(begin, read_ops.get(graph, 0)) :], model)
            read_ops[graph] = len(graph.get_operations())
            return logs

        def undo() -> None:
            del vars(model)["train_step"]
            model.jit_compile = jit_compile
            model.train_function = None

        vars(model)["train_step"] = supported
        model.jit_compile = False
        self._undo = undo
        model.make_train_function(force=True)
        traced = model.train_function

        def guarded(*args: Any) -> Any:
            try:
                return traced(*args)
            except BaseException:
                self._remove()
                raise

        model.train_function = guarded

    def _remove(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _rewrite(self, ops: list[tf.Operation], model: keras.Model) -> None:
        ops = trace.in_order(ops)
        step, handles = trace.read(ops)
        resident = sum(trace.num_bytes(one.value) for one in _variables(model))
        budget = 0 if not self.budget else int(self.budget * (1 - MARGIN)) - resident
        plan = planner.make_plan(
            step,
            budget_bytes=max(budget, 0),
            speeds=SPEEDS,
            threshold_bytes=self.threshold_bytes,
            allowed=self.allowed,
        )
        self.plans.append(plan)
        indices = {one.name: index for index, one in enumerate(step.tensors)}
        decisions = {indices[name]: what for name, what in plan.decisions.items()}
        if decisions:
            rewrite.follow(
                step,
                ops,
                handles,
                decisions,
                tier=self._tier,
                threshold_bytes=self.threshold_bytes,
            )


def _variables(model: keras.Model) -> list[Any]:
    return [*model.variables, *(model.optimizer.variables if model.optimizer else ())]
