"""What trials proved of how they step."""

from collections.abc import Iterable, Iterator

from tfunet.bench.records.sweep_record import TrialRecord
from tfunet.process.terminal import counted


def not_proved(trials: Iterable[TrialRecord]) -> Iterator[str]:
    """Yield a sentence for each reason for which steps were not proved."""
    by_reason: dict[str, list[str]] = {}
    for trial in trials:
        if trial.result is not None and trial.result.is_proved is False:
            by_reason.setdefault(trial.result.why_not_proved, []).append(trial.id)
    for reason, names in by_reason.items():
        yield (
            f"The step of {counted(len(names), 'trial')} ({', '.join(names[:3])}"
            f"{', ...' if len(names) > 3 else ''}) is not proved to be that of one device, because "
            f"{reason}: it may compute something else than those with which it is compared."
        )
