"""Large-model support: a Keras callback that trains what does not fit in device memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfunet.stamps import Note
from tfunet.swap import amount, compiled, exact, planner, profile, rewrite, tflms, trace
from tfunet.swap import budget as budgets
from tfunet.swap import compression as compressions
from tfunet.swap.costs import Costs
from tfunet.swap.fitting import Memory, fitted
from tfunet.swap.plan import WAYS, Plan, Way
from tfunet.swap.planned import cut, scheduled
from tfunet.swap.room import Room, local_replicas, read_limits
from tfunet.swap.scalars import scalars
from tfunet.swap.schedule import memory, schedule
from tfunet.swap.show import begin_line, end_line, out_of_memory_line
from tfunet.swap.steps import Trace
from tfunet.swap.stopwatch import Stopwatch
from tfunet.swap.tiers import Tiers, with_advice

MIB = 2**20
# A step whose tensors fill no such part of the budget fits with any scratch, and in any order.
FAR = 1 / 4
SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
    data_class="DATA_CLASS_SCALAR",
)


class LargeModelSupport(keras.callbacks.Callback):
    """Trains within a budget of device memory: tensors that the backward pass needs are kept,
    moved to host memory or disk and back, or computed again, whichever is predicted to cost least.

    ```python
    model.fit(data, callbacks=[LargeModelSupport()])
    ```

    It changes nothing in what is computed (but with `compression`): losses and weights are those
    without it, bit for bit where TensorFlow's ops are deterministic. Before training it changes the
    model's `train_step` and `jit_compile`, and afterwards, also after an exception in a step, they
    are as they were.

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
            of the first three, or is -1, is found for the budget. `tfunet.swap.tflms.Rule` and
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
        plans: One for each step that was traced.

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
        self._undo: Callable[[], None] | None = None
        self._room: Room | None = None
        self._stopwatch = Stopwatch()
        self._told_of_unknown = False

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
        used = budgets.used_bytes() if budgets.device_bytes() is not None else None
        line = self.plans and end_line(
            _largest(self.plans),
            resident_bytes=resident_bytes(self.model),
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

    def guarding(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs steps, and after an exception leaves the model as it was.

        Raises OSError, and says so in words, where it was the disk that failed.
        """

        def guarded(*args: Any) -> Any:
            try:
                return run(*args)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise  # The data of an epoch has ended; another may follow.
            except BaseException as error:
                if isinstance(error, tf.errors.ResourceExhaustedError) and self.plans:
                    error.add_note(out_of_memory_line(self.plans[-1], allowed=self.allowed))
                explained = self._room and self._room.explained()
                self._remove()
                if explained is not None:
                    raise explained from error
                raise

        return guarded

    def _install(self, model: keras.Model) -> None:
        self._remove()
        compiled.check(model)
        _build_optimizer(model)
        self.plans = []
        self._stopwatch = Stopwatch()
        self._told_of_unknown = False
        on_gpu = bool(tf.config.list_logical_devices("GPU"))
        room = self._room = Room(
            self.limits, on_gpu=on_gpu, num_replicas=local_replicas(model), note=self.note
        )
        if self.verbose and (line := budgets.far_line()):
            print(line, flush=True)
        limit_bytes = budgets.in_bytes(self.budget)
        first_bytes = budgets.join_regions()
        train_step, jit_compile = model.train_step, model.jit_compile
        own_step = vars(model).get("train_step")  # of the instance, if the user gave it one

        def supported(*args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            begin = len(graph.get_operations())
            logs = train_step(*args, **kwargs)
            ops = _of_this_replica(graph.get_operations()[begin:])
            results = [one for one in tf.nest.flatten(logs) if tf.is_tensor(one)]
            # Readers, so that the step returns what a plan puts in the place of a result.
            logs = tf.nest.map_structure(_read, logs)
            ops = trace.in_order(ops, results)
            given = [one for one in tf.nest.flatten((args, kwargs)) if tf.is_tensor(one)]
            batch_bytes = sum(trace.num_bytes(one) for one in given)
            device = _memory(model, limit_bytes, first_bytes, batch_bytes)
            self._rewrite(ops, room, device, results)
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
        model.train_function = self.guarding(model.train_function)

    def _remove(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None
        if self._room is not None:
            self._room.close()
            self._room = None

    def _make_plan(
        self, step: Trace, ops: Sequence[tf.Operation], room: Room, device: Memory
    ) -> Plan:
        tiers = room.left(ops[0].graph, ops[0].device)
        costs = Costs(
            op_seconds=[0.0] * len(ops),
            out_bytes_per_second=1.0,
            in_bytes_per_second=1.0,
            tiers=tiers,
        )
        scratch: dict[int, int] = {}
        if self.rule or _needs(step) > FAR * device.step_bytes:
            with tf.init_scope():
                costs, scratch = profile.measure(step, ops, room.host)
            costs = replace(costs, tiers=room.timed(tiers))

        def planned(tiers: Tiers, step_bytes: int) -> Plan:
            if self.rule is not None:
                return tflms.make_plan(
                    step,
                    self.rule,
                    budget_bytes=step_bytes,
                    costs=replace(costs, tiers=tiers),
                    threshold_bytes=self.threshold_bytes,
                    scratch=scratch,
                )
            return planner.make_plan(
                step,
                budget_bytes=step_bytes,
                costs=replace(costs, tiers=tiers),
                threshold_bytes=self.threshold_bytes,
                scratch=scratch,
                allowed=self.allowed,
            )

        device = replace(device, more_bytes=device.more_bytes + step.constant_bytes)

        def best(most_bytes: int | None = None) -> Plan:
            def make(step_bytes: int) -> Plan:
                return with_advice(lambda tiers: planned(tiers, step_bytes), costs.tiers)

            if self.margin is not None:
                left = device.limit_bytes * (1 - self.margin) - sum(device.resident)
                return make(max(0, int(left)))
            return fitted(step, device, make, scratch, most_bytes=most_bytes)

        plan = best()
        if plan.split:
            with tf.init_scope():
                costs = profile.with_slabs(step, cut(step, plan), ops, costs)
            plan = best(plan.budget_bytes)
        return plan

    def _rewrite(
        self,
        ops: Sequence[tf.Operation],
        room: Room,
        device: Memory,
        results: Sequence[tf.Tensor],
    ) -> None:
        """Plan a step of one device and make its graph follow the plan."""
        since = time.perf_counter()
        step, handles = trace.read(ops, results, compression=self.compression)
        if not step.ops:
            return
        unknown = trace.of_unknown_size(step, handles)
        self._tell_of_unknown(unknown)
        plan = self.plan or self._make_plan(step, ops, room, device)
        compressions.check_plan(plan, self.compression)
        step = exact.as_planned(step, plan)
        budgets.forget_peak()  # That of timing the ops is not training's.
        self.plans.append(plan)
        # Where everything is kept, TensorFlow's own order would put off what frees memory.
        changes = plan.decisions or plan.split or plan.serialized
        if changes or plan.peak_bytes > FAR * device.step_bytes:
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
            )
        if self.verbose:
            line = begin_line(plan, "all of known size" if unknown else "all")
            line += f" By the rule of TFLMS v2: {plan.rule}." if plan.rule else ""
            print(f"{line} Planned in {time.perf_counter() - since:.1f} s.", flush=True)

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


def _read(result: Any) -> Any:
    return tf.identity(result) if isinstance(result, tf.Tensor) else result


def _build_optimizer(model: keras.Model) -> None:
    """Make the optimizer's variables, which are part of what a device holds.

    Where a step made them, TensorFlow would trace it, and we plan it, twice.
    """
    if model.built and model.optimizer and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def _of_this_replica(ops: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return those of the replica that is being traced; none if these are of no step.

    Replicas of one process are traced into one graph, in turn, each under its own device.
    """
    device = tf.no_op().device
    own = [op for op in ops if op.device == device]
    return own if any(trace.is_backward(op) for op in own) else []


def _memory(model: keras.Model, limit_bytes: int, first_bytes: int, batch_bytes: int) -> Memory:
    resident = variable_bytes(model)
    used = budgets.used_bytes() if budgets.device_bytes() is not None else None
    return Memory(
        limit_bytes=limit_bytes,
        first_bytes=first_bytes,
        resident=resident,
        more_bytes=max(batch_bytes, 0 if used is None else used[0] - sum(resident)),
    )


def _needs(step: Trace) -> int:
    return int(memory(step, schedule(step, {})).max(initial=0))


def resident_bytes(model: keras.Model) -> int:
    """Return what is in device memory before the step: weights and the optimizer's variables."""
    return sum(variable_bytes(model))


def variable_bytes(model: keras.Model) -> list[int]:
    """Return the bytes of each of the weights and of the optimizer's variables."""
    optimizer = model.optimizer.variables if model.optimizer else ()
    return [trace.num_bytes(one.value) for one in (*model.variables, *optimizer)]
