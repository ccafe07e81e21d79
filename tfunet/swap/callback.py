"""Large-model support: a Keras callback that trains what does not fit in device memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfunet.swap import budget as budgets
from tfunet.swap import planner, rewrite, trace
from tfunet.swap.host import HostMemory, NumpyMemory, Tier
from tfunet.swap.plan import Decision, Plan

MIB = 2**20
# Of the device memory: what TensorFlow's allocator loses, which hands out blocks of up to twice the
# size that was asked for, and scratch that no tensor shows. Measured: docs/large-models.md.
MARGIN = 0.2
SPEEDS = planner.Speeds(
    flops_per_second=5e10,
    bytes_per_second=5e9,
    out_bytes_per_second=5e9,
    in_bytes_per_second=5e9,
)


class LargeModelSupport(keras.callbacks.Callback):
    """Trains within a budget of device memory: tensors that the backward pass needs are kept,
    moved to host memory and back, or computed again, whichever is predicted to cost least.

    ```python
    model.fit(data, callbacks=[LargeModelSupport()])
    ```

    It changes nothing in what is computed: losses and weights are those without it, bit for bit
    where TensorFlow's ops are deterministic. Before training it changes the model's `train_step`
    and `jit_compile`, and afterwards, also after an exception in a step, they are as they were.

    Args:
        budget: Device memory for training on each device, variables and batch included: "auto"
            (what the device has), bytes, "12GiB", or a share of what the device has, "0.5".
        threshold_bytes: Smaller tensors stay on the device.
        allowed: What may be done with a tensor beside keeping it: "swap", "recompute".
        plan: A plan to follow instead of making one, for the same model and batch; see `plans`.
        verbose: 0 prints nothing, 1 a line when the plan is made and one after training.

    Attributes:
        plans: One for each step that was traced.

    Raises ValueError where a model is compiled with jit_compile=True (XLA plans the memory of a
    step itself, and moves nothing out), runs eagerly or has several replicas in this process
    (MirroredStrategy), and where the budget cannot be read.
    """

    def __init__(
        self,
        budget: str | float = "auto",
        *,
        threshold_bytes: int = MIB,
        allowed: Sequence[Decision] = ("swap", "recompute"),
        plan: Plan | None = None,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        budgets.parse(budget)
        unknown = set(allowed) - {"swap", "recompute"}
        if unknown:
            raise ValueError(
                f"allowed={tuple(allowed)} has {sorted(unknown)}. Known: 'swap', 'recompute'."
            )
        self.budget = budget
        self.threshold_bytes = threshold_bytes
        self.allowed = tuple(allowed)
        self.plan = plan
        self.verbose = verbose
        self.plans: list[Plan] = []
        self._undo: Callable[[], None] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._install(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._remove()
        used = budgets.used_bytes()
        if self.verbose and self.plans and used is not None:
            predicted = _resident_bytes(self.model) + self.plans[-1].peak_bytes
            print(
                f"Large-model support: {used[1] / MIB:.0f} MiB at the peak, "
                f"{predicted / MIB:.0f} MiB predicted.",
                flush=True,
            )

    @contextmanager
    def on(self, model: keras.Model) -> Iterator["LargeModelSupport"]:
        """Support a model while the context lasts: for `train_on_batch` and loops of one's own."""
        self._install(model)
        try:
            yield self
        finally:
            self._remove()

    def _install(self, model: keras.Model) -> None:
        self._remove()
        _check(model)
        self.plans = []
        tier: Tier = HostMemory() if tf.config.list_logical_devices("GPU") else NumpyMemory()
        usable_bytes = int(budgets.in_bytes(self.budget) * (1 - MARGIN))
        train_step, jit_compile = model.train_step, model.jit_compile
        own_step = vars(model).get("train_step")  # of the instance, if the user gave it one

        def supported(*args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            begin = len(graph.get_operations())
            logs = train_step(*args, **kwargs)
            ops = graph.get_operations()[begin:]
            self._rewrite(_of_one_device(ops), tier, usable_bytes - _resident_bytes(model))
            return logs

        def undo() -> None:
            vars(model).pop("train_step", None)
            if own_step is not None:
                vars(model)["train_step"] = own_step
            model.jit_compile = jit_compile
            model.train_function = None

        vars(model)["train_step"] = supported
        model.jit_compile = False
        self._undo = undo
        model.make_train_function(force=True)
        run = model.train_function

        def guarded(*args: Any) -> Any:
            try:
                return run(*args)
            except BaseException:
                self._remove()
                raise

        model.train_function = guarded

    def _remove(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _rewrite(self, ops: Sequence[tf.Operation], tier: Tier, step_bytes: int) -> None:
        """Plan a step of one device and make its graph follow the plan."""
        since = time.perf_counter()
        ops = trace.in_order(ops)
        step, handles = trace.read(ops)
        if not step.ops:
            return
        plan = self.plan or planner.make_plan(
            step,
            budget_bytes=max(0, step_bytes),
            speeds=SPEEDS,
            threshold_bytes=self.threshold_bytes,
            allowed=self.allowed,
        )
        self.plans.append(plan)
        indices = {one.name: index for index, one in enumerate(step.tensors)}
        if missing := sorted(plan.decisions.keys() - indices.keys()):
            raise ValueError(
                f"The plan names {missing[0]} and {len(missing) - 1} more tensors that this step "
                "does not have: it is of another model or batch. Leave plan out to make a new one."
            )
        decisions = {indices[name]: what for name, what in plan.decisions.items()}
        if decisions:
            rewrite.follow(
                step, ops, handles, decisions, tier=tier, threshold_bytes=self.threshold_bytes
            )
        if self.verbose:
            print(f"{_line(plan)} Planned in {time.perf_counter() - since:.1f} s.", flush=True)


def _check(model: keras.Model) -> None:
    if model.run_eagerly:
        raise ValueError(
            "Large-model support changes the graph of a step, and with run_eagerly=True there is "
            "none. Compile the model without it."
        )
    if _asks_for_xla(model):
        raise ValueError(
            "Large-model support cannot move tensors out of a step that XLA compiles as a whole. "
            "Compile the model without jit_compile=True."
        )


def _asks_for_xla(model: keras.Model) -> bool:
    """Whether the user, not Keras's own choice, wants XLA."""
    # Not get_compile_config(), which fails for losses and optimizers that cannot be serialised.
    config = getattr(model, "_compile_config", None)
    return config is not None and config.config.get("jit_compile") is True


def _line(plan: Plan) -> str:
    if not plan.decisions:
        return f"Large-model support: all fits, {plan.peak_bytes / MIB:.0f} MiB predicted."
    text = (
        f"Large-model support: {plan.count('swap')} tensors swapped "
        f"({plan.host_bytes / MIB:.0f} MiB on the host), {plan.count('recompute')} recomputed; "
        f"{plan.peak_bytes / MIB:.0f} MiB for a step predicted instead of "
        f"{plan.unlimited_peak_bytes / MIB:.0f}, for {plan.extra_seconds:.2f} s more."
    )
    if plan.peak_bytes > plan.budget_bytes:
        text += (
            f" That is more than the {plan.budget_bytes / MIB:.0f} MiB that a step may use; the "
            f"largest single op needs {plan.floor_bytes / MIB:.0f} MiB ({plan.floor_op}). A "
            "smaller patch, fewer filters or mixed_bfloat16 would help."
        )
    return text


def _of_one_device(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return the ops of the device that has the step; none if these are of no step.

    Raises ValueError if there are several: replicas of one process are traced into one graph.
    """
    devices = sorted({op.device for op in ops if trace.is_backward(op)})
    if len(devices) > 1:
        raise ValueError(
            f"Large-model support cannot yet train {len(devices)} replicas in one process, as "
            f"mirrored does: {', '.join(devices)}. Use a backend with one replica a process: "
            "multiworker or horovod."
        )
    return [op for op in ops if op.device in devices]


def _resident_bytes(model: keras.Model) -> int:
    """Return what is in device memory before the step: weights and the optimizer's variables."""
    optimizer = model.optimizer.variables if model.optimizer else ()
    return sum(trace.num_bytes(one.value) for one in (*model.variables, *optimizer))
