"""Large-model support: a Keras callback that trains what does not fit in device memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfunet.config import amount
from tfunet.config import compression as compressions
from tfunet.config.amount import MIB
from tfunet.graph import forward, reader
from tfunet.graph.capture import taken_over
from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.graph.step import Trace
from tfunet.machine import device
from tfunet.swap import compiled, making
from tfunet.swap.arena import budget as budgets
from tfunet.swap.arena import device_memory
from tfunet.swap.arena.memory import Memory
from tfunet.swap.plan.plan import WAYS, Plan, Way, check_plan
from tfunet.swap.report.scalars import scalars
from tfunet.swap.report.stopwatch import Stopwatch
from tfunet.swap.report.text import begin_line, end_line, forward_line, out_of_memory_line
from tfunet.swap.rewrite import rewrite
from tfunet.swap.search import tflms
from tfunet.swap.search.applied import as_planned, cut, scheduled
from tfunet.swap.storage.room import Room, local_replicas, read_limits
from tfunet.timing.stamps import Note

SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)
# Of a model: its steps, and the functions that run them.
STEPS = {
    "train_step": "train_function",
    "test_step": "test_function",
    "predict_step": "predict_function",
}


class LargeModelSupport(keras.callbacks.Callback):
    """Trains, and evaluates, within a budget of device memory: tensors that are read again later
    are kept, moved to host memory or disk and back, or computed again, whichever is predicted to
    cost least.

    ```python
    model.fit(data, callbacks=[LargeModelSupport()])
    ```

    It changes nothing in what is computed (but with `compression`): losses and weights are those
    without it, bit for bit where TensorFlow's ops are deterministic, and gradients are added up in
    the order of the graph (`tfunet.graph.gradient_sums`). Evaluations and predictions
    are planned too, in training and with `model.evaluate(..., callbacks=[...])`. Before it begins
    it changes the model's steps (`train_step`, `test_step`, `predict_step`) and `jit_compile`, and
    afterwards, also after an exception in a step, they are as they were.

    Args:
        budget: Device memory for training on each device, variables and batch included: "auto"
            (what the device has), bytes, "12GiB", or a share of what the device has, "0.5".
        host_budget: Host memory for the swapped tensors of all replicas of this process: bytes or
            "64GiB". By default there is no limit.
        disk: Folder for tensors beyond the host budget, those first that stay away longest. They
            lie in a file without a name, which goes with the process, however that ends.
        disk_budget: What this process may take there: bytes or "500GiB". By default there is no
            limit; a disk that has no room ends training before its first step.
        compression: "bfloat16" rounds what is swapped to 16 bits: copies, host memory and disk take
            half, and losses and weights are other ones. By default it is swapped as it is.
        threshold_bytes: Smaller tensors stay on the device.
        allowed: What may be done with a tensor beside keeping it: "swap", "recompute", and
            "split" where nothing else is enough: the ops around it run in slabs, and the
            tensor is never whole on the device. What is summed over all voxels then rounds
            differently in the last bits.
        margin: Share of the budget that is left to what TensorFlow's allocator loses, and to
            memory that no tensor shows. By default the allocator is played through a step, and the
            plan with the most memory is taken for which it finds room.
        plan: A plan to follow instead of making one, for the same model and batch; see `plans`.
        swapout_threshold: This and the next five are the parameters of TFLMS v2. With any of them
            the plan is made by its rule, of swapping alone, whatever the budget; what is left out
            of the first three, or is -1, is found for the budget. `tflms.Rule` and
            docs/large-models.md have more. A tensor is swapped for its readers in the backward
            pass that are more than so many levels of the graph from the op that made it.
        swapin_ahead: A copy back begins so many levels before it is read.
        swapin_groupby: Readers with at most so many levels from one to the next share a copy back.
        sync_mode: 1 has the step wait for copies to the host, 2 for those back, 3 for both.
        serialization: Levels whose ops run one after the other: [1, "3:5"].
        serialization_by_size: So do those of levels that read and make more than so many GiB.
        verbose: 0 prints nothing, 1 a line when the plan is made and one after training.
        note: Told of each copy in each step: "swap out" or "swap in", and between which Unix
            times. On a CPU only: of a GPU's copies the host does not know.

    Attributes:
        plans: One for each training step that was traced.
        evaluation_plans: The same of evaluations and predictions, since training began, or since
            the evaluation did that is no part of one.

    Raises ValueError where a model is compiled with jit_compile=True or XLA is forced on (it plans
    the memory of a step itself, and moves nothing out), where it runs eagerly, where a budget
    cannot be read, and for a folder that cannot be written to. Raises OSError before the first
    step where the disk has no room, and out of a step in which it fails.
    """

    def __init__(
        self,
        budget: str | float = "auto",
        *,
        host_budget: str | int | None = None,
        disk: str | Path | None = None,
        disk_budget: str | int | None = None,
        compression: str | None = None,
        threshold_bytes: int = MIB,
        allowed: Sequence[Way] = WAYS,
        margin: float | None = None,
        plan: Plan | None = None,
        swapout_threshold: int | None = None,
        swapin_ahead: int | None = None,
        swapin_groupby: int | None = None,
        sync_mode: int | None = None,
        serialization: Sequence[int | str] = (),
        serialization_by_size: float = 0.0,
        verbose: int = 1,
        note: Note | None = None,
    ) -> None:
        super().__init__()
        amount.parse(budget)
        self.limits = read_limits(host_budget, disk, disk_budget)
        compressions.check("compression", compression)
        unknown = sorted(set(allowed) - set(WAYS))
        if unknown:
            known = ", ".join(map(repr, WAYS))
            raise ValueError(f"allowed={tuple(allowed)} has {unknown}. Known: {known}.")
        if margin is not None and not 0 <= margin < 1:
            raise ValueError(f"margin must be at least 0 and less than 1, got {margin}.")
        self.budget = budget
        self.compression = compression
        self.margin = margin
        self.threshold_bytes = threshold_bytes
        self.allowed = tuple(allowed)
        self.plan = plan
        rule = tflms.Rule(
            swapout_threshold=swapout_threshold,
            swapin_ahead=swapin_ahead,
            swapin_groupby=swapin_groupby,
            sync_mode=sync_mode,
            serialization=serialization,
            serialization_by_size=serialization_by_size,
        )
        self.rule = tflms.checked(rule, plan=plan, allowed=allowed, compression=compression)
        self.verbose = verbose
        self.note = note
        self.plans: list[Plan] = []
        self.evaluation_plans: list[Plan] = []
        self._undo: Callable[[], None] | None = None
        self._room: Room | None = None
        self._is_alone = False  # with an evaluation or a prediction, without training
        self._follows = False  # a plan in a training step
        self._memory: Callable[[Trace, Sequence[tf.Tensor]], Memory]
        self._timed: dict[Any, Any] = {}  # see `profile.measure`
        self._stopwatch = Stopwatch()
        self._told_of_unknown = False

    @property
    def gives_up(self) -> bool:
        """Whether a plan of a training step gives any tensor up."""
        return any(one.gives_up for one in self.plans)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._install(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._stopwatch.begin(len(self.plans))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._stopwatch.end(len(self.plans), steps=self.model.steps_per_execution)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.plans:
            # Not tf.summary.scalar, which without TensorBoard fails, also where nothing is written.
            for name, value in scalars(_largest(self.plans)).items():
                tf.summary.write(name, tf.constant(value, tf.float32), epoch, SCALAR)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._remove()
        # A CPU without a cap is no device that tensors could be moved out of.
        used = device.used_bytes() if device.device_bytes() is not None else None
        line = self.plans and end_line(
            _largest(self.plans),
            resident_bytes=device_memory.resident_bytes(self.model),
            used_bytes=None if used is None else used[1],
            seconds=self._stopwatch.median_seconds(),
        )
        if self.verbose and line:
            print(line, flush=True)

    @contextmanager
    def on(self, model: keras.Model) -> Iterator["LargeModelSupport"]:
        """Support a model while the context lasts: for `train_on_batch` and loops of one's own."""
        self._install(model)
        try:
            yield self
        finally:
            self._remove()

    def guarding(self, run: Callable[..., Any], *, evaluates: bool = False) -> Callable[..., Any]:
        """Return a function that runs steps, of training or of evaluation, and after an exception
        leaves the model as it was.

        Those of training add up gradients in the order of their graph, where they follow a plan:
        TensorFlow's memory optimizer is off (`tfunet.graph.gradient_sums`).

        Raises OSError, and says so in words, where it was the disk that failed.
        """
        if not evaluates:
            run = in_order_of_graph(run, lambda: self._follows)

        def guarded(*args: Any) -> Any:
            try:
                return run(*args)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise  # The data of an epoch has ended; another may follow.
            except BaseException as error:
                plans = self.evaluation_plans if evaluates else self.plans
                if isinstance(error, tf.errors.ResourceExhaustedError) and plans:
                    error.add_note(out_of_memory_line(plans[-1], allowed=self.allowed))
                explained = self._room and self._room.explained()
                self._remove()
                if explained is not None:
                    raise explained from error
                raise

        return guarded

    def evaluating(
        self, step: Callable[..., Any], *, what: str = "evaluation"
    ) -> Callable[..., Any]:
        """Return a forward pass, of one replica, that is planned when it is traced.

        Within the budget, while the support lasts. The model's own `test_step` and `predict_step`
        are such meanwhile; this is for loops of one's own. `what` is what it is called where the
        plan is told.
        """
        return taken_over(step, partial(self._rewrite_forward, what=what))

    def _begin_alone(self, logs: dict[str, Any] | None = None) -> None:
        """Support an evaluation or a prediction, if it is no part of training."""
        if self._undo is None:
            self._install(self.model, trains=False)
            self._is_alone = True

    def _end_alone(self, logs: dict[str, Any] | None = None) -> None:
        if self._is_alone:
            self._remove()

    on_test_begin = on_predict_begin = _begin_alone
    on_test_end = on_predict_end = _end_alone

    def _install(self, model: keras.Model, *, trains: bool = True) -> None:
        self._remove()
        compiled.check(model)
        if trains:
            compiled.build_optimizer(model)
            self.plans = []
            self._follows = False
            self._stopwatch = Stopwatch()
            self._told_of_unknown = False
        self.evaluation_plans = []
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        self._room = Room(
            self.limits, on_gpu=on_gpu, num_replicas=local_replicas(model), note=self.note
        )
        self._memory = partial(
            device_memory.of_model, model, budgets.in_bytes(self.budget), budgets.join_regions()
        )
        jit_compile = model.jit_compile
        own = {one: vars(model)[one] for one in STEPS if one in vars(model)}  # of the user
        steps = {
            "train_step": taken_over(model.train_step, self._rewrite),
            "test_step": self.evaluating(model.test_step),
            "predict_step": self.evaluating(model.predict_step, what="prediction"),
        }

        def undo() -> None:
            for step, function in STEPS.items():
                vars(model).pop(step, None)
                vars(model)[function] = None
            vars(model).update(own)
            model.jit_compile = jit_compile

        vars(model).update(steps)
        model.jit_compile = False
        self._undo = undo
        for step, function in STEPS.items():
            getattr(model, f"make_{function}")(force=True)
            run = vars(model)[function]
            vars(model)[function] = self.guarding(run, evaluates=step != "train_step")

    def _remove(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None
            self._is_alone = False
        if self._room is not None:
            self._room.close()
            self._room = None

    def _rewrite(self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> None:
        """Plan a step of one device and make its graph follow the plan."""
        since = time.perf_counter()
        if not any(reader.is_backward(op) for op in ops):
            return
        room = self._place()
        step, handles = reader.read(ops, results, compression=self.compression)
        memory = self._memory(step, handles)
        unknown = reader.of_unknown_size(step, handles)
        self._tell_of_unknown(unknown)
        plan = self.plan or self._make_plan(step, ops, memory)
        check_plan(plan, self.compression)
        step = as_planned(step, plan)
        device.forget_peak()  # That of timing the ops is not training's.
        self.plans.append(plan)
        # Where everything is kept, TensorFlow's own order would put off what frees memory.
        if plan.gives_up or plan.serialized or plan.peak_bytes > making.FAR * memory.step_bytes:
            self._follow(plan, step, ops, handles, room)
            self._follows = True
        if self.verbose:
            line = begin_line(plan, "all of known size" if unknown else "all")
            line += f" By the rule of TFLMS v2: {plan.rule}." if plan.rule else ""
            print(f"{line} Planned in {time.perf_counter() - since:.1f} s.", flush=True)

    def _rewrite_forward(
        self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor], *, what: str
    ) -> None:
        """Do the same for a forward pass alone, where it does not fit as it is."""
        since = time.perf_counter()
        if self._room is None or not ops:
            return
        room = self._place()
        # Never compressed: what it computes is what it is for.
        step, handles = reader.read(ops, results)
        step = forward.divided(step)
        with device.uncounted():
            plan = self._make_plan(step, ops, self._memory(step, handles))
        self.evaluation_plans.append(plan)
        if plan.gives_up:
            self._follow(plan, step, ops, handles, room)
        line = forward_line(plan, what)
        if self.verbose and line:
            print(f"{line} Planned in {time.perf_counter() - since:.1f} s.", flush=True)

    def _make_plan(self, step: Trace, ops: Sequence[tf.Operation], memory: Memory) -> Plan:
        wanted = making.Wanted(
            threshold_bytes=self.threshold_bytes,
            allowed=self.allowed,
            margin=self.margin,
            rule=self.rule,
        )
        return making.make_plan(step, ops, self._place(), memory, wanted, self._timed)

    def _place(self) -> Room:
        """Return where tensors go that are given up."""
        if self._room is None:
            raise ValueError("This step is of a model that is supported no more.")
        return self._room

    def _follow(
        self,
        plan: Plan,
        step: Trace,
        ops: Sequence[tf.Operation],
        handles: Sequence[tf.Tensor],
        room: Room,
    ) -> None:
        found = cut(step, plan)
        rewrite.follow(
            found,
            step,
            ops,
            handles,
            scheduled(found.trace, plan),
            tier=room.tier(plan, step, ops[0].graph, ops[0].device),
            threshold_bytes=self.threshold_bytes,
            serialized=frozenset(plan.serialized),
            is_placed=plan.is_placed,
        )

    def _tell_of_unknown(self, unknown: Sequence[str]) -> None:
        if not (unknown and self.verbose) or self._told_of_unknown:
            return
        self._told_of_unknown = True
        print(
            f"Large-model support: {len(unknown)} tensors that the backward pass reads, such as "
            f"{unknown[0]}, have a shape that is not known when the step is traced. They are kept, "
            "and predictions leave them out. Give the model's Input a whole shape and all batches "
            "one size (drop_remainder=True, or as many samples as fill them).",
            flush=True,
        )


def _largest(plans: Sequence[Plan]) -> Plan:
    return max(plans, key=lambda one: one.unlimited_peak_bytes)
