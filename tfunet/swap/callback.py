"""Large-model support: a Keras callback that trains what does not fit in device memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfunet.stamps import Note
from tfunet.swap import amount, planner, profile, rewrite, trace
from tfunet.swap import budget as budgets
from tfunet.swap.costs import Costs
from tfunet.swap.host import HostMemory, NumpyMemory, Tier
from tfunet.swap.plan import Decision, Plan
from tfunet.swap.schedule import Action, memory, schedule
from tfunet.swap.steps import Trace
from tfunet.swap.timeline import Moves, moved

MIB = 2**20
# Of the device memory: what TensorFlow's allocator loses, which hands out blocks of up to twice the
# size that was asked for, and scratch that no tensor shows. Measured: docs/large-models.md.
MARGIN = 0.2
# A step whose tensors fill no such part of the budget fits with any scratch, and in any order.
FAR = 1 / 4


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
        margin: Share of the budget that is left to what TensorFlow's allocator loses, and to
            memory that no tensor shows.
        plan: A plan to follow instead of making one, for the same model and batch; see `plans`.
        verbose: 0 prints nothing, 1 a line when the plan is made and one after training.
        note: Told of each copy in each step: "swap out" or "swap in", and between which Unix
            times. On a CPU only: of a GPU's copies the host does not know.

    Attributes:
        plans: One for each step that was traced.

    Raises ValueError where a model is compiled with jit_compile=True (XLA plans the memory of a
    step itself, and moves nothing out) or runs eagerly, and where the budget cannot be read.
    """

    def __init__(
        self,
        budget: str | float = "auto",
        *,
        threshold_bytes: int = MIB,
        allowed: Sequence[Decision] = ("swap", "recompute"),
        margin: float = MARGIN,
        plan: Plan | None = None,
        verbose: int = 1,
        note: Note | None = None,
    ) -> None:
        super().__init__()
        amount.parse(budget)
        unknown = set(allowed) - {"swap", "recompute"}
        if unknown:
            raise ValueError(
                f"allowed={tuple(allowed)} has {sorted(unknown)}. Known: 'swap', 'recompute'."
            )
        if not 0 <= margin < 1:
            raise ValueError(f"margin must be at least 0 and less than 1, got {margin}.")
        self.budget = budget
        self.margin = margin
        self.threshold_bytes = threshold_bytes
        self.allowed = tuple(allowed)
        self.plan = plan
        self.verbose = verbose
        self.note = note
        self.plans: list[Plan] = []
        self._undo: Callable[[], None] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._install(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._remove()
        # A CPU without a cap is no device that tensors could be moved out of.
        used = budgets.used_bytes() if budgets.device_bytes() is not None else None
        if self.verbose and self.plans and used is not None:
            predicted = resident_bytes(self.model) + self.plans[-1].peak_bytes
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
        _build_optimizer(model)
        self.plans = []
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        tier: Tier = HostMemory() if on_gpu else NumpyMemory(self.note)
        usable_bytes = int(budgets.in_bytes(self.budget) * (1 - self.margin))
        train_step, jit_compile = model.train_step, model.jit_compile
        own_step = vars(model).get("train_step")  # of the instance, if the user gave it one

        def supported(*args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            begin = len(graph.get_operations())
            logs = train_step(*args, **kwargs)
            ops = _of_this_replica(graph.get_operations()[begin:])
            results = [one for one in tf.nest.flatten(logs) if tf.is_tensor(one)]
            ops = trace.in_order(ops, results)
            self._rewrite(ops, tier, usable_bytes - resident_bytes(model))
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

    def _make_plan(
        self, step: Trace, ops: Sequence[tf.Operation], tier: Tier, step_bytes: int
    ) -> Plan:
        costs = Costs(
            op_seconds=[0.0] * len(ops), out_bytes_per_second=1.0, in_bytes_per_second=1.0
        )
        scratch: dict[int, int] = {}
        if memory(step, schedule(step, {})).max(initial=0) > FAR * step_bytes:
            with tf.init_scope():
                costs, scratch = profile.measure(step, ops, tier)
        return planner.make_plan(
            step,
            budget_bytes=step_bytes,
            costs=costs,
            threshold_bytes=self.threshold_bytes,
            scratch=scratch,
            allowed=self.allowed,
        )

    def _rewrite(self, ops: Sequence[tf.Operation], tier: Tier, step_bytes: int) -> None:
        """Plan a step of one device and make its graph follow the plan."""
        since = time.perf_counter()
        step, handles = trace.read(ops)
        if not step.ops:
            return
        plan = self.plan or self._make_plan(step, ops, tier, max(0, step_bytes))
        budgets.forget_peak()  # That of timing the ops is not training's.
        self.plans.append(plan)
        # Where everything is kept, TensorFlow's own order would put off what frees memory.
        if plan.decisions or plan.peak_bytes > FAR * step_bytes:
            rewrite.follow(
                step,
                ops,
                handles,
                scheduled(step, plan),
                tier=tier,
                threshold_bytes=self.threshold_bytes,
            )
        if self.verbose:
            print(f"{_line(plan)} Planned in {time.perf_counter() - since:.1f} s.", flush=True)


def scheduled(step: Trace, plan: Plan) -> list[Action]:
    """Return the actions of a step under a plan; ValueError if it is a plan of another step."""
    tensors = {one.name: index for index, one in enumerate(step.tensors)}
    ops = {one.name: index for index, one in enumerate(step.ops)}
    places = {**plan.awaited, **plan.fetched}
    missing = sorted({*plan.decisions, *places} - tensors.keys())
    missing += sorted(set(places.values()) - ops.keys())
    if missing:
        raise ValueError(
            f"The plan names {missing[0]} and {len(missing) - 1} more tensors and ops that this "
            "step does not have: it is of another model or batch. Leave plan out to make a new one."
        )
    actions = schedule(step, {tensors[name]: what for name, what in plan.decisions.items()})
    moves = Moves(
        awaited={tensors[one]: ops[op] for one, op in plan.awaited.items()},
        fetched={tensors[one]: ops[op] for one, op in plan.fetched.items()},
    )
    return moved(actions, moves)


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


def _build_optimizer(model: keras.Model) -> None:
    """Make the optimizer's variables, which are part of what a device holds.

    Where a step made them, TensorFlow would trace it, and we plan it, twice.
    """
    if model.built and model.optimizer and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


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
        f"{plan.unlimited_peak_bytes / MIB:.0f}, and {plan.step_seconds:.3g} s instead of "
        f"{plan.unlimited_step_seconds:.3g}."
    )
    if plan.peak_bytes > plan.budget_bytes:
        text += (
            f" That is more than the {plan.budget_bytes / MIB:.0f} MiB that a step may use; the "
            f"largest single op needs {plan.floor_bytes / MIB:.0f} MiB ({plan.floor_op}). A "
            "smaller patch, fewer filters or mixed_bfloat16 would help."
        )
    return text


def _of_this_replica(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return those of the replica that is being traced; none if these are of no step.

    Replicas of one process are traced into one graph, in turn, each under its own device.
    """
    device = tf.no_op().device
    own = [op for op in ops if op.device == device]
    return own if any(trace.is_backward(op) for op in own) else []


def resident_bytes(model: keras.Model) -> int:
    """Return what is in device memory before the step: weights and the optimizer's variables."""
    optimizer = model.optimizer.variables if model.optimizer else ()
    return sum(trace.num_bytes(one.value) for one in (*model.variables, *optimizer))
