"""Runs the trainers of a population together on this machine: side by side, or in turns."""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfunet import exit_codes
from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.config.keys import MAY_CHANGE
from tfunet.config.tournament import Tournament, meeting_name, read_tournament
from tfunet.machine.cores import usable_cores
from tfunet.population.meeting import PopulationFolder
from tfunet.population.places import places
from tfunet.population.turn import VARIABLE
from tfunet.process.terminal import counted
from tfunet.record import MEETINGS, RunFolder

# How often a trainer that died is started again; the others go on meanwhile.
RESTARTS = 2
# Runs a trial on cores, with further variables, and returns its exit code.
RunTrial = Callable[[TrialRecord, Sequence[int], Mapping[str, str]], int]


def together(trials: Iterable[TrialRecord]) -> Iterator[list[TrialRecord]]:
    """Yield the trials in groups that run at the same time: single ones, and populations."""

    def group(trial: TrialRecord) -> tuple[object, ...]:
        tournament = read_tournament(trial.config.tournament)
        if tournament is None:
            return (trial.id,)
        return trial.cell, tournament.population_of(trial.config.seed)

    for _, members in itertools.groupby(trials, group):
        yield list(members)


def goes_on(trial: TrialRecord) -> bool:
    """Whether a trainer has a checkpoint: others have met it, so it does not start anew."""
    return bool(trial.config.tournament) and (trial.folder / "checkpoint.npz").is_file()


def meeting_of(trial: TrialRecord, tournament: Tournament) -> PopulationFolder:
    """Return the place where a trainer meets others."""
    config = trial.config
    name = meeting_name(config.values(), MAY_CHANGE, tournament.population_of(config.seed))
    folder = trial.folder.parent / MEETINGS / name
    return PopulationFolder(folder, tournament.trainer_of(config.seed))


def expect(trial: TrialRecord, tournament: Tournament) -> None:
    """Let others wait for a trainer that is about to start, though it ended in an earlier attempt.

    Without this they would miss it in their next round.
    """
    if trial.folder.is_dir():
        RunFolder(trial.folder).clear_failure()
    meeting = meeting_of(trial, tournament)
    meeting.forget(meeting.trainer)


def run_population(
    trials: Sequence[TrialRecord],
    tournament: Tournament,
    run_trial: RunTrial,
    noted: Sequence[int],
    say: Callable[[str], None],
) -> int:
    """Run the trainers `trials` of a population until all have ended.

    One that dies is started again, and goes on from its checkpoint. The others do not wait for it.
    Returns the exit code of the first that failed, or 0.
    """
    for trial in trials:
        expect(trial, tournament)
    spots = places(trials[0].config, usable_cores())
    # Independent runs need not wait for each other in each round: one follows the other.
    queues: list[list[TrialRecord]] = [[trial] for trial in trials]
    variables: dict[str, str] = {}
    if len(spots) < tournament.trainers:
        say(
            f"{tournament.trainers} trainers take turns in {counted(len(spots), 'place')} of "
            f"{counted(len(spots[0]), 'core')} each."
        )
        if tournament.selection == "none":
            queues = [
                [trial for trial in trials if _place(trial, tournament, spots) == place]
                for place in range(len(spots))
            ]
        else:
            variables = {VARIABLE: str(len(spots))}

    def run_queue(queue: Sequence[TrialRecord]) -> list[int]:
        return [run_one(trial) for trial in queue if not noted]

    def run_one(trial: TrialRecord) -> int:
        cores = spots[_place(trial, tournament, spots)]
        code = run_trial(trial, cores, variables)
        for attempt in range(1, RESTARTS + 1):
            # A process may be killed after it has written its result.
            if noted or not _has_died(code) or RunFolder(trial.folder).is_done():
                break
            how = "goes on from its checkpoint" if goes_on(trial) else "begins anew"
            say(f"{trial.id} died; it {how} (restart {attempt}).")
            code = run_trial(trial, cores, variables)
        return code

    # The kernel kills a child with the thread that started it: each thread waits for its own.
    with ThreadPoolExecutor(max_workers=len(queues)) as threads:
        codes = [code for ended in threads.map(run_queue, queues) for code in ended]
    if all(RunFolder(trial.folder).is_done() for trial in trials):
        # The others were done before: nobody needs the last models.
        shutil.rmtree(meeting_of(trials[0], tournament).folder, ignore_errors=True)
    if exit_codes.NOT_WRITTEN in codes:
        return exit_codes.NOT_WRITTEN
    return next((code for code in codes if code), exit_codes.OK)


def _place(trial: TrialRecord, tournament: Tournament, spots: Sequence[Sequence[int]]) -> int:
    return tournament.trainer_of(trial.config.seed) % len(spots)


def _has_died(code: int) -> bool:
    return code < 0 or code == exit_codes.PROCESS_DIED
