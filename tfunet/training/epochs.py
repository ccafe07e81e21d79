"""The steps and epochs of a run: taken, proved, evaluated, recorded and saved."""

import collections
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NoReturn, final

import keras
import numpy as np

from tfunet.config.augmentation import read_augmentation
from tfunet.config.tournament import read_tournament, with_values
from tfunet.exit_codes import CheckFailedError, StoppedError
from tfunet.learning import optimizers
from tfunet.machine.energy import RunEnergy
from tfunet.state.shared_slot import gathering
from tfunet.training import checkpoint, state
from tfunet.training.attempt import Attempt
from tfunet.training.callbacks import Callbacks
from tfunet.training.checks import dropped_samples, samples_hash, uses_of_samples
from tfunet.training.compiled_model import weighing_model
from tfunet.training.epoch import Epoch
from tfunet.training.evaluation import Scores
from tfunet.training.logbook import Logbook
from tfunet.training.network import Network
from tfunet.training.progress import Resumed
from tfunet.training.run_data import RunData
from tfunet.training.step import Steps
from tfunet.training.tournament_rounds import Rounds
from tfunet.training.validation import Validation

# What Keras's callbacks say of a metric that an epoch does not have.
NO_SCORE = r"(?s).*\bavailable"


@final
class Trainer:
    """A run under way; its methods are called by all processes together."""

    def __init__(
        self,
        attempt: Attempt,
        data: RunData,
        network: Network,
        callbacks: Callbacks,
        resumed: Resumed,
    ) -> None:
        self.attempt, self.data, self.network, self.callbacks = attempt, data, network, callbacks
        self.progress = resumed.progress
        self._resumed = resumed
        stages = network.stages
        if stages is not None:
            stages.plan_with(callbacks.supports)
        # One of the devices that share a sample reports it.
        mesh, local = attempt.mesh, attempt.topology.local_replicas
        self._first_of_samples = [mesh.is_first(device) for device in local]
        self.validation = Validation(attempt, data, network, callbacks.supports, self.progress)
        self.rounds = self._rounds()
        # In stages, each process has a part of the weights.
        self._weighed = (
            nullcontext
            if stages is not None
            else partial(weighing_model, network.model, attempt.config)
        )
        self._metrics = state.MetricState(
            attempt.backend,
            network.model,
            is_shared=stages is not None and stages.shares_metrics,
        )
        self.steps = self._steps()
        # Metrics of batches first, then those of the validation.
        self.metric_names = [*self._metrics.names(), *self.validation.metric_names]
        self.logbook = Logbook(attempt, data, network, resumed, self.metric_names)
        self._keras_callbacks = keras.callbacks.CallbackList(
            callbacks.all,
            model=network.model,
            epochs=-(-data.last_step // data.steps_per_epoch),
            steps=data.steps_per_epoch,
        )

    def _rounds(self) -> Rounds | None:
        """Return the part in a tournament; None for a run that meets no other."""
        tournament = read_tournament(self.attempt.config.tournament)
        if tournament is None or tournament.selection == "none":
            return None
        evaluate = self.validation.of(self.data.deciding)

        def score() -> float:
            logs = evaluate(self.attempt.begin).logs()
            if not np.isfinite(logs["val_loss"]):
                return float("nan")  # The labels of such a model are numbers all the same.
            return logs["val_dice"] if "val_dice" in logs else -logs["val_mae"]

        return Rounds(self.attempt, self.data, self.network, self.progress, tournament, score)

    def _steps(self) -> Steps:
        """Return the steps from here on, with the hyperparameters that the run has now."""
        attempt, data, values = self.attempt, self.data, self.progress.hyperparameters
        if values:
            optimizers.set_options(self.network.model.optimizer, values)
            table = with_values(attempt.config.augmentation, "augmentation", values)
            data = replace(data, augmentation=read_augmentation(table))
        supports = self.callbacks.supports
        if values and supports:
            raise ValueError(
                f"mutate.{next(iter(values))} and large-model support exclude each other: the step "
                "is made anew for another value, and would have to be planned again. Leave out "
                "one of them."
            )
        return Steps(attempt, data, self.network, supports, self.progress.step)

    def _trace_next(self) -> None:
        """Note that the next step is traced, so that its time is told apart."""
        traced = self.progress.traced_steps
        if self.progress.step + 1 not in traced:
            traced.append(self.progress.step + 1)

    def begin(self) -> None:
        """Begin training: callbacks, clocks and counters of energy."""
        attempt, progress, model = self.attempt, self.progress, self.network.model
        model.stop_training = progress.stop_training
        attempt.begin("callbacks before training")
        self._keras_callbacks.on_train_begin()
        self.callbacks.restore(self._resumed.callback_states)
        seconds = time.perf_counter() - attempt.began
        progress.seconds["start"] = progress.seconds.get("start", 0.0) + seconds
        if self._goes_on():
            self.logbook.announce()
            self._trace_next()
        self._energy = RunEnergy(
            attempt.backend,
            attempt.topology,
            before=progress.energy,
            with_gpus=attempt.has_gpus,
        )
        if self.rounds is not None:
            self.rounds.begin()

    def _goes_on(self) -> bool:
        return self.progress.step < self.data.last_step and not self.network.model.stop_training

    def epochs(self) -> Iterator[Epoch]:
        """Begin each epoch that is left, and yield it."""
        progress, num_steps = self.progress, self.data.steps_per_epoch
        num_uses = self.data.num_samples * self.data.num_tiles
        arrays = self._resumed.epoch_arrays
        while self._goes_on():
            index, first = divmod(progress.step, num_steps)
            last_step = min((index + 1) * num_steps, self.data.last_step)
            epoch = Epoch(
                index=index,
                steps=range(first, last_step - index * num_steps),
                last_step=last_step,
                sample_uses=arrays.pop("samples", np.zeros((2, num_uses))),
                metrics_before=arrays.pop("metrics", None),
                apart_before=progress.seconds_apart,
            )
            self._freeze(index)
            self.network.model.reset_metrics()
            self.attempt.begin(f"callbacks before epoch {index + 1}")
            self._keras_callbacks.on_epoch_begin(index)
            yield epoch
        self.callbacks.end_profile()
        self.logbook.close_bar()
        self._energy.close()

    def _freeze(self, epoch: int) -> None:
        """Freeze the encoder in its first epochs, and let it learn after them."""
        encoder, num_epochs = self.network.encoder, self.attempt.config.encoder_frozen_epochs
        learns = epoch >= num_epochs
        if encoder is None or encoder.trainable == learns:
            return
        encoder.trainable = learns
        self.steps.forget_traces()
        if self.progress.step + 1 not in self.progress.traced_steps:
            self.progress.traced_steps.append(self.progress.step + 1)
        until = (
            f"learns from epoch {epoch + 1} on" if learns else f"is frozen to epoch {num_epochs}"
        )
        self.attempt.say(f"The encoder {until}.")

    def take(self, epoch: Epoch, step: int) -> None:
        """Make an optimizer step, counted in the epoch from 0.

        Raises CheckFailedError where the loss is not finite.
        """
        attempt, progress = self.attempt, self.progress
        self._keras_callbacks.on_train_batch_begin(step)
        attempt.begin(f"step {progress.step + 1}", progress.step + 1)
        since = time.perf_counter()
        with self._weighed():
            output = self.steps.take(self.steps.batches)
            # Reading the loss waits for the device: the clock stops after the work is done.
            mean_loss = float(output["logs"]["loss"].numpy().sum())
        progress.step_seconds.append(time.perf_counter() - since)
        if self.network.stages is not None:
            self.network.stages.log.note(progress.step_seconds[-1])
        progress.step += 1
        attempt.begin(f"callbacks after step {progress.step}")
        # Keras's logs are means since the epoch began; this step's loss is the difference.
        running_loss = mean_loss * (step - epoch.steps.start + 1)
        epoch.losses.append(running_loss - epoch.running_loss)
        epoch.running_loss = running_loss
        used = output["sample"].numpy()[self._first_of_samples]
        epoch.sample_uses[:, used.ravel()] += [[1], [step + 1]]
        if not np.isfinite(mean_loss):
            raise CheckFailedError(
                f"The loss became {mean_loss} at step {progress.step}. Lower learning_rate, or "
                "use precision = 'float32'."
            )
        logs = {name: float(value.numpy().mean()) for name, value in output["logs"].items()}
        self._keras_callbacks.on_train_batch_end(step, logs)
        self.logbook.show_step(logs["loss"])

    def plays_round(self) -> bool:
        """Play the round of a tournament that follows the last step; return whether there is one.

        A checkpoint must follow: a run that goes on does not play it again.
        """
        if self.rounds is None or not self.rounds.is_due():
            return False
        before = self.progress.hyperparameters
        self.rounds.play()
        if self.progress.hyperparameters != before:
            self.steps = self._steps()
            self._trace_next()
        return True

    def checkpoint_is_due(self) -> bool:
        """Whether the configuration asks for a checkpoint after the last step."""
        every = self.attempt.config.checkpoint_steps
        return every is not None and self.progress.step % every == 0

    def save_within(self, epoch: Epoch) -> None:
        """Write a checkpoint in the middle of an epoch."""
        attempt = self.attempt
        self.network.held.average_statistics()
        self._write_steps(epoch)
        metrics = self._metrics.total(epoch.metrics_before)
        sample_uses = attempt.backend.sum(epoch.sample_uses)
        self._save({"metrics": metrics, "samples": sample_uses})

    def save(self) -> None:
        """Write a checkpoint after an epoch.

        Its rows are written before. A run that is killed in between drops them when it goes on.
        """
        self._save({})

    def _save(self, epoch_arrays: dict[str, np.ndarray]) -> None:
        self.attempt.begin("saving")
        since = time.perf_counter()
        self.progress.stop_training = bool(self.network.model.stop_training)
        self.progress.energy = self._energy.so_far()
        values = self.network.held.values()
        if self.attempt.topology.is_chief:
            facts = {**vars(self.progress), "callbacks": self.callbacks.states()}
            checkpoint.save(self.attempt.folder, values, epoch_arrays, facts)
        else:
            collections.deque(values, maxlen=0)  # Sends the chief what it lacks.
        self.progress.spend("saving", since)

    def prove(self, epoch: Epoch) -> None:
        """Give all processes the same weights and metrics after an epoch's steps, and prove it.

        Raises CheckFailedError where weights differ, or samples were not used as planned.
        """
        attempt, progress, model = self.attempt, self.progress, self.network.model
        apart = progress.seconds_apart - epoch.apart_before
        epoch.training_seconds = time.perf_counter() - epoch.since - apart
        attempt.begin("checking")
        self._write_steps(epoch)
        self.network.held.average_statistics()
        progress.weights_hash = self.validation.weights_hash()
        if not attempt.config.synthetic:
            uses = uses_of_samples(attempt.backend.sum(epoch.sample_uses), self.data.num_tiles)
            progress.samples_hash = samples_hash(
                uses, steps=epoch.steps.stop, global_batch=attempt.config.global_samples
            )
            # In an epoch that was cut short, the remaining samples are not dropped.
            is_whole = epoch.steps.stop == self.data.steps_per_epoch
            progress.dropped_samples = dropped_samples(uses) if is_whole else []
        progress.logs = self._metrics.results(self._metrics.total(epoch.metrics_before))
        rate = keras.ops.convert_to_numpy(model.optimizer.learning_rate)
        progress.logs["learning_rate"] = float(rate)

    def _write_steps(self, epoch: Epoch) -> None:
        """Average the losses of the steps without a row over replicas, and write their rows."""
        attempt = self.attempt
        losses = attempt.backend.sum(np.array(epoch.losses)) / attempt.topology.num_replicas
        epoch.losses.clear()
        self.logbook.write_steps(losses)

    def evaluate(self, epoch: Epoch) -> Scores | None:
        """Return the scores of the validation cases; None in an epoch without evaluation.

        Raises CheckFailedError where the voxels of a case were not all counted once.
        """
        since = time.perf_counter()
        scores: Scores | None = None
        is_last = epoch.last_step == self.data.last_step
        if (epoch.index + 1) % self.attempt.config.evaluate_every == 0 or is_last:
            # Callbacks may give the model other weights meanwhile, as SwapEMAWeights does.
            self._keras_callbacks.on_test_begin()
            scores = self.validation.score()
            logs = {name.removeprefix("val_"): value for name, value in scores.logs().items()}
            self._keras_callbacks.on_test_end(logs)
        epoch.evaluation_seconds = self.progress.spend("evaluation", since)
        return scores

    def record(self, epoch: Epoch, scores: Scores | None) -> None:
        """Tell callbacks and the record what an epoch brought."""
        self.attempt.begin(f"callbacks after epoch {epoch.index + 1}")
        with warnings.catch_warnings():
            if scores is None:
                # Callbacks that wait for a score of the validation cases say so in Keras.
                warnings.filterwarnings("ignore", message=NO_SCORE)
            self._keras_callbacks.on_epoch_end(epoch.index, self.progress.logs)
        self.logbook.write_epoch(
            epoch.index + 1, scores, epoch.training_seconds, epoch.evaluation_seconds
        )

    def leave(self) -> NoReturn:
        """End this process after a checkpoint, as it was asked to: raises StoppedError."""
        self.callbacks.end_profile()
        self.attempt.stop()
        raise StoppedError(
            f"Stopped by a signal after step {self.progress.step} of {self.data.last_step}."
        )

    def end(self, scores: Scores | None) -> Scores | None:
        """End training for the optimizer and the callbacks.

        Both may give the model other weights, such as averages or those of the best epoch. What the
        run says of its model must be of the weights that it keeps: weights other than those that
        were scored last are scored. Returns their scores, by default `scores`.
        """
        progress, model, network = self.progress, self.network.model, self.network
        if network.encoder is not None:
            network.encoder.trainable = True  # In the file of the model.
        if self.rounds is not None:
            self.rounds.end()
        self.attempt.begin("callbacks after training")
        with gathering():
            # As Keras's fit does; all processes together.
            model.optimizer.finalize_variable_values(model.trainable_weights)
        supports = self.callbacks.supports
        ending = self._keras_callbacks
        ending.callbacks = [one for one in ending.callbacks if one not in supports]
        ending.on_train_end(progress.logs)
        progress.weights_hash = self.validation.weights_hash()
        if progress.weights_hash != progress.scored_hash:
            self.attempt.say(
                "Scored again: a callback, use_ema or further steps changed the network's weights "
                "after its last evaluation."
            )
            since = time.perf_counter()
            scores = self.validation.score()
            progress.spend("evaluation", since)
            self.logbook.write_scores(-(-progress.step // self.data.steps_per_epoch), scores)
        return scores

    def close(self) -> None:
        """End large-model support, which the evaluations after training need, too."""
        for support in self.callbacks.supports:
            support.on_train_end()
