"""The training loop, on one page."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from tfunet.backend import Backend
from tfunet.config.run import RunConfig
from tfunet.performance.layer_costs import layer_times
from tfunet.process.watchdog import nobody_asks
from tfunet.proof.prove import prove
from tfunet.training.afterwards import measure
from tfunet.training.attempt import start
from tfunet.training.callbacks import Callbacks
from tfunet.training.epochs import Trainer
from tfunet.training.network import build, placing_of
from tfunet.training.own_faults import own_faults
from tfunet.training.progress import resume
from tfunet.training.result import write_result
from tfunet.training.run_data import open_data
from tfunet.training.shown_cases import keep_shown_cases


@own_faults()
def run(
    config: RunConfig,
    backend: Backend,
    path: str | Path,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    stops_after: Callable[[int], bool] = lambda step: False,
    begin: Callable[..., None] = nobody_asks,
) -> dict[str, Any]:
    """Train, evaluate and record one run; every process of it calls this.

    A run whose folder has a checkpoint of the same configuration goes on from there.

    Args:
        backend: Not yet started.
        callbacks: Keras callbacks beside those of the configuration.
        stops_after: Called after each step and each epoch, with the same answer in all processes;
            true ends the run.
        begin: Is told what this process begins, and in which step, as `Pulse.begin`.

    Returns what result.json holds.

    Raises ValueError for what is wrong with configuration or data, WriteError where the record
    cannot be written, CheckFailedError when the run did not compute what it should, and
    StoppedError, after a checkpoint, when `stops_after` said so.
    """
    attempt = start(config, backend, path, begin)
    data = open_data(attempt)
    network = build(attempt, data, placing_of(attempt, data, layer_times))
    proved = prove(attempt, data, network)
    all_callbacks = Callbacks(attempt, callbacks)
    resumed = resume(attempt, network)
    trainer = Trainer(attempt, data, network, all_callbacks, resumed)
    progress = trainer.progress
    scores = None

    trainer.begin()
    for epoch in trainer.epochs():
        is_stopping = False
        for step in epoch.steps:
            trainer.take(epoch, step)
            is_stopping = stops_after(progress.step)
            is_due = trainer.plays_round() or is_stopping or trainer.checkpoint_is_due()
            if progress.step < epoch.last_step and is_due:
                trainer.save_within(epoch)
                if is_stopping:
                    trainer.leave()
        trainer.prove(epoch)
        scores = trainer.evaluate(epoch)
        trainer.record(epoch, scores)
        trainer.save()
        if stops_after(progress.step) and progress.step < data.last_step:
            trainer.leave()

    measurements = measure(trainer)
    keep_shown_cases(trainer, trainer.end(scores))
    trainer.close()
    for case, what in data.replaced().items():
        attempt.say(
            f"warning: {case} turned out to be of no use, and others took its place: {what}"
        )
    return write_result(trainer, measurements, proved)
