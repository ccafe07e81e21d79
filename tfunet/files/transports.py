"""Which way leads to the files of a server: for each scheme the first that works. No TensorFlow."""

import ctypes.util
import functools
import os
from collections.abc import Callable, Collection

from tfunet.files.fsspec_files import Fsspec
from tfunet.files.gfile import TensorflowIo
from tfunet.files.server import Transport
from tfunet.files.urls import SCHEMES, WEB, Url
from tfunet.files.web import Web

# The package of each scheme that fsspec reads through.
PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "hdfs": "pyarrow"}
# Variables that say where servers are, and who asks: a notebook may change them.
SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "S3_")
NO_HADOOP = "hdfs:// needs pyarrow, and Hadoop with its libhdfs, where $HADOOP_HOME says"


@functools.lru_cache(maxsize=64)
def _transport(
    scheme: str, host: str, _process: int, _settings: tuple[tuple[str, str], ...]
) -> Transport:
    url = Url(scheme, host, "")
    if scheme in WEB:
        return Web()
    if scheme == "hdfs" and not _has_hadoop():
        raise ValueError(f"{url} cannot be read: {NO_HADOOP}.")
    ways: tuple[Callable[[str], Transport], ...] = (Fsspec, TensorflowIo)
    for make in ways:
        try:
            return make(scheme)
        except ImportError:
            continue
    needed = "pip install 'tfunet[remote]'"
    raise ValueError(f"{url} cannot be read: {scheme}:// needs {PACKAGES[scheme]}: {needed}.")


def transport_of(url: Url) -> Transport:
    """Return the way to a server, one for each process; ValueError where no package knows it."""
    settings = [(name, value) for name, value in os.environ.items() if name.startswith(SETTINGS)]
    return _transport(url.scheme, url.host, os.getpid(), tuple(sorted(settings)))


def served(by_tensorflow: Collection[str]) -> tuple[str, set[str]]:
    """Return a line that says what reads each scheme, and the schemes that nothing reads.

    `by_tensorflow` are the schemes for which TensorFlow, with tensorflow-io, has a file system.
    """
    schemes: dict[str, list[str]] = {}
    for scheme in SCHEMES:
        schemes.setdefault(_served_by(scheme, by_tensorflow), []).append(scheme)
    lines = [
        f"{', '.join(f'{name}://' for name in names)} by {by or 'nothing that is installed'}"
        for by, names in schemes.items()
    ]
    return "; ".join(lines), set(schemes.get("", ()))


def _served_by(scheme: str, by_tensorflow: Collection[str]) -> str:
    if scheme in WEB:
        return "Python"
    if scheme == "hdfs" and not _has_hadoop():
        return ""
    try:
        Fsspec(scheme)
    except ImportError:
        return "tensorflow-io" if scheme in by_tensorflow else ""
    return "fsspec"


def _has_hadoop() -> bool:
    """Whether Hadoop's library can be there, by which both fsspec and TensorFlow read."""
    named = any(os.environ.get(name) for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR"))
    return named or ctypes.util.find_library("hdfs") is not None
