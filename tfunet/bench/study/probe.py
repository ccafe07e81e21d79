"""Makes each distinct network, loss, optimizer, metric and callback of a study before its trials.

What cannot be made is told before the first trial, in the words that the trial would end with. One
process does it, since this one does not import TensorFlow: python -m tfunet.bench.study.probe.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tfunet.bench.study.checks import first_reasons
from tfunet.config.case_metrics import keras_metrics, own_metrics
from tfunet.config.run import RunConfig, config_of_record
from tfunet.data import DATASETS
from tfunet.data.class_weights import KEY
from tfunet.files.typed import read_json
from tfunet.learning import LOSSES
from tfunet.models import MODELS, trained_options

# What is made follows from these keys, and where data are opened for it, from those of the data.
KEYS = (
    *("loss", "loss_options", "optimizer", "optimizer_options", "precision", "metrics"),
    *("callbacks", "model", "model_options", "outputs", "data"),
)
OF_DATA = ("data_options", "patch")


def made_reasons(configs: Mapping[str, RunConfig]) -> dict[str, str]:
    """Return why runs would be refused, by their names; those without a reason are left out."""
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
    found = _in_a_process({first: configs[first] for first in like})
    return {name: reason for first, reason in found.items() for name in like[first]}


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


def _in_a_process(configs: Mapping[str, RunConfig]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "configs.json"), Path(folder, "reasons.json")
        asked.write_text(json.dumps({name: each.values() for name, each in configs.items()}))
        ended = subprocess.run(
            [sys.executable, "-m", __name__, str(asked), str(answer)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        reasons = read_json(answer, dict[str, str])
    if reasons is None:
        print(
            "note: the process that makes each network, loss and optimizer before the first trial "
            f"ended with exit code {ended.returncode}; each trial says what is wrong with its own.",
            file=sys.stderr,
        )
    return reasons or {}


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
    from tfunet.models.symbolic import build_symbolic

    if not _has_network_to_make(config):
        return
    task = open_task(config)

    def build() -> object:
        return make_model(
            config.model,
            image_shape=(*task.patch, task.source.channels),
            num_classes=task.num_outputs,
            options=trained_options(config.model, config.model_options),
        )

    build_symbolic(build, precision=config.precision)


MAKERS: tuple[Callable[[RunConfig], None], ...] = (
    *(_make_loss, _make_optimizer, _make_metrics, _make_callbacks, _make_network),
)


def main(asked: Path, answer: Path) -> None:
    """Write why the configurations in a file would be refused."""
    texts = read_json(asked, dict[str, dict[str, object]]) or {}
    configs = {name: config_of_record(values) for name, values in texts.items()}
    answer.write_text(json.dumps(first_reasons(configs, MAKERS)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
