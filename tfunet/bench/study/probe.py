"""Makes each distinct network, loss, optimizer, metric and callback of a study before its trials.

What cannot be made is told before the first trial, in the words that the trial would end with. One
process does it, since this one does not import TensorFlow: python -m tfunet.bench.study.probe.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tfunet.bench.study.checks import OnceForEach
from tfunet.config.case_metrics import keras_metrics, own_metrics
from tfunet.config.run import RunConfig, config_of_record
from tfunet.config.trust import KEYS as PROGRAMS
from tfunet.config.trust import programs
from tfunet.data import DATASETS
from tfunet.data.class_weights import KEY
from tfunet.learning import LOSSES
from tfunet.models import MODELS, trained_options

# What is made follows from these keys, and where data are opened for it, from those of the data.
KEYS = (
    *("loss", "loss_options", "optimizer", "optimizer_options", "precision", "metrics"),
    *("callbacks", "model", "model_options", "outputs", "data"),
)
OF_DATA = ("data_options", "patch")
# A GPU is there for a network that asks for one, and shared with whoever computes on it.
GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
POLL_SECONDS = 0.2


def made_reasons(
    configs: Mapping[str, RunConfig], stops: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """Return why runs would be refused, by their names; those without a reason are left out.

    It ends at once, with what is known, when `stops` says so.
    """
    distinct: dict[str, str] = {}
    like: dict[str, list[str]] = {}
    for name, config in configs.items():
        if not _has_to_make(config):
            continue
        keys = (*KEYS, *OF_DATA) if _has_network_to_make(config) else KEYS
        first = distinct.setdefault(repr([getattr(config, key) for key in keys]), name)
        like.setdefault(first, []).append(name)
    if not like:
        return {}
    print(
        "Each network, loss, optimizer, metric and callback of the study is made once, in a "
        "process with TensorFlow ...",
        file=sys.stderr,
        flush=True,
    )
    together: dict[tuple[str, ...], dict[str, RunConfig]] = {}
    for first in like:
        together.setdefault(_folders(configs[first]), {})[first] = configs[first]
    found: dict[str, str] = {}
    for group in together.values():
        found |= _reasons(group, stops)
    return {name: reason for first, reason in found.items() for name in like[first]}


def _folders(config: RunConfig) -> tuple[str, ...]:
    """Return where the user's programs lie. Files of one name in two folders exclude each other in
    one process.
    """
    named = programs({key: getattr(config, key) for key in PROGRAMS})
    return tuple(sorted({str(Path(ref.rpartition(":")[0]).parent) for ref in named}))


def _has_to_make(config: RunConfig) -> bool:
    """Whether something may be wrong that only the process that makes it can say."""
    return bool(
        _has_network_to_make(config)
        or config.loss not in LOSSES
        or {*config.loss_options} - {KEY}
        or config.optimizer != RunConfig.optimizer
        or config.optimizer_options
        or config.callbacks
        or keras_metrics(config.metrics)
        or own_metrics(config.metrics)
    )


def _has_network_to_make(config: RunConfig) -> bool:
    """Whether the network, or the data that it follows from, are not ours alone."""
    has_encoder = "encoder" in config.model_options
    return config.model not in MODELS or config.data not in DATASETS or has_encoder


def _reasons(configs: Mapping[str, RunConfig], stops: Callable[[], bool]) -> dict[str, str]:
    left, reasons = dict(configs), dict[str, str]()
    while left and not stops():
        said, last_words = _in_a_process(left, stops)
        reasons |= {name: reason for name, reason in said.items() if reason is not None}
        left = {name: config for name, config in left.items() if name not in said}
        if left and not stops():  # It died of the first that is left.
            del left[next(iter(left))]
            print(
                "note: the process that makes each network, loss and optimizer died of one of "
                f"them ({last_words}). Its trials say what is wrong.",
                file=sys.stderr,
                flush=True,
            )
    return reasons


def _in_a_process(
    configs: Mapping[str, RunConfig], stops: Callable[[], bool]
) -> tuple[dict[str, str | None], str]:
    """Return the reason, or None, of each configuration that a process came to; and its last words.

    What a program prints goes nowhere.
    """
    values = {name: config.values() for name, config in configs.items()}
    asked: str | None = json.dumps(values)
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **GROWTH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    answer, errors, ended = "", "", False
    try:
        while not ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                answer, errors = process.communicate(asked, timeout=POLL_SECONDS)
                ended = True
            asked = None  # It has been sent.
            if stops():
                process.kill()
    finally:
        process.kill()
        process.wait()
    said = dict(json.loads(line) for line in answer.splitlines())
    words = [f"exit code {process.returncode}", *errors.strip().splitlines()[-1:]]
    return said, ": ".join(words)


def _make_loss(config: RunConfig) -> None:
    from tfunet.learning import losses

    options = {name: value for name, value in config.loss_options.items() if name != KEY}
    losses.make(config.loss, options)


def _make_optimizer(config: RunConfig) -> None:
    from tfunet.learning import optimizers

    optimizers.make(config, num_replicas=1, steps_per_epoch=1)


def _make_metrics(config: RunConfig) -> None:
    from tfunet.learning.logit_metrics import of_logits
    from tfunet.learning.own_metric import of_batches, of_cases

    of_cases(config.metrics)
    of_logits(of_batches(config.metrics), None)


def _make_callbacks(config: RunConfig) -> None:
    """Only those of Keras are made: one of the user's may open a connection or a file."""
    from tfunet.config.refs import call
    from tfunet.training.callbacks import class_of

    for table in config.callbacks:
        kind = class_of(table["name"])
        options = {key: value for key, value in table.items() if key not in ("name", "chief_only")}
        if ":" not in table["name"]:
            call("callback", kind, options, ref=table["name"])


def _make_network(config: RunConfig) -> None:
    """Without values for its weights. Those that are ours alone were planned already."""
    from tfunet.data.task import open_task
    from tfunet.models.make import make_model
    from tfunet.models.symbolic import build_here

    if not _has_network_to_make(config):
        return
    task = open_task(config)

    def build() -> object:
        return make_model(
            config.model,
            image_shape=(*task.patch, task.source.channels),
            num_classes=task.num_outputs,
            is_free=task.source.samples is not None,
            options=trained_options(config.model, config.model_options),
        )

    build_here(build, precision=config.precision)


MAKERS: tuple[Callable[[RunConfig], None], ...] = (
    *(_make_loss, _make_optimizer, _make_metrics, _make_callbacks, _make_network),
)


def main() -> None:
    """Write a line with the name and the reason of each configuration on the standard input; the
    reason is None for one that nothing is known of.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What programs print is none of the answer.
    checks = [OnceForEach(maker) for maker in MAKERS]
    for name, values in json.loads(sys.stdin.read()).items():
        try:
            config = config_of_record(values)
            reason = next(filter(None, (check.reason(config) for check in checks)), None)
        except Exception:  # The trial tells it better.
            reason = None
        print(json.dumps([name, reason]), file=lines, flush=True)


if __name__ == "__main__":
    main()
