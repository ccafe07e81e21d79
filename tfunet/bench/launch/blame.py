"""Which process of a run made the others fail, and how it ended. Pure."""

import signal
from collections.abc import Sequence

from tfunet import exit_codes


def blame(failures: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the (index, return code) that made the others fail.

    `failures` are in order of their end, but processes end almost together, so the order alone
    does not tell. A process killed from outside follows no other; one that ended on purpose knew
    why; one whose collective broke raises or aborts.
    """

    def rank(failure: tuple[int, int]) -> int:
        code = failure[1]
        if code < 0 and code != -signal.SIGABRT:
            return 0
        if code in exit_codes.ON_PURPOSE:
            return 1
        return 2 if code < 0 else 3

    return min(failures, key=rank)


def follows_another(failures: Sequence[tuple[int, int]]) -> bool:
    """Whether these (index, return code) are typical of processes that lost a peer."""
    _, code = blame(failures)
    return code == -signal.SIGABRT or (code > 0 and code not in exit_codes.ON_PURPOSE)


def describe_end(index: int, count: int, code: int, last_words: str) -> str:
    """Return the reason for failure.json; `last_words` is the last line of an error."""
    who, where = f"process {index} of {count}", f"see log-{index}.txt"
    if code < 0:
        names = {int(known): known.name for known in signal.Signals}
        return f"{who} was killed by {names.get(-code, f'signal {-code}')}, {where}"
    words = f": {last_words}" if last_words else ""
    return f"{who} ended with exit code {code}, {where}{words}"
