"""Trainers without TensorFlow, killed between any two of their reads and writes.

They do what tfunet/training/tournament_rounds.py does, with a number for a model. Real ones:
tests/population/kill_trainers.py.
"""

import json
import random
from unittest.mock import patch

import numpy as np
import pytest

from tfunet.files.atomic import write_atomic
from tfunet.population.meeting import PopulationFolder
from tfunet.population.offers import Offer, load, publish
from tfunet.population.pairing import partner
from tfunet.population.selection import pairwise
from tfunet.population.turn import Turn, mates
from tfunet.record import RunFolder

TRAINERS, PLACES, ROUNDS = 5, 2, 6
# Each step is one of a trainer that is drawn; more than this many, and they wait for each other.
MOST_STEPS = 20_000


def score(trainer, value):
    """Return the score of a model on the cases of a trainer."""
    return -abs(value - trainer)


class Population:
    """Trainers in a folder, of which any may be killed after any of its steps."""

    def __init__(self, folder, seed):
        self.folder, self.dice = folder, random.Random(seed)
        self.rows = {trainer: [] for trainer in range(TRAINERS)}
        self.running = {trainer: self.train(trainer) for trainer in range(TRAINERS)}
        self.waiting = {}  # (step of its start) of those that were killed, by trainer.
        self.steps = 0

    def run(self, kill_at=()):
        """Run until all have ended; return the trainers that were killed."""
        killed = []
        while self.running or self.waiting:
            self.steps += 1
            assert self.steps < MOST_STEPS, f"they wait for each other: {self.rows}"
            for trainer in [waiter for waiter, step in self.waiting.items() if step <= self.steps]:
                del self.waiting[trainer]
                self.running[trainer] = self.train(trainer)
            if not self.running:
                continue
            drawn = self.dice.choice(sorted(self.running))
            if self.steps in kill_at:
                self.running.pop(drawn).close()
                killed.append(drawn)
                self.waiting[drawn] = self.steps + self.dice.randrange(60)
            elif next(self.running[drawn], "ended") == "ended":
                del self.running[drawn]
        return killed

    def train(self, trainer):
        """Yield after each thing that another trainer can see, or that a kill can lose."""
        run = RunFolder(self.folder / f"run-{trainer}")
        run.create()
        meeting = PopulationFolder(self.folder / "meeting", trainer)
        turn = Turn(self.folder / f"place-{trainer % PLACES}")
        checkpoint = run.path / "checkpoint.json"
        done, value = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, 0.0)
        with run.locked():
            try:
                meeting.join(run.path)
                yield
                while not turn.take():
                    yield
                for round in range(done + 1, ROUNDS + 1):
                    value += random.Random(f"{trainer} {round}").uniform(-1, 2)
                    yield
                    model = [np.array([value])]
                    publish(meeting, round, model, Offer(0.0, {"learning_rate": value}, False))
                    turn.give_back()
                    yield
                    other = partner(trainer, TRAINERS, seed=0, round=round)
                    needed = {
                        *mates(trainer, TRAINERS, PLACES),
                        *(() if other is None else [other]),
                    }
                    states = dict.fromkeys(needed, "awaited")
                    while "awaited" in states.values():
                        yield
                        states = {peer: meeting.state(round, peer) for peer in needed}
                    while not turn.take():
                        yield
                    theirs, giver = None, trainer
                    if states.get(other) == "here":
                        offer, (loaded,) = load(meeting, round, other, model)
                        theirs = float(loaded[0])
                        assert offer.hyperparameters["learning_rate"] == theirs
                        yield
                        if pairwise(score(trainer, value), score(trainer, theirs))[0]:
                            giver, value = other, theirs
                    yield
                    write_atomic(checkpoint, json.dumps([round, value]))
                    row = {"other": other, "theirs": theirs, "giver": giver, "value": value}
                    self.rows[trainer] = [*self.rows[trainer][: round - 1], row]
                    yield
                    meeting.clear(
                        {
                            past: [] if peer is None else [peer]
                            for past in meeting.rounds()
                            for peer in [partner(trainer, TRAINERS, seed=0, round=past)]
                        }
                    )
                    yield
                run.write_result({})
            finally:
                turn.give_back()


@pytest.fixture(autouse=True)
def quick():
    """Nothing here has to outlive a power cut."""
    with patch("os.fsync", lambda descriptor: None):
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Rows of a population of which nobody was killed, and the number of its steps."""
    with patch("os.fsync", lambda descriptor: None):
        population = Population(tmp_path_factory.mktemp("whole"), seed=0)
        population.run()
    return population.rows, population.steps


def test_the_order_in_which_trainers_get_on_changes_nothing(whole, tmp_path):
    population = Population(tmp_path, seed=1)
    population.run()
    assert population.rows == whole[0]
    givers = [row["giver"] == trainer for trainer in range(TRAINERS) for row in whole[0][trainer]]
    assert 0 < sum(givers) < len(givers)
    # Nobody needs more than the models of the last rounds.
    assert len(list(tmp_path.glob("meeting/round-*/*.npz"))) <= 2 * TRAINERS


@pytest.mark.parametrize("seed", range(20))
def test_a_trainer_that_is_killed_at_any_moment_goes_on_and_others_do_not_notice(
    seed, whole, tmp_path
):
    expected, steps = whole
    population = Population(tmp_path, seed)
    # In the last ones it is killed, and others too, again and again.
    moments = random.Random(seed).sample(range(2, steps), 1 if seed < 15 else 20)
    killed = population.run(moments)
    check(population.rows, expected, killed)


def check(rows, expected, killed):
    """Compare what a population wrote with one of which nobody was killed."""
    before = dict.fromkeys(range(TRAINERS), True)  # Whether its model is the same.
    for index in range(ROUNDS):
        same = {}
        for trainer in range(TRAINERS):
            assert len(rows[trainer]) == ROUNDS  # Nothing is lost, and none played twice.
            row, usual = rows[trainer][index], expected[trainer][index]
            assert row["other"] == usual["other"]
            is_missed = row["other"] is not None and row["theirs"] is None
            # Only one that was killed is missed.
            assert not is_missed or row["other"] in killed
            if before[trainer] and not is_missed and before.get(row["other"], True):
                assert row == usual
            same[trainer] = row["value"] == usual["value"]
        before = same
