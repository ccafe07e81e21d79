"""Runs a search: asks Optuna for settings, runs a trial with them, and tells Optuna its score.

Any number of processes and jobs may do so at once in one folder:

    lock of the folder   | ask for settings; add a line to plan.jsonl          (moments)
    lock of the trial    | run it; after each epoch: report, or prune         (its whole time)
    lock of the folder   | tell its score

A trial whose lock is free although Optuna has it as running has lost its process. Its settings are
asked for again.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

from tfunet import exit_codes
from tfunet.arguments import of_study
from tfunet.bench.launch.child_process import exit_code_of, signals_noted
from tfunet.bench.launch.epoch_watch import EpochWatch
from tfunet.bench.launch.one_trial import (
    first_exit_code,
    run_trial,
    train_command,
    trial_line,
)
from tfunet.bench.launch.search_journal import NAME, journal_faults, name_of, open_study
from tfunet.bench.launch.search_plan import SearchPlan
from tfunet.bench.launch.sweep_folder import locked_soon, set_aside, write_study
from tfunet.bench.records.objectives import objective_of
from tfunet.bench.records.sweep_record import TrialRecord, read_plan, read_sweep
from tfunet.bench.study.plan_text import PLAN_VERSION
from tfunet.bench.study.search_settings import Search
from tfunet.bench.study.space import Choice, Range
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.trial_plan import impossible, trial_name
from tfunet.config.keys import nested, show
from tfunet.config.run import RunConfig
from tfunet.files.atomic import write_atomic
from tfunet.machine.cores import usable_cores
from tfunet.record import RunFolder

LOCKS = "search-locks"
# Nobody has the lock of the folder for longer, unless another sweep runs in it.
LOCKED_SECONDS = 120.0


def run_search(
    study: Study,
    folder: str | Path,
    *,
    command: Callable[[Path], Sequence[str]] = train_command,
    refuses: bool = False,
    say: Callable[[str], None],
) -> int:
    """Run trials of a search until it has as many as the study says, and return an exit code.

    With `refuses`, ValueError says before the first trial that each would be refused.
    """
    if study.search is None:
        raise ValueError(f"Study {study.name!r} has no [search].")
    if refuses:
        from tfunet.bench.study.refusals import refuse, search_refusals

        refuse(search_refusals(study))
    root = Path(folder)
    hunt = _Hunt(study, study.search, root, _optuna())
    with signals_noted() as noted:
        say(f"{study.name}: a search of {study.search.trials} trials in {root}.")
        while not noted:
            asked = hunt.ask()
            if asked is None:
                break
            since = time.perf_counter()
            code = hunt.run(asked, command, noted)
            if noted:
                break
            ended = hunt.record(asked.name)
            seconds = time.perf_counter() - since
            say(f"[{asked.number + 1}/{study.search.trials}] {trial_line(ended, seconds)}")
            if code == exit_codes.NOT_WRITTEN:
                say("Files cannot be written, so the search ends here.")
                return code
        if noted:
            say("Ended by a signal. Run the same command to go on.")
            return exit_code_of(noted)
    return first_exit_code(trial for trial in read_sweep(root).trials if trial.state == "failed")


@dataclass(frozen=True)
class _Asked:
    """A trial that is to run; `lock` is held until it was told."""

    trial: Any
    name: str
    number: int
    lock: contextlib.ExitStack


@final
class _Hunt:
    """The state of a search: Optuna's study in the folder of the sweep, and plan.json."""

    def __init__(self, study: Study, search: Search, root: Path, optuna: ModuleType) -> None:
        self._study, self._search, self._root, self._optuna = study, search, root, optuna
        self._unended: list[Any] = []
        self._num_seen = 0
        RunFolder(root).create()
        with locked_soon(RunFolder(root), LOCKED_SECONDS):
            self._begin()
            self._grown = SearchPlan(root)
            self._optuna_study = open_study(optuna, root, study.name, search)

    def ask(self) -> _Asked | None:
        """Return the next trial, in plan.json; None if the search has as many as it should."""
        with locked_soon(RunFolder(self._root), LOCKED_SECONDS):
            self._reclaim()
            while True:
                number = self._grown.refresh()
                if number >= self._search.trials:
                    return None
                asked = len(self._optuna_study.get_trials(deepcopy=False))
                # A new sampler each time: one that was restarted with its seed would repeat itself.
                self._optuna_study.sampler = _sampler(self._optuna, self._search, asked)
                with journal_faults(self._root):
                    trial = self._optuna_study.ask(self._distributions())
                try:
                    return self._planned(trial, number)
                except ValueError as error:
                    # Each setting was checked alone; together they may be impossible.
                    self._optuna_study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                    self._skip(trial.params, str(error))

    def run(
        self, asked: _Asked, command: Callable[[Path], Sequence[str]], noted: Sequence[int]
    ) -> int:
        """Run a trial, tell its score, and return its exit code."""
        states = self._optuna.trial.TrialState
        with asked.lock:
            record = self.record(asked.name)
            signals: list[int] = []
            watch = EpochWatch(asked.trial, record.folder, self._search, noted, signals)
            with watch.running():
                code = run_trial(record, self._root, command, signals)
            if watch.pruned and not noted:
                RunFolder(record.folder).write_failure(watch.pruned, exit_codes.TERMINATED)
            with locked_soon(RunFolder(self._root), LOCKED_SECONDS):
                score = self._score(asked.name)
                if score is not None:
                    self._optuna_study.tell(asked.trial, score)
                elif noted:
                    self._ask_again(asked.trial.number, asked.name)
                else:
                    state = states.PRUNED if watch.pruned else states.FAIL
                    self._optuna_study.tell(asked.trial, state=state)
        return code

    def record(self, name: str) -> TrialRecord:
        """Return a trial of this search from its files."""
        if (record := self._grown.record(name)) is None:
            raise ValueError(f"The plan in {self._root} has no trial {name!r} any more.")
        return record

    def _begin(self) -> None:
        """Write study.toml and plan.json, or check that those there are of this search."""
        path = self._root / "plan.json"
        if path.exists():
            there = read_plan(self._root).get("search")
            ours = json.loads(json.dumps(self._plan()["search"]))
            differing = [
                key for key in ours if not isinstance(there, dict) or there.get(key) != ours[key]
            ]
            if differing:
                raise ValueError(
                    f"{self._root} holds trials of another study or search: what differs is "
                    f"{', '.join(differing)}. Choose another folder with --out. Only trials may "
                    "change."
                )
        else:
            write_atomic(path, json.dumps(self._plan(), indent=1))
        write_study(self._study, self._root)

    def _plan(self) -> dict[str, Any]:
        search = {key: value for key, value in vars(self._search).items() if key != "trials"}
        space = {key: entry.table() for key, entry in self._study.space.items()}
        return {
            "schema_version": PLAN_VERSION,
            "study": self._study.name,
            "repeats": 1,
            "seed": self._study.seed,
            "base": vars(RunConfig()),
            "trials": [],
            "skipped": [],
            "notes": [],
            "samples": list(self._study.space),
            "objective": self._search.objective,
            "direction": self._search.direction,
            "search": {"base": dict(self._study.base), **search, "space": space},
            "working_folder": str(Path.cwd()),
        }

    def _planned(self, trial: Any, number: int) -> _Asked:
        """Add a trial of Optuna to plan.json; ValueError if its settings are impossible."""
        values = {key: self._value(key, value) for key, value in trial.params.items()}
        config = of_study(nested({**self._study.base, **values}))
        if reason := impossible(config, len(usable_cores())):
            raise ValueError(reason)
        settings = {"backend": config.backend, "num_replicas": config.num_replicas, **values}
        # The number keeps apart trials with the same settings.
        name = f"t{trial.number:04d}-{trial_name(settings, config, 1)}"
        base = vars(RunConfig())
        changes = {key: value for key, value in vars(config).items() if value != base[key]}
        entry = {
            "id": name,
            "cell": trial.number,
            "repeat": 1,
            "scaling": "strong" if "global_batch" in {**self._study.base, **values} else "weak",
            "settings": settings,
            "changes": changes,
        }
        lock = contextlib.ExitStack()
        lock.enter_context(locked_soon(self._lock(name), LOCKED_SECONDS))
        trial.set_user_attr(NAME, name)
        self._grown.add(entry)
        return _Asked(trial, name, number, lock)

    def _skip(self, params: Mapping[str, Any], reason: str) -> None:
        settings = {key: self._value(key, value) for key, value in params.items()}
        self._grown.skip({"settings": settings, "reason": reason})

    def _reclaim(self) -> None:
        """Ask again for the settings of trials whose process has died."""
        trials = self._optuna_study.get_trials(deepcopy=False)
        # Trials that have ended are looked at only once.
        self._unended += trials[self._num_seen :]
        self._num_seen = len(trials)
        numbers = [trial.number for trial in self._unended]
        self._unended = [trials[at] for at in numbers if not trials[at].state.is_finished()]
        for trial in self._unended:
            if trial.state != self._optuna.trial.TrialState.RUNNING:
                continue
            name = name_of(trial, self._root)
            if name is not None and self._lock(name).is_locked():
                continue
            score = self._score(name) if name is not None else None
            if score is not None:
                self._optuna_study.tell(trial.number, score)
            else:
                self._ask_again(trial.number, name)

    def _ask_again(self, number: int, name: str | None) -> None:
        trial = self._optuna_study.get_trials(deepcopy=False)[number]
        self._optuna_study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        self._optuna_study.enqueue_trial(trial.params)
        if name is not None:
            self._grown.remove(name)
            set_aside(self._root / name, self._root)

    def _score(self, name: str) -> float | None:
        record = self._grown.record(name)
        result = None if record is None else record.result
        objective = objective_of(self._search.objective)
        score = objective.of_result(result) if result is not None else None
        return score if score is not None and score == score else None

    def _lock(self, name: str) -> RunFolder:
        lock = RunFolder(self._root / LOCKS / name)
        lock.create()
        return lock

    def _distributions(self) -> dict[str, Any]:
        kinds = self._optuna.distributions
        found: dict[str, Any] = {}
        for key, entry in self._study.space.items():
            if isinstance(entry, Choice):
                # Optuna takes texts and numbers; a list or a table stands under its text.
                found[key] = kinds.CategoricalDistribution(list(_choices(entry)))
            elif entry.is_whole:
                found[key] = kinds.IntDistribution(
                    int(entry.low), int(entry.high), log=entry.log, step=int(entry.step or 1)
                )
            else:
                found[key] = kinds.FloatDistribution(
                    entry.low, entry.high, log=entry.log, step=entry.step
                )
        return found

    def _value(self, key: str, value: Any) -> Any:
        entry = self._study.space[key]
        return value if isinstance(entry, Range) else _choices(entry)[value]


def _choices(entry: Choice) -> dict[Any, Any]:
    plain = (str, int, float, bool)
    return {value if isinstance(value, plain) else show(value): value for value in entry.values}


def _sampler(optuna: ModuleType, search: Search, number: int) -> Any:
    seed = (search.seed * 100_003 + number) % 2**32
    if search.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if search.sampler == "qmc":
        # It draws the points of one sequence, whose next one it finds in the study.
        return optuna.samplers.QMCSampler(seed=search.seed, warn_independent_sampling=False)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _optuna() -> ModuleType:
    try:
        import optuna
        import optuna.storages.journal
    except ModuleNotFoundError as error:
        raise ValueError(
            f"[search] needs {error.name}, which is not installed. Install it with: "
            "pip install 'tfunet[ensembles]'. Without it: [samples]."
        ) from error
    import warnings

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    module: ModuleType = optuna
    return module
