"""What a run tells of its stages: seconds, memory, and where the network is cut."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import tensorflow as tf

from tfunet.config.run import RunConfig
from tfunet.graph.reader import num_bytes
from tfunet.machine.device import watched
from tfunet.models.keras_errors import cause_line
from tfunet.pipeline.network import NodeGraph
from tfunet.pipeline.noise import draws_otherwise
from tfunet.pipeline.own_stage import OwnStage
from tfunet.pipeline.statistics import batch_normalizations
from tfunet.process.full_memory import OF_STAGE
from tfunet.state.home import home_of
from tfunet.swap import LargeModelSupport
from tfunet.swap.plan.plan import Plan
from tfunet.training.attempt import Attempt
from tfunet.training.own_variables import Owned
from tfunet.training.stage_cut import StageCut
from tfunet.training.stage_forecast import forecast_bytes

# Steps over which the memory of a stage is measured.
MEMORY_STEPS = 3


@final
@dataclass(kw_only=True)
class PassTimes:
    """When a stage made its passes.

    Attributes:
        spans: Unix times of the begin and the end of each pass since the last note.
        busy_seconds: What its passes take in each step but the first.
        alone_seconds: What each of its passes through all micro-batches takes, in each step without
            any exchange; a step on tiles has several such rows.
    """

    spans: list[tuple[float, float]] = field(default_factory=list)
    busy_seconds: list[float] = field(default_factory=list)
    alone_seconds: list[list[float]] = field(default_factory=list)

    def add(self, _: str, begin: float, end: float) -> None:
        """Take a pass that was made."""
        self.spans.append((begin, end))

    def note(self, *, counts: bool) -> None:
        """Note the passes of a step."""
        if counts:
            self.busy_seconds.append(sum(end - begin for begin, end in self.spans))
        self.spans.clear()

    def note_alone(self, times: int) -> None:
        """Note the passes of a step without any exchange, which has so many rows of them."""
        seconds = [end - begin for begin, end in self.spans]
        size = len(seconds) // times
        self.alone_seconds += [seconds[at : at + size] for at in range(0, len(seconds), size)]
        self.spans.clear()


@final
class StageLog:
    """Notes what the steps of this process's stages take.

    Args:
        graph: The layers of the network.
        cut: Where each stage begins.
        stages: The stages of this process, by device, and the times of their passes.
        owned: Their variables.
        sums: Their sums of the gradients of tiles.
        passes: How often a step runs all its micro-batches; more than once with tiles only.

    Attributes:
        supports: Large-model support that plans this process's stage.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        graph: NodeGraph,
        cut: StageCut,
        stages: Mapping[int, tuple[OwnStage, PassTimes]],
        owned: Owned,
        sums: Mapping[int, Sequence[tf.Variable]],
        passes: int,
    ) -> None:
        self._attempt, self._cut, self._stages = attempt, cut, stages
        self._names = [node.name for node in graph.nodes]
        self._owned, self._sums, self._passes = owned, sums, passes
        self._any_stage = next(stage for stage, _ in stages.values())
        self._is_alone = len(stages) == 1
        self.supports: Sequence[LargeModelSupport] = ()
        # Seconds of all steps but the first, and bytes that some of them held.
        self._step_seconds: list[float] = []
        self._step_bytes: list[int] = []
        self._left_to_watch = MEMORY_STEPS
        # What a step of this process's stage was predicted to hold when it was traced.
        self._forecast_bytes = 0
        self._is_traced = False

    def forecast(self, logs: Mapping[str, tf.Tensor]) -> None:
        """Predict the memory of the step that is being traced, which returns these logs."""
        if self._forecast_bytes or not self._is_alone or tf.executing_eagerly():
            return
        sizes = [
            _bytes_of(variable)
            for variables in (self._owned.variables, *self._sums.values())
            for variable in variables
            if home_of(variable) is None
        ]
        self._forecast_bytes = sum(sizes) + forecast_bytes([*logs.values()], sizes)

    def watching(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the step, whose errors name this stage; the memory of a few calls is measured."""

        def watched_step(batches: Any) -> Any:
            try:
                if not self._is_alone or not self._is_traced or not self._left_to_watch:
                    return step(batches)
                self._left_to_watch -= 1
                with watched() as held_bytes:
                    output = step(batches)
                    output["logs"]["loss"].numpy()  # Waits for the device.
                self._step_bytes += held_bytes
                return output
            except Exception as error:
                if self._is_alone:
                    # The last line of a process's output is the reason that its run tells.
                    error.add_note(f"{self._name()} failed: {_last_line(error)}")
                raise

        return watched_step

    def _name(self) -> str:
        stage, names, begins = self._any_stage, self._names, self._cut.begins
        parts = [
            f"{names[begins[chunk]]} to {names[begins[chunk + 1] - 1]}"
            for chunk, home in enumerate(stage.homes)
            if home == stage.number
        ]
        count = self._attempt.config.stages
        name = f"{OF_STAGE}{stage.number + 1} of {count} ({', '.join(parts)})"
        mesh = self._attempt.mesh
        if not mesh.is_split:
            return name
        return f"{name} with part {stage.group.part + 1} of {mesh.sample_parts} of a sample"

    def note(self, seconds: float) -> None:
        """Note the seconds of a step of training."""
        if self._is_traced:
            self._step_seconds.append(seconds)
        for _, times in self._stages.values():
            times.note(counts=self._is_traced)
        self._is_traced = True

    def note_alone(self, step: Callable[[], float]) -> float:
        """Return what a step returns in which nothing is exchanged, and note its passes."""
        for _, times in self._stages.values():
            times.spans.clear()
        seconds = step()
        for _, times in self._stages.values():
            times.note_alone(self._passes)
        return seconds

    def bubble_seconds(self) -> float:
        """Return how long stages wait for each other in a step, as far as messages take no time.

        This follows from their passes in steps that exchange nothing. Called by all processes
        together.
        """
        stage = self._any_stage
        table = np.zeros((self._attempt.mesh.num_devices, len(stage.orders[0])))
        for device, (_, times) in self._stages.items():
            table[device] = np.median(times.alone_seconds, axis=0)
        seconds = stage.bubble_seconds(self._attempt.backend.sum(table).tolist())
        return self._passes * seconds

    def _first_layers(self) -> list[str]:
        return [self._names[begin] for begin in self._cut.begins[:-1]]

    def _plans(self) -> list[tuple[Plan, int]]:
        """Return the plans of a step that give tensors up, and the bytes of each step."""
        first = [
            (support.plans[0], support.stage_bytes[0]) for support in self.supports if support.plans
        ]
        return [(plan, planned_bytes) for plan, planned_bytes in first if plan.gives_up]

    def summary(self) -> str:
        """Return in a line how the network is cut."""
        config = self._attempt.config
        recomputed = ", recomputed" if config.recompute else ""
        return (
            f"Stages: {config.stages}, beginning with {', '.join(self._first_layers())}; "
            f"micro_batches {config.micro_batches}, schedule {config.schedule}{recomputed}."
        )

    def record(self) -> dict[str, Any]:
        """Return what result.json says of the stages; called by all processes together."""
        config, mesh, backend = self._attempt.config, self._attempt.mesh, self._attempt.backend
        table, swapped = np.zeros((mesh.num_devices, 5)), np.zeros((mesh.num_devices, 2))
        for device in self._stages:
            table[device], swapped[device] = self._figures(device)
        table, swapped = backend.sum(table), backend.sum(swapped).astype(int)
        busy_seconds, (variable_bytes, sent_bytes, held, forecast) = (
            table[:, 0],
            table[:, 1:].astype(int).T,
        )
        step = statistics.median(self._step_seconds) if self._step_seconds else None
        layers = [layer for chunk in self._any_stage.all_chunks for layer in chunk.layers]
        seconds = self._cut.seconds
        return {
            "stages": config.stages,
            "micro_batches": config.micro_batches,
            "schedule": config.schedule,
            "recompute": config.recompute,
            "first_layers": self._first_layers(),
            "stage_seconds": busy_seconds.tolist() if step else None,
            "predicted_stage_seconds": None
            if seconds is None
            else [duration * config.micro_batches * self._passes for duration in seconds],
            "bubble": 1 - float(busy_seconds.mean()) / step if step else None,
            "variable_bytes": variable_bytes.tolist(),
            "stage_bytes": held.tolist() if held.all() else None,
            "predicted_stage_bytes": forecast.tolist() if forecast.all() else self._cut.num_bytes,
            "traced_sent_bytes": sent_bytes.tolist(),
            "swapped_tensors": swapped[:, 0].tolist(),
            "recomputed_tensors": swapped[:, 1].tolist(),
            "batch_normalization": batch_norm_of(config, layers),
            "random_layers": [layer.name for layer in layers if draws_otherwise(layer)],
        }

    def _figures(self, device: int) -> tuple[list[float], tuple[int, int]]:
        """Return of a device its busy seconds, and the bytes of its variables, of what it sends,
        of what a step held and of what it was predicted to hold; then its swapped and its
        recomputed tensors.
        """
        stage, times = self._stages[device]
        size = self._owned.num_bytes(stage.number)
        held = 0.0
        if self._step_bytes:
            sums = sum(map(_bytes_of, self._sums[device]))
            held = size + sums + statistics.median(self._step_bytes)
        forecast, swapped = self._forecast_bytes, (0, 0)
        for plan, planned_bytes in self._plans():
            forecast = size + planned_bytes
            swapped = plan.count("swap"), plan.count("recompute")
        busy = statistics.median(times.busy_seconds) if times.busy_seconds else 0.0
        return [busy, size, stage.group.traffic.num_bytes, held, forecast], swapped


def _bytes_of(variable: Any) -> int:
    return num_bytes(tf.TensorSpec(variable.shape, variable.dtype))


def _last_line(error: Exception) -> str:
    """Return what went wrong, from the text of TensorFlow or Keras."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if line and not line.startswith(("[[", "File", "Detected"))]
    return named[-1] if isinstance(error, tf.errors.OpError) and named else cause_line(error)


def batch_norm_of(config: RunConfig, layers: Sequence[Any]) -> str | None:
    """Return of what batch normalisation takes its statistics; None without such layers."""
    if not batch_normalizations(layers):
        return None
    if config.micro_batches == 1 and not config.tiling:
        return "whole batch"
    return "deferred" if config.batch_norm == "deferred" else "each micro-batch"
