"""A data set described in a TOML file of its own: data = "sem.toml". Imports no TensorFlow."""

from collections.abc import Mapping
from typing import Any

from tfunet.files.remote import local
from tfunet.files.typed import parse_toml, toml_text
from tfunet.files.urls import is_url, parsed

DEFAULT_DATA = "folder"
PATHS = ("root", "file")
ROOTED = ("folder", "msd", "nnunet", "packed", "tfrecord")


def described(data: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return `data` and its options; if `data` names a TOML file, both come from the file.

    The file holds the options, and `data`, which is 'folder' by default. `root` and `file` are
    relative to the file; `root` is its folder by default, of data that lie
    in a folder. The given options override the file's.

    Raises ValueError for a file that cannot be read.
    """
    if not data.endswith(".toml"):
        return data, dict(options)
    path = local(data)
    try:
        table = parse_toml(toml_text(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"The description {data!r} cannot be read ({error}).") from error
    kind = table.pop("data", DEFAULT_DATA)
    if kind in ROOTED or ":" in str(kind):
        table.setdefault("root", ".")
    for key in PATHS:
        given = table.get(key)
        if isinstance(given, str) and not given.startswith(("~", "$")) and not is_url(given):
            folder = parsed(data).parent if is_url(data) else None
            table[key] = folder.joined(given) if folder else str(path.parent / given)
    return kind, {**table, **options}
