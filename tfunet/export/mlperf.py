"""Writes a run as log lines in the format of MLPerf."""

import json
import math
from collections.abc import Iterator
from typing import Any

from tfunet.bench.records.epoch_times import epoch_times
from tfunet.bench.records.sweep_record import FINISHED, TrialRecord
from tfunet.record import RunFolder

PREFIX = ":::MLLOG "


def mlperf_lines(trial: TrialRecord) -> Iterator[str]:
    """Yield the log lines of a run (https://github.com/mlcommons/logging); `eval_accuracy` is Dice.

    Keys and events are those of MLPerf, but a run is no valid submission. Times are Unix times in
    ms, or count from 0 if the record has none (`epoch_times`). A run that is not done ends as
    aborted.
    """
    config, folder = trial.config, RunFolder(trial.folder)
    split = folder.read_split() or {}
    times = epoch_times(trial.folder)
    began = times[0].began if times else 0.0

    def line(key: str, value: Any, at: float, kind: str, **more: Any) -> str:
        return PREFIX + json.dumps(
            {
                "namespace": "",
                "time_ms": round(at * 1000),
                "event_type": kind,
                "key": key,
                "value": value,
                "metadata": more,
            }
        )

    def point(key: str, value: Any, at: float = began, **more: Any) -> str:
        return line(key, value, at, "POINT_IN_TIME", **more)

    yield point("submission_benchmark", config.model)
    yield point("submission_platform", f"{config.num_replicas} x {config.backend}")
    yield line("init_start", None, began, "INTERVAL_START")
    yield point("global_batch_size", config.global_samples)
    yield point("gradient_accumulation_steps", config.accumulation)
    yield point("train_samples", len(split.get("train", ())) * config.patches_per_case)
    yield point("eval_samples", len(split.get("validation", ())))
    yield point("seed", config.seed)
    yield point("opt_name", config.optimizer)
    yield point("opt_base_learning_rate", config.learning_rate)
    first = times[0].training_begin if times else began
    yield line("init_stop", None, first, "INTERVAL_END")
    yield line("run_start", None, first, "INTERVAL_START")
    for epoch in times:
        about = {"epoch_num": epoch.epoch}
        yield line("epoch_start", None, epoch.training_begin, "INTERVAL_START", **about)
        yield line("epoch_stop", None, epoch.training_end, "INTERVAL_END", **about)
        if epoch.mean_dice is not None:
            yield line("eval_start", None, epoch.evaluation_begin, "INTERVAL_START", **about)
            # JSON has no NaN.
            dice = epoch.mean_dice if math.isfinite(epoch.mean_dice) else None
            yield point("eval_accuracy", dice, epoch.end, **about)
            yield line("eval_stop", None, epoch.end, "INTERVAL_END", **about)
    status = "success" if trial.state in FINISHED else "aborted"
    last = times[-1].end if times else began
    yield line("run_stop", None, last, "INTERVAL_END", status=status)
