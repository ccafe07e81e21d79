"""Which images a run is trained on, so that they are known again later."""

import hashlib
import json

from tfunet.data.cached_cases import CachedCases
from tfunet.data.source import DataSource
from tfunet.data.split import Split
from tfunet.files.typed import RecordError
from tfunet.record import RunFolder


def contents(cases: CachedCases, split: Split) -> str | None:
    """Return a hash of the images and labels of a split; None before all of them are read."""
    digest = hashlib.blake2b(digest_size=16)
    for case in (*split.train, *split.validation):
        if (signs := cases.signs(case)) is None:
            return None
        seen = [cases.case_ids[case], signs.content, cases.foreground_counts(case)]
        digest.update(json.dumps(seen).encode())
    return digest.hexdigest()


def first_contents(folder: RunFolder) -> str | None:
    """Return the hash that a run recorded when it began; None where none can be read."""
    try:
        return (folder.read_data() or {}).get("contents")
    except RecordError:
        return None


def training_files(source: DataSource, split: Split) -> list[str]:
    """Return the files of the training cases; none of data that are generated."""
    paths = source.paths()
    return [paths[case] for case in split.train] if paths else []
