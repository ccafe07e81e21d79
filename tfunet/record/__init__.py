"""The record of a run: a folder, and the files in it. No TensorFlow."""

from tfunet.record.columns import (
    CASE_COLUMNS,
    DATA,
    EARLIER,
    MEETINGS,
    MODEL,
    ROUND_COLUMNS,
    SHOWN_CASES,
    WEIGHTS,
    epoch_columns,
    scored,
)
from tfunet.record.lock import LOCK, InUseError
from tfunet.record.run_folder import SIGNATURE, RunFolder, as_recorded, sign

__all__ = [
    "CASE_COLUMNS",
    "DATA",
    "EARLIER",
    "LOCK",
    "MEETINGS",
    "MODEL",
    "ROUND_COLUMNS",
    "SHOWN_CASES",
    "SIGNATURE",
    "WEIGHTS",
    "InUseError",
    "RunFolder",
    "as_recorded",
    "epoch_columns",
    "scored",
    "sign",
]
