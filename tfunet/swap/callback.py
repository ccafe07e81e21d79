"""A Keras callback: trains models and images that do not fit in device memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfunet.config import amount
from tfunet.config.amount import MIB
from tfunet.config.memory_keys import LEAVING
from tfunet.config.words import check_known
from tfunet.graph import forward, passes, reader
from tfunet.graph.capture import taken_over
from tfunet.graph.gradient_sums import in_order_of_graph
from tfunet.graph.step import Trace
from tfunet.machine import device
from tfunet.process.terminal import lines_of
from tfunet.state.away import Away, Left, optimizers_of
from tfunet.state.home import made_at_home
from tfunet.state.shared_slot import are_shared
from tfunet.swap import compiled, planning
from tfunet.swap.arena import device_memory
from tfunet.swap.arena.arena import Memory, step_bytes
from tfunet.swap.held_part import HeldPart, StageOfModel, WholeNetwork
from tfunet.swap.plan.leaving import Leaving
from tfunet.swap.plan.plan import WAYS, Plan, Way
from tfunet.swap.report import text
from tfunet.swap.report.scalars import scalars
from tfunet.swap.search.applied import as_planned, scheduled
from tfunet.swap.search.planner import Planner
from tfunet.swap.search.strategy import Strategy
from tfunet.swap.storage.limits import read_limits
from tfunet.swap.storage.room import Room, local_replicas
from tfunet.swap.storage.rows import Rows
from tfunet.timing.stamps import Note
from tfunet.timing.warm_up import Stopwatch

SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)


class LargeModelSupport(keras.callbacks.Callback):
    """Trains, and evaluates, within a budget of device memory: tensors that are read again later
    are kept, moved to host memory or disk and back, or computed again, whichever is predicted to
    cost least.

    ```python
    model.fit(data, callbacks=[LargeModelSupport()])
    ```

    What is computed does not change: losses and weights are those
    without support, bit for bit where TensorFlow's ops are deterministic, and gradients are added
    up in the order of the graph (`tfunet.graph.gradient_sums`). Evaluations and predictions are
    planned too, in training and with `model.evaluate(..., callbacks=[...])`. The callback changes
    the model's steps (`train_step`, `test_step`, `predict_step`) and `jit_compile` when it begins,
    and restores them when it ends, also after an exception in a step.

    Args:
        budget: Device memory for training on each device, variables and batch included: "auto"
            (what the device has), bytes, "12GiB", or a share of what the device has, "0.5".
        host: The most host memory for the swapped tensors of all replicas of this process: bytes
            or "64GiB". By default there is no limit.
        disk: Folder for the tensors for which `host` has no room: those that stay away longest.
            They lie in a file without a name, which goes with the process, however that ends.
        disk_size: The most that this process may take there: bytes or "500GiB". By default there is
            no limit. If the disk has no room, training ends before its first step.
        weights: What may leave the device beside activations: "state" (the states of optimizers,
            and gradients as they are made; the host updates the weights), "weights" (these, too:
            each comes to the device when it is read), "none", or "auto": as much as leaves a
            quarter of the budget to activations. What left stays off the device when training
            ends, and can be read and saved as ever.
        threshold_bytes: Smaller tensors stay on the device.
        allowed: What may be done with a tensor beside keeping it: "swap", "recompute", and
            "split" where nothing else is enough: the ops around it run in slabs, and the
            tensor is never whole on the device. Sums over all voxels are then rounded differently
            in the last bits.
        margin: Share of the budget that stays free, for what TensorFlow's allocator loses and for
            memory that no tensor shows. By default the allocator is played through a step, and the
            plan with the most memory is taken for which it finds room.
        strategy: What decides about each tensor, instead of a search among what is `allowed`
            (`tfunet.swap.search.strategy`).
        plan: A plan to follow instead of making one, for the same model and batch; see `plans`.
        verbose: 0 prints nothing, 1 a line when planning begins, if it may take long, one when the
            plan is made and one after training.
        note: Told of each copy in each step: "swap out" or "swap in", and between which Unix
            times. On a CPU only: the host does not know of a GPU's copies.

    Attributes:
        plans: One for each training step that was traced.
        evaluation_plans: The same for evaluations and predictions: for those since training began,
            or outside of training for those since the last one began.
        stage_bytes: What each step of `plans` is predicted to hold beside the variables, in the
            blocks of TensorFlow's allocator; for stages only (`plan_stage`).

    Raises ValueError if the model is compiled with jit_compile=True or XLA is forced on (XLA plans
    the memory of a step itself, and moves nothing out), if the model runs eagerly, if a budget
    cannot be read, and for a folder that cannot be written to. Raises OSError before the first
    step if the disk has no room, and out of a step in which it fails.
    """

    def __init__(
        self,
        budget: str | float = "auto",
        *,
        host: str | int | None = None,
        disk: str | Path | None = None,
        disk_size: str | int | None = None,
        weights: Leaving = "auto",
        threshold_bytes: int = MIB,
        allowed: Way | Sequence[Way] = WAYS,
        margin: float | None = None,
        strategy: Strategy | None = None,
        plan: Plan | None = None,
        verbose: int = 1,
        note: Note | None = None,
    ) -> None:
        super().__init__()
        amount.parse(budget)
        self.limits = read_limits(host, disk, disk_size)
        if margin is not None and not 0 <= margin < 1:
            raise ValueError(f"margin must be at least 0 and less than 1, got {margin}.")
        ways = (allowed,) if isinstance(allowed, str) else tuple(allowed)
        if strategy is not None and ways != WAYS:
            raise ValueError(
                "strategy decides about each tensor, and allowed is what the planner may do with "
                "it. Leave out allowed beside strategy."
            )
        check_known("weights", weights, LEAVING)
        planner = Planner(ways)
        self.strategy: Strategy = strategy or planner
        self.budget = budget
        self.margin = margin
        self.weights: Leaving = weights
        self.threshold_bytes = threshold_bytes
        self.allowed = planner.allowed
        self.plan = plan
        self.verbose = verbose
        self.note = note
        self.plans: list[Plan] = []
        self.evaluation_plans: list[Plan] = []
        self.stage_bytes: list[int] = []
        self._undo: Callable[[], None] | None = None
        self._room: Room | None = None
        self._rows = Rows(self.limits)
        self._away: Away | None = None
        self._is_alone = False  # with an evaluation or a prediction, without training
        self._follows = False  # a plan in a training step
        self._stage: StageOfModel | None = None
        self._held: HeldPart
        self._budget = self._first_bytes = 0
        self._timed: dict[Any, Any] = {}  # see `profile.measure`
        self._stopwatch = Stopwatch()
        self._told_of_unknown = False
        self._told_of_onednn = self._told_of_left = False

    @property
    def gives_up(self) -> bool:
        """Whether a plan of a training step gives any tensor up."""
        return any(plan.gives_up for plan in self.plans)

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
        # A CPU without a cap has no memory of its own that tensors could be moved out of.
        used = device.used_bytes() if device.device_bytes() is not None else None
        line = self.plans and text.end_line(
            _largest(self.plans),
            resident_bytes=sum(self._held.sizes()),
            used_bytes=None if used is None else used[1],
            seconds=self._stopwatch.median_seconds(),
        )
        if self.verbose and line:
            print(lines_of(line), flush=True)

    @contextmanager
    def on(self, model: keras.Model, *, trains: bool = True) -> Iterator["LargeModelSupport"]:
        """Support a model while the context lasts: for `train_on_batch` and your own loops.

        One that does not train keeps its optimizer as it is.
        """
        self._install(model, trains=trains)
        try:
            yield self
        finally:
            self._remove()

    def guarding(self, run: Callable[..., Any], *, evaluates: bool = False) -> Callable[..., Any]:
        """Return a function that runs steps of training or evaluation, and restores the model
        after an exception.

        If a training step follows a plan, TensorFlow's memory optimizer is off, so that gradients
        are added up in the order of the graph (`tfunet.graph.gradient_sums`).

        Raises OSError that says what happened if the disk failed.
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
                # No plan of a stage splits tensors, whatever is allowed.
                allowed = self.allowed if self._stage is None else WAYS
                if isinstance(error, tf.errors.ResourceExhaustedError) and plans:
                    error.add_note(text.out_of_memory_line(plans[-1], allowed=allowed))
                explained = self._rows.explained() or (self._room and self._room.explained())
                self._remove()
                if explained is not None:
                    raise explained from error
                raise

        return guarded

    def evaluating(
        self, step: Callable[..., Any], *, what: str = "evaluation"
    ) -> Callable[..., Any]:
        """Return a forward pass of one replica that is planned, within the budget, when it is
        traced while the support lasts.

        This is for your own loops: the model's `test_step` and `predict_step` are planned anyway.
        `what` names the pass in printed lines.
        """
        return taken_over(step, partial(self._rewrite_forward, what=what))

    def making(self) -> AbstractContextManager[None]:
        """Return a context in which a model can be made whose weights do not fit.

        Each large weight is on the device only while its initializer makes it. Those that may stay
        come back when training begins.
        """
        if self.weights == "none":
            return nullcontext()
        return made_at_home(self._rows, self.threshold_bytes)

    def take_off(self, model: keras.Model, build: Callable[[], None] | None = None) -> None:
        """Take what is to leave of a model's weights, and its optimizers' states, off the device.

        Training does so when it begins. Before its optimizer is built, states are not made there.
        `build` builds it for the weights of a stage.
        """
        if self._away is not None and self._away.model is model:
            return
        obstacle = self._keeps_all_here(model)
        if obstacle and self.weights not in ("auto", "none"):
            raise ValueError(f"weights={self.weights!r} (swap_weights) {obstacle}")
        leaving: Leaving = "none" if obstacle else self.weights
        budget = device_memory.in_bytes(self.budget)
        self._away = Away(model, leaving, budget, self.threshold_bytes, self._rows, build)
        self._away.has_more &= not obstacle
        left = self._away.left
        if self.verbose and self._has_left and not self._told_of_left:
            self._told_of_left = True
            line = text.left_line(left.weights, left.states, self._rows.disk_used)
            print(lines_of(line), flush=True)

    def _keeps_all_here(self, model: keras.Model) -> str:
        """Return why no weights or states can leave the device, in words; "" if some can."""
        if any(are_shared(optimizer.variables) for optimizer in optimizers_of(model)):
            return "is not built for states that devices share out. Leave out one of them."
        if local_replicas(model) == 1:
            return ""
        return (
            "is not built for a process with several replicas. Leave it out, or give each replica "
            "a process: multiworker or horovod."
        )

    def plan_stage(self, variables: Sequence[Any]) -> None:
        """From now on plan steps of a stage of a pipeline, whose device has these variables only.

        In such a step, passes of several micro-batches take turns. Nothing runs in slabs, so that
        results keep their bits.

        Raises ValueError for options that are about the step of a whole network.
        """
        if not isinstance(self.strategy, Planner) or self.plan is not None:
            raise ValueError(
                "In stages, LargeModelSupport makes a plan of its own for each stage. Leave out "
                "plan and strategy."
            )
        self.allowed = tuple(way for way in self.allowed if way != "split")
        self.strategy = Planner(self.allowed)
        self._stage = StageOfModel(variables)

    def _begin_alone(self, logs: dict[str, Any] | None = None) -> None:
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
            self.plans, self.stage_bytes = [], []
            self._follows = False
            self._stopwatch = Stopwatch()
            self._told_of_unknown = False
        self.evaluation_plans = []
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        self._room = Room(
            self.limits, on_gpu=on_gpu, num_replicas=local_replicas(model), note=self.note
        )
        self._budget = device_memory.in_bytes(self.budget)
        if trains:
            self.take_off(model)
        self._held = self._stage or WholeNetwork(model, local_replicas(model))
        self._first_bytes = device_memory.join_regions(self.budget)
        steps = {
            "train_step": taken_over(model.train_step, self._rewrite),
            "test_step": self.evaluating(model.test_step),
            "predict_step": self.evaluating(model.predict_step, what="prediction"),
        }
        self._undo = compiled.replace_steps(model, steps)
        for step, function in compiled.STEPS.items():
            getattr(model, f"make_{function}")(force=True)
            run = vars(model)[function]
            vars(model)[function] = self.guarding(run, evaluates=step != "train_step")

    def _remove(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None
            self._is_alone = False
        if self._away is not None:
            self._away.end()
            self._away = None
        if self._room is not None:
            self._room.close()
            self._room = None

    def _rewrite(self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor]) -> None:
        """Plan a step of one device and make its graph follow the plan."""
        since = time.perf_counter()
        if not any(passes.is_backward(op) for op in ops):
            return
        room = self._open_room()
        trace, handles = self._held.read(ops, results)
        memory = self._memory(trace, handles)
        unknown = reader.of_unknown_size(trace, handles)
        if unknown and self.verbose and not self._told_of_unknown:
            self._told_of_unknown = True
            print(lines_of(text.unknown_line(unknown)), flush=True)
        plan = self.plan or self._make_plan(trace, ops, memory)
        if plan.advice and self._away is not None and self._away.has_more:
            plan = replace(plan, advice=(text.LEAVING_MORE, *plan.advice))
        trace = as_planned(trace, plan)
        if self._stage is not None:
            actions = scheduled(trace, plan)
            self.stage_bytes.append(step_bytes(trace, actions, self._held.sizes()))
        device.forget_peak()  # The peak so far is that of timing the ops.
        self.plans.append(plan)
        # Where everything is kept, TensorFlow's own order would put off what frees memory.
        is_near = plan.peak_bytes > planning.FAR * memory.step_bytes
        if plan.gives_up or is_near or self._has_left:
            planning.follow(plan, trace, ops, handles, room, self.threshold_bytes)
            self._follows = True
        if self.verbose:
            line = text.begin_line(plan, "all of known size" if unknown else "all", trace.untimed)
            print(lines_of(f"{line} Planned in {time.perf_counter() - since:.1f} s."), flush=True)

    def _rewrite_forward(
        self, ops: Sequence[tf.Operation], results: Sequence[tf.Tensor], *, what: str
    ) -> None:
        """Do the same for a forward pass alone, if it does not fit as it is."""
        since = time.perf_counter()
        if self._room is None or not ops:
            return
        trace, handles = self._held.read(ops, results)
        trace = forward.divided(trace)
        with device.uncounted():
            plan = self._make_plan(trace, ops, self._memory(trace, handles))
        self.evaluation_plans.append(plan)
        if plan.gives_up or any(op.brings_weight for op in trace.ops):
            planning.follow(plan, trace, ops, handles, self._room, self.threshold_bytes)
        line = text.forward_line(plan, what)
        if self.verbose and line:
            print(lines_of(f"{line} Planned in {time.perf_counter() - since:.1f} s."), flush=True)

    def _memory(self, trace: Trace, handles: Sequence[tf.Tensor]) -> Memory:
        memory = device_memory.before_step(
            self._held.sizes(), self._budget, self._first_bytes, trace, handles
        )
        return self._held.left(memory, trace)

    def _make_plan(self, trace: Trace, ops: Sequence[tf.Operation], memory: Memory) -> Plan:
        make = planning.make_plan
        if tf.config.list_logical_devices("GPU"):
            make = in_order_of_graph(make)  # Ops are timed as they will run.
        plan = make(
            trace,
            ops,
            self._open_room(),
            memory,
            self._timed,
            strategy=self.strategy,
            threshold_bytes=self.threshold_bytes,
            margin=self.margin,
            say=self._begins,
        )
        return self._held.advised(plan)

    def _begins(self, line: str) -> None:
        """Print that planning begins, and once what makes it, and training, take longer."""
        if not self.verbose:
            return
        print(lines_of(line), flush=True)
        if not self._told_of_onednn and device.lacks_onednn():
            print(text.ONEDNN_LINE, flush=True)
        self._told_of_onednn = True

    @property
    def _has_left(self) -> bool:
        """Whether weights or states are off the device: then ops run in the order of the plan."""
        return self._away is not None and self._away.left != Left()

    def _open_room(self) -> Room:
        """Return where tensors go that are given up."""
        if self._room is None:
            raise ValueError("This step is of a model that is not supported any more.")
        return self._room


def _largest(plans: Sequence[Plan]) -> Plan:
    return max(plans, key=lambda plan: plan.unlimited_peak_bytes)
