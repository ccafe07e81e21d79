"""URLs in the place of paths: which are read, and what no record may hold. No TensorFlow."""

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

SCHEMES = ("s3", "gs", "az", "hdfs", "https", "http")
WEB = ("https", "http")
# A user's name may stand before their host: a container of Azure, a user of Hadoop.
WITH_NAMES = ("az", "hdfs")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(r"[\w.\-:\[\]@%]+")
_SIGNED = re.compile(
    r"[?&]([^=&]*[-_])?(x-(amz|goog)-[^=&]*|awsaccesskeyid|sig|signature|token|key|apikey|auth|"
    r"secret|password)=",
    re.I,
)
# In messages of libraries.
_NAME_AND_PASSWORD = re.compile(r"(\w://)[^/\s'\"]*@")
_QUERY = re.compile(r"(\w://[^\s?'\"]*)\?[^\s'\"]*")
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|_KEY$|KEY_ID$|SAS|CONNECTION_STRING|CREDENTIAL")
SHORTEST_SECRET = 6
WITH_QUERY = (
    "was given with a query (?...), which may be a signature and would land in records. Leave it "
    "out, or download the file."
)


@dataclass(frozen=True)
class Url:
    """A place on a server.

    Args:
        scheme: One of SCHEMES.
        host: A bucket, a container, or a server with its port.
        key: The path there, without a slash at its ends, and without %20 and the like.
    """

    scheme: str
    host: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}/{self.key}".rstrip("/")

    @property
    def request(self) -> str:
        """The URL as it is asked for."""
        key = quote(self.key) if self.scheme in WEB else self.key
        return f"{self.scheme}://{self.host}/{key}"

    def below(self, name: str) -> "Url":
        """Return the place of a name relative to this one; "" is this one."""
        key = "/".join(part for part in (self.key, name) if part)
        return Url(self.scheme, self.host, key)

    def joined(self, path: str) -> str:
        """Return a path relative to this folder as a URL."""
        key = posixpath.normpath(posixpath.join(self.key, path))
        return str(Url(self.scheme, self.host, "" if key == "." else key))

    @property
    def parent(self) -> "Url":
        """The folder that it is in."""
        return Url(self.scheme, self.host, self.key.rpartition("/")[0])


def is_url(text: Any) -> bool:
    """Whether a text is a URL, whatever its scheme, and no path."""
    return isinstance(text, str) and _SCHEME.match(text) is not None


def parsed(text: str) -> Url:
    """Return a URL in its parts.

    Raises ValueError for a scheme that is not read, for a name that is no path, and for one that
    holds a password or a signature: it would land in records.
    """
    check(text)
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(f"{text!r} is on a server that is not read. Known: {known}.")
    if scheme in WEB and re.search(r"[?#]", rest):
        raise ValueError(f"The URL {without_secrets(text)!r} {WITH_QUERY}")
    host, _, key = rest.partition("/")
    if scheme in WEB:
        key = unquote(key)
    key = key.rstrip("/")
    if not _HOST.fullmatch(host) or host in (".", "..") or not is_path(key):
        raise ValueError(
            f"{without_secrets(text)!r} names no place on a server. Write it as "
            f"'{scheme}://{'SERVER' if scheme in WEB else 'BUCKET'}/FOLDER'."
        )
    return Url(scheme, host, key)


def check(text: str) -> None:
    """Raise ValueError for a URL with a password or a signature in it, which it does not name."""
    found = _SCHEME.match(text)
    if found is None:
        return
    scheme, rest = found[1], text[found.end() :]
    host = rest.partition("/")[0].partition("?")[0]
    user, at, _ = host.rpartition("@")
    shown = without_secrets(text)
    if at and (":" in user or scheme not in WITH_NAMES):
        raise ValueError(
            f"The URL {shown!r} was given with a name or a password in it, which would land in "
            "records. Put them where the library of the server looks for them: docs/data.md."
        )
    if _SIGNED.search(text):
        raise ValueError(f"The URL {shown!r} {WITH_QUERY}")


def check_urls(values: Any) -> None:
    """Raise ValueError, as `check` does, for any URL in a table or list of options."""
    if isinstance(values, str):
        check(values)
    elif isinstance(values, dict):
        for value in values.values():
            check_urls(value)
    elif isinstance(values, list | tuple):
        for value in values:
            check_urls(value)


def is_path(key: str) -> bool:
    """Whether the name of an object can be that of a file in a folder."""
    parts = key.split("/") if key else []
    return "\0" not in key and all(
        part not in ("", ".", "..") and len(os.fsencode(part)) < 256 for part in parts
    )


def name_of(text: str) -> str:
    """Return the last part of a URL or path."""
    return PurePosixPath(text).name


def without_secrets(text: str) -> str:
    """Return a text without what URLs in it, or variables of the environment, keep secret."""
    text = _QUERY.sub(r"\1", _NAME_AND_PASSWORD.sub(r"\1", text))
    for name, value in os.environ.items():
        if _SECRET.search(name.upper()) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "...")
    return text
