"""Which images a run is trained on, so that they are known again later."""

import hashlib
import json

from tfunet.data.cached_cases import CachedCases
from tfunet.data.source import DataSource
from tfunet.data.split import Split
from tfunet.files.typed import RecordError
from tfunet.record import RunFolder


def contents(cases: CachedCases, split: Split) -> str:
    """Return a hash of the images and labels of a split."""
    digest = hashlib.blake2b(digest_size=16)
    for case in (*split.train, *split.validation):
        seen = [cases.case_ids[case], cases.signs[case].content, cases.foreground_counts[case]]
        digest.update(json.dumps(seen).encode())
    return digest.hexdigest()


def contents_changed(folder: RunFolder, cases: CachedCases, split: Split) -> bool:
    """Whether an earlier attempt in this folder recorded other images or labels."""
    try:
        before = (folder.read_data() or {}).get("contents")
    except RecordError:
        return False
    return before not in (None, contents(cases, split))


def training_files(source: DataSource, split: Split) -> list[str]:
    """Return the files of the training cases; none of data that are generated."""
    paths = source.paths()
    return [paths[case] for case in split.train] if paths else []
