"""Why reading a case failed, where TensorFlow has worded it again. Imports no TensorFlow."""

import functools
from collections.abc import Callable
from typing import Any

from tfunet.data.stored_case import BadCaseError

_failures: list[Exception] = []


def noting_failures(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, whose errors `raise_read_failure` knows."""

    @functools.wraps(read)
    def noted(*args: Any) -> Any:
        try:
            return read(*args)
        except Exception as error:
            _failures.append(error)
            raise

    return noted


def raise_read_failure(error: BaseException) -> None:
    """Raise what a reader of cases raised, if this is TensorFlow's error for it."""
    if not _failures or not type(error).__module__.startswith("tensorflow."):
        return
    failure = _failures[0]
    if not isinstance(failure, BadCaseError):
        raise failure from None
    raise ValueError(
        f"{str(failure).removesuffix('.')}. Correct or remove the file; on_bad_sample = 'skip' "
        "lets the next case take its place. 'tfunet data check' reads every file."
    ) from None
