"""The rounds of a tournament, inside the training loop: models are offered, compared and taken."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import keras
import numpy as np

from tfunet.config.keys import MAY_CHANGE
from tfunet.config.tournament import Tournament, first_values, meeting_name
from tfunet.files.typed import RecordError
from tfunet.population import offers, selection
from tfunet.population.meeting import PopulationFolder
from tfunet.population.mutation import mutated
from tfunet.population.offers import Offer
from tfunet.population.pairing import partner
from tfunet.population.turn import Turn, mates, num_places
from tfunet.record import MEETINGS
from tfunet.training import state
from tfunet.training.attempt import Attempt
from tfunet.training.network import Network
from tfunet.training.progress import Progress
from tfunet.training.run_data import RunData

POLL_SECONDS = 0.1


@final
class Rounds:
    """A trainer's part in its tournament; its methods are called by all processes together.

    Only the chief reads and writes files. What it decides and takes reaches all processes by sums.

    Args:
        score: Returns the score of the present model on the cases that decide rounds.
    """

    def __init__(
        self,
        attempt: Attempt,
        data: RunData,
        network: Network,
        progress: Progress,
        tournament: Tournament,
        score: Callable[[], float],
    ) -> None:
        config = attempt.config
        self._attempt, self._model, self._progress = attempt, network.model, progress
        self._tournament, self._score = tournament, score
        self._last_step = data.last_step
        self.round_steps = tournament.round_steps or (
            (tournament.round_epochs or 1) * data.steps_per_epoch
        )
        self._trainer = tournament.trainer_of(config.seed)
        self._seed = tournament.population_of(config.seed)
        self._exchanged = exchanged(network)
        # The rate of an offer is that of the configuration, whatever the number of replicas.
        self._scale = config.num_replicas if config.scale_learning_rate else 1
        name = meeting_name(config.values(), MAY_CHANGE, self._seed)
        folder = attempt.folder.path.parent / MEETINGS / name
        self._meeting = PopulationFolder(folder, self._trainer)
        places = num_places() or tournament.trainers
        # Where the run goes on, it has others already.
        progress.hyperparameters = {
            **first_values(tournament, vars(config)),
            **progress.hyperparameters,
        }
        self._mates = mates(self._trainer, tournament.trainers, places)
        self._turn = Turn(folder / f"place-{self._trainer % places}.lock")
        self._table = None
        if attempt.topology.is_chief:
            self._meeting.join(attempt.folder.path)
            self._table = attempt.folder.rounds_table(
                tuple(progress.hyperparameters), last=progress.rounds
            )

    def begin(self) -> None:
        """Wait for the own turn, where trainers share cores."""
        self._take_turn()

    def end(self) -> None:
        """Leave the cores to others, and delete own models that nobody needs."""
        self._turn.give_back()
        if self._table is not None:
            self._table.close()
            self._clear()

    def is_due(self) -> bool:
        """Whether a round follows the last step. None follows the last step of the run."""
        step = self._progress.step
        return step % self.round_steps == 0 and step < self._last_step

    def play(self) -> None:
        """Offer the model, compare it with others, and go on with the one that wins."""
        attempt, progress = self._attempt, self._progress
        since = time.perf_counter()
        round = progress.step // self.round_steps
        attempt.begin(f"round {round}")
        state.average_statistics(attempt.backend, attempt.topology, self._model)
        own = [keras.ops.convert_to_numpy(variable.value) for variable in self._exchanged]
        score = self._score()
        if attempt.topology.is_chief:
            offers.publish(self._meeting, round, own, self._offer(score))
        self._turn.give_back()
        others = self._others(round)
        waited_since = time.perf_counter()
        here = self._wait(round, others)
        self._take_turn()
        waited = time.perf_counter() - waited_since
        if self._tournament.selection == "truncation":
            row = self._rank(round, score, own, others, here)
        else:
            row = self._meet(round, score, own, others, here)
        progress.rounds = round
        seconds = progress.spend("tournament", since)
        if self._table is not None:
            self._table.append(
                {
                    "round": round,
                    "step": progress.step,
                    "trainer": self._trainer,
                    "own_score": score,
                    **row,
                    **self._hyperparameters(),
                    "training_seconds": sum(progress.step_seconds),
                    "round_seconds": seconds,
                    "waited_seconds": waited,
                }
            )
            self._clear()
        who = "" if row["partner"] == "" else f" against trainer {row['partner']}"
        other = row["partner_score"]
        scores = f"{score:.4f}" + (f" and {other:.4f}" if isinstance(other, float) else "")
        attempt.say(
            f"round {round}{who}: {scores}; goes on with the model of trainer "
            f"{row['model_of']}: {row['reason']}"
        )

    def _meet(
        self,
        round: int,
        score: float,
        own: Sequence[np.ndarray],
        others: Sequence[int],
        here: Sequence[int],
    ) -> dict[str, Any]:
        """Compare the own model with the partner's, and keep the better one."""
        row = {"partner": "", "partner_score": "", "model_of": self._trainer}
        if not others:
            return {**row, "reason": "the odd one out"}
        (other,) = others
        row["partner"] = other
        if not here:
            return {**row, "reason": f"trainer {other} is missing or late: it plays alone"}
        hyperparameters = self._take(round, other, own)
        if hyperparameters is None:
            return {**row, "reason": f"the model of trainer {other} cannot be used"}
        theirs = self._score()
        takes, reason = selection.pairwise(score, theirs)
        if takes:
            self._change(round, hyperparameters)
            row["model_of"] = other
        else:
            self._assign(own)
        return {**row, "partner_score": theirs, "reason": reason}

    def _rank(
        self,
        round: int,
        score: float,
        own: Sequence[np.ndarray],
        others: Sequence[int],
        here: Sequence[int],
    ) -> dict[str, Any]:
        """Rank the models of all trainers by their scores, and replace the own one if it is low."""
        scores = np.full(self._tournament.trainers, np.nan)
        if self._attempt.topology.is_chief:
            for other in here:
                offer = self._read(round, other)
                scores[other] = np.nan if offer is None or offer.score is None else offer.score
        scores = self._shared(scores)
        scores[self._trainer] = score
        source = selection.truncation(dict(enumerate(scores.tolist())), self._tournament.num_kept)
        giver = source[self._trainer]
        missing = ", ".join(str(other) for other in others if other not in here)
        alone = f"; missing or late: {missing}" if missing else ""
        row = {"partner": "", "partner_score": "", "model_of": self._trainer}
        if giver == self._trainer:
            return {**row, "reason": f"the own model stays{alone}"}
        row |= {"partner": giver, "partner_score": float(scores[giver])}
        hyperparameters = self._take(round, giver, own)
        if hyperparameters is None:
            return {**row, "reason": f"the model of trainer {giver} cannot be used{alone}"}
        self._change(round, hyperparameters)
        return {**row, "model_of": giver, "reason": f"the own model is among the last{alone}"}

    def _others(self, round: int) -> list[int]:
        """Return the trainers whose models this one looks at in a round."""
        trainers = self._tournament.trainers
        if self._tournament.selection == "truncation":
            return [other for other in range(trainers) if other != self._trainer]
        other = partner(self._trainer, trainers, seed=self._seed, round=round)
        return [] if other is None else [other]

    def _wait(self, round: int, others: Sequence[int]) -> list[int]:
        """Wait for models; return the trainers whose models are here.

        Trainers that share this one's place come first: without them this one would train on while
        they wait for its cores.
        """
        needed = sorted({*others, *self._mates})
        # Trainers that share one place take turns, and come one after the other.
        limit = self._tournament.wait_seconds * (1 + len(self._mates))
        deadline = time.monotonic() + limit
        while True:
            found = np.zeros(self._tournament.trainers + 1)
            if self._attempt.topology.is_chief:
                states = {other: self._meeting.state(round, other) for other in needed}
                for other, known in states.items():
                    found[other] = known == "here"
                is_over = "awaited" not in states.values() or time.monotonic() > deadline
                found[-1] = is_over
                if not is_over:
                    time.sleep(POLL_SECONDS)
            found = self._shared(found)
            self._attempt.begin(f"waiting in round {round} for trainers {needed}")
            if found[-1]:
                return [other for other in others if found[other]]

    def _take_turn(self) -> None:
        """Wait until the own place is free. Nothing to wait for where each has its own."""
        if not self._mates:
            return
        while True:
            has_turn = np.zeros(1)
            if self._attempt.topology.is_chief:
                has_turn[0] = self._turn.take()
                if not has_turn[0]:
                    time.sleep(POLL_SECONDS)
            self._attempt.begin("waiting for its turn")
            if self._shared(has_turn)[0]:
                return

    def _take(
        self, round: int, other: int, own: Sequence[np.ndarray]
    ) -> Mapping[str, float] | None:
        """Give all processes another trainer's model.

        Returns the hyperparameters that it was trained with; None if it cannot be used.
        """
        values: list[np.ndarray] = []
        is_usable, theirs = np.zeros(1), self._hyperparameters()
        if self._attempt.topology.is_chief:
            try:
                offer, values = offers.load(self._meeting, round, other, own)
                theirs |= {name: offer.hyperparameters.get(name, theirs[name]) for name in theirs}
                is_usable[0] = 1
            except RecordError as error:
                self._attempt.say(str(error))
        if not self._shared(is_usable)[0]:
            return None
        if self._attempt.topology.is_chief:
            self._assign(values)
        state.broadcast(self._attempt.backend, self._attempt.topology, self._exchanged)
        shared = self._shared(np.array(list(theirs.values())))
        return dict(zip(theirs, shared.tolist(), strict=True))

    def _assign(self, values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self._exchanged, values, strict=True):
            variable.assign(value)

    def _change(self, round: int, theirs: Mapping[str, float]) -> None:
        """Take the hyperparameters of a better model, changed, where the tournament says so."""
        rules = self._tournament.mutate
        changed = mutated(theirs, rules, seed=self._seed, round=round, trainer=self._trainer)
        rate = changed.pop("learning_rate", None)
        if rate is not None:
            self._model.optimizer.learning_rate = rate * self._scale
        self._progress.hyperparameters = {**self._progress.hyperparameters, **changed}

    def _hyperparameters(self) -> dict[str, float]:
        rate = keras.ops.convert_to_numpy(self._model.optimizer.learning_rate)
        return {"learning_rate": float(rate) / self._scale, **self._progress.hyperparameters}

    def _offer(self, score: float) -> Offer:
        return Offer(
            score=score if np.isfinite(score) else None,
            hyperparameters=self._hyperparameters(),
            is_rounded=self._tournament.exchange == "weights_bfloat16",
        )

    def _read(self, round: int, other: int) -> Offer | None:
        try:
            return offers.read(self._meeting, round, other)
        except RecordError as error:
            self._attempt.say(str(error))
            return None

    def _shared(self, values: np.ndarray) -> np.ndarray:
        """Return the chief's numbers in every process."""
        own = values if self._attempt.topology.is_chief else np.zeros_like(values)
        return self._attempt.backend.sum(own)

    def _clear(self) -> None:
        self._meeting.clear({round: self._others(round) for round in self._meeting.rounds()})


def exchanged(network: Network) -> list[Any]:
    """Return the variables that change hands: weights, seeds of layers, the optimizer's state.

    The number of steps and the learning rate stay the receiver's, and so do sums of metrics over
    its epoch.
    """
    optimizer = {id(variable) for variable in network.model.optimizer.variables}
    metrics = {id(variable) for metric in network.model.metrics for variable in metric.variables}

    def stays(variable: Any) -> bool:
        is_own = id(variable) in optimizer and variable.name in ("iteration", "learning_rate")
        return is_own or id(variable) in metrics

    return [variable for variable in network.variables if not stays(variable)]
