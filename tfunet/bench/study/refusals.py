"""Which trials of a study would end before their first step, since their settings are wrong.

Each data set is opened once. Imports no TensorFlow.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tfunet.arguments import check_names, of_study
from tfunet.bench.study.checks import first_reasons
from tfunet.bench.study.probe import made_reasons
from tfunet.bench.study.study_file import Study
from tfunet.bench.study.toml_writer import value_toml
from tfunet.bench.study.trial_plan import StudyPlan, Trial
from tfunet.config.keys import describe, nested
from tfunet.config.run import RunConfig
from tfunet.data.early_checks import (
    DataSets,
    check_data,
    check_libraries,
    check_model,
    check_network,
)
from tfunet.machine.doctor import check_installed
from tfunet.process.terminal import lines_of

SHOWN_TRIALS = 3


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why `tfunet train` would refuse these trials of so many.

    Args:
        is_missing: Whether they only need what is not installed here.
        when: Settings that these trials have, and no others, as in [[skip]]; empty if there are
            none.
    """

    reason: str
    trials: tuple[str, ...]
    num_trials: int
    when: Mapping[str, Any] = field(default_factory=dict)
    is_missing: bool = False

    def __str__(self) -> str:
        count = len(self.trials)
        names = ", ".join(self.trials[:SHOWN_TRIALS])
        names += ", ..." if count > SHOWN_TRIALS else ""
        if count == self.num_trials:
            who = "The trial" if count == 1 else f"Each of the {count} trials"
        else:
            who = f"{count} of {self.num_trials} trials ({names})"
        what = "cannot run here" if self.is_missing else "would be refused"
        return f"{who} {what}. {self.reason}{self._leaving_out()}"

    def _leaving_out(self) -> str:
        if len(self.trials) == self.num_trials:
            return ""
        if not self.when:
            return "\nTo leave them out, describe them in a block [[skip]] of the study."
        return (
            "\nTo leave them out, add this at the end of the study:\n"
            f"  [[skip]]\n  when = {value_toml(self.when)}\n"
            f"  reason = {value_toml(self.reason.splitlines()[0].partition('. ')[0])}"
        )


def refusals(
    planned: StudyPlan,
    trials: Collection[str] | None = None,
    stops: Callable[[], bool] = lambda: False,
) -> list[Refusal]:
    """Return why trials of a plan, or those of them that are named, would be refused, by reason.

    A process with TensorFlow makes each distinct network, loss and optimizer, until `stops` says
    that nobody waits for the answer.
    """
    named = None if trials is None else set(trials)
    chosen = [trial for trial in planned.trials if named is None or trial.id in named]
    refused = _by_reason({trial.id: trial.config for trial in chosen}, stops)
    return [
        replace(refusal, when=_common(set(refusal.trials), planned.trials)) for refusal in refused
    ]


def refuse(refused: Sequence[Refusal]) -> None:
    """Raise ValueError before the first trial, if trials would be refused.

    If they only need what is not installed here, the others run, and a warning names these.
    """
    if not refused:
        return
    is_every = _is_every(refused)
    if not is_every and all(refusal.is_missing for refusal in refused):
        warn(refused)
        return
    go_on = "" if is_every else " To run the others all the same: --go-on. These then fail."
    raise ValueError("\n".join([*map(str, refused), f"No trial was started.{go_on}"]))


def warn(missing: Iterable[Refusal]) -> None:
    """Say which trials cannot run here."""
    for refusal in missing:
        print(lines_of(f"warning: {refusal}"), file=sys.stderr, flush=True)


def _is_every(refused: Sequence[Refusal]) -> bool:
    return len({name for refusal in refused for name in refusal.trials}) == refused[0].num_trials


def _common(refused: Set[str], trials: Sequence[Trial]) -> dict[str, Any]:
    """Return settings that the refused trials have, and no others: one, if one tells them apart."""
    first = next(trial for trial in trials if trial.id in refused)

    def is_shared(key: str, value: Any) -> bool:
        having = {trial.id for trial in trials if trial.settings.get(key) == value}
        return having.issuperset(refused) and len(having) < len(trials)

    shared = {
        key: value
        for key, value in first.settings.items()
        if value is not None and is_shared(key, value)
    }

    def tells_apart(when: Mapping[str, Any]) -> bool:
        return bool(when) and all(
            trial.id in refused or any(trial.settings.get(key) != when[key] for key in when)
            for trial in trials
        )

    for when in (*({key: value} for key, value in shared.items()), shared):
        if tells_apart(when):
            return when
    return {}


def search_refusals(study: Study, stops: Callable[[], bool] = lambda: False) -> list[Refusal]:
    """Return why the trials of a search would be refused.

    They are known only as they run: looked at are the first and the last values of what is
    searched. Where only one of the two is refused, other values may do.
    """
    configs = {}
    for place in (0, -1):
        values = {key: entry.ends()[place] for key, entry in study.space.items()}
        try:
            configs[describe(values)] = of_study(nested({**study.base, **values}))
        except ValueError:
            return []
    refused = _by_reason(configs, stops)
    return refused if refused and _is_every(refused) else []


def _by_reason(configs: Mapping[str, RunConfig], stops: Callable[[], bool]) -> list[Refusal]:
    opened = DataSets()
    reasons = first_reasons(
        configs,
        (
            *(check_names, check_model, partial(check_data, opened=opened)),
            partial(check_network, opened=opened),
        ),
    )
    others = {name: config for name, config in configs.items() if name not in reasons}
    reasons |= made_reasons(others, stops)
    trials: dict[tuple[str, bool], list[str]] = {}
    for name, reason in reasons.items():
        trials.setdefault((reason, False), []).append(name)
    others = {name: config for name, config in configs.items() if name not in reasons}
    for check in (lambda config: check_installed(config.backend), check_libraries):
        for name, reason in first_reasons(others, [check]).items():
            trials.setdefault((reason, True), []).append(name)
    return [
        Refusal(reason=why, trials=tuple(names), num_trials=len(configs), is_missing=is_missing)
        for (why, is_missing), names in trials.items()
    ]
