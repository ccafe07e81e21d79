"""Files of a server by fsspec, with the package of its scheme. No TensorFlow."""

from __future__ import annotations

import binascii
import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

from tfunet.files.server import NUM_THREADS, TIMEOUT_SECONDS, Version, seconds_of
from tfunet.files.urls import Url, without_secrets

Result = TypeVar("Result")


@final
class Fsspec:
    """fsspec, with the package of a scheme. Credentials come from where this looks for them."""

    def __init__(self, scheme: str) -> None:
        """Raise ImportError where a package is missing."""
        import fsspec

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # On Pythons that will not do in future.
            fsspec.get_filesystem_class(scheme)
        self._open = functools.partial(
            fsspec.core.url_to_fs, skip_instance_cache=True, use_listings_cache=False
        )
        self._lock = threading.Lock()
        self._made: Any = None
        self._is_anonymous = False

    def find(self, url: Url) -> dict[str, Version]:
        path = self._path(url)
        found = self._asked(lambda files: files.find(path, detail=True), url)
        start = path.rstrip("/")
        return {
            "" if name == start else name.removeprefix(f"{start}/"): version_of(facts)
            for name, facts in found.items()
            if facts["type"] == "file" and not name.endswith("/")
        }

    def version(self, url: Url) -> Version:
        path = self._path(url)
        return version_of(self._asked(lambda files: files.info(path, refresh=True), url))

    def fetch(self, url: Url, target: Path) -> None:
        path = self._path(url)
        self._asked(lambda files: files.get_file(path, str(target)), url)

    def head(self, url: Url, num_bytes: int) -> bytes:
        path = self._path(url)
        return bytes(self._asked(lambda files: files.cat_file(path, start=0, end=num_bytes), url))

    def server(self, url: Url) -> str:
        if url.scheme == "s3":
            for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
                if address := os.environ.get(name):
                    return without_secrets(address)
        return f"of {url.scheme}://{url.host}"

    def _path(self, url: Url) -> str:
        return str(self._files(url)[1](str(url)))

    def _asked(self, ask: Callable[[Any], Result], url: Url) -> Result:
        files, _ = self._files(url)
        try:
            return ask(files)
        except Exception as error:
            if url.scheme != "s3" or type(error).__name__ != "NoCredentialsError":
                raise
        # Nobody has logged in, and public buckets need nobody.
        with self._lock:
            if not self._is_anonymous:
                self._is_anonymous, self._made = True, None
        return ask(self._files(url)[0])

    def _files(self, url: Url) -> tuple[Any, Callable[[str], str]]:
        with self._lock:
            if self._made is None:
                self._made, _ = self._open(str(url), **self._options(url.scheme))
                if url.scheme == "s3":
                    self._made.retries = 1
            return self._made, self._made._strip_protocol

    def _options(self, scheme: str) -> dict[str, Any]:
        if scheme != "s3":
            return {}
        # `attempted` tries again, and says what it was told.
        config = {
            "retries": {"total_max_attempts": 1},
            "connect_timeout": TIMEOUT_SECONDS,
            "read_timeout": TIMEOUT_SECONDS,
            "max_pool_connections": NUM_THREADS,
        }
        return {"anon": self._is_anonymous, "config_kwargs": config}


def version_of(facts: Mapping[str, Any]) -> Version:
    """Return the version of a file from what fsspec's packages tell of it, each in its way."""
    times = ("LastModified", "last_modified", "updated", "mtime", "modificationTime")
    changed = next((facts[name] for name in times if facts.get(name)), None)
    # The MD5 of Google is the mark that is a checksum, as the ETag of S3 mostly is.
    tags = (_hexadecimal(facts.get("md5Hash")), facts.get("ETag"), facts.get("etag"))
    tag = next(filter(None, tags), "") or str(changed or "")
    return Version(int(facts["size"]), seconds_of(changed), str(tag).removeprefix("W/").strip('"'))


def _hexadecimal(base64: Any) -> str:
    return binascii.a2b_base64(base64).hex() if isinstance(base64, str) else ""
