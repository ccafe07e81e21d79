"""Writes the record of a run for TensorBoard. Imports TensorFlow."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from tfunet.bench.records.epoch_times import epoch_times
from tfunet.bench.records.run_tables import read_steps
from tfunet.files.atomic import replacing
from tfunet.record import RunFolder
from tfunet.swap.report.scalars import scalars
from tfunet.swap.report.text import read_measured, read_plans
from tfunet.timing.recorded import copied_by_step

MEASURED_COPIES = {
    "swap out": "swap/measured_out_seconds",
    "swap in": "swap/measured_in_seconds",
}


def write_events(run: Path, out: Path) -> Path:
    """Write an event file with steps, scores and the scalars of a plan; return its path."""
    path = out / "events.out.tfevents.tfunet"
    RunFolder(out).create()
    steps = read_steps(run)
    rows = list(zip(steps["step"], steps["seconds"], steps["loss"], steps["traced"], strict=True))
    epochs = epoch_times(run)
    began = epochs[0].began if epochs else 0.0
    copied = copied_by_step(run)
    planned = _swap_scalars(run)
    with replacing(path) as partial, tf.io.TFRecordWriter(str(partial)) as writer:
        version = tf.compat.v1.Event(wall_time=began, file_version="brain.Event:2")
        writer.write(version.SerializeToString())

        def write_steps(now: float, first: int, last: int | None) -> None:
            for step, seconds, loss, traced in rows[first:last]:
                now += seconds
                values = {"train/loss": loss}
                # A step that traces takes so long that it would hide all others.
                if not traced:
                    values["train/step_seconds"] = seconds
                for name, of_step in copied.items():
                    if step in of_step:
                        values[MEASURED_COPIES[name]] = of_step[int(step)]
                writer.write(_event(now, int(step), values))

        now, first = began, 0
        for epoch in epochs:
            write_steps(epoch.training_begin, first, epoch.steps)
            named = {f"validation/{name}": value for name, value in epoch.scores.items()}
            writer.write(_event(epoch.end, epoch.steps, {**named, **planned}))
            now, first = epoch.end, epoch.steps
        write_steps(now, first, None)  # Steps of an epoch that is not over.
    return path


def _swap_scalars(run: Path) -> Mapping[str, float]:
    """Return the scalars of a run's largest plan; none without swap.json."""
    config = RunFolder(run).read_config()
    if config is None or not (run / "swap.json").exists():
        return {}
    plan = max(read_plans(run), key=lambda plan: plan.unlimited_peak_bytes)
    return scalars(plan, read_measured(run), num_passes=config.accumulation)


def _event(seconds: float, step: int, values: Mapping[str, float]) -> bytes:
    shown = [
        tf.compat.v1.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()
    ]
    summary = tf.compat.v1.Summary(value=shown)
    return tf.compat.v1.Event(wall_time=seconds, step=step, summary=summary).SerializeToString()
