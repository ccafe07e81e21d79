"""Files of a web server, by http and https: one by one, or by an index page. No TensorFlow."""

import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.client import HTTPResponse
from pathlib import Path
from typing import final

from tfunet.files.server import (
    NUM_THREADS,
    TIMEOUT_SECONDS,
    CutError,
    Version,
    attempted,
    seconds_of,
)
from tfunet.files.urls import Url, is_path

# A site that makes its pages has no end.
MOST_FOLDERS = 10_000
NO_LIST = (
    "shows no list of its files. Name a file, or a CSV that lists the others; or use an object "
    "store (s3://, gs://, az://)"
)


@final
class Web:
    """A web server. It is asked without any credentials."""

    def find(self, url: Url) -> dict[str, Version]:
        """Return the file, or what the index page of a folder links to."""
        with _answer(url, "HEAD") as head:
            # A folder's address is completed by a slash.
            is_page = head.headers.get_content_type() == "text/html"
            is_folder = head.url.endswith("/") or not url.key
            if not is_folder and not (is_page and not url.key.endswith((".html", ".htm"))):
                return {"": _version(url, head)}
        names = list(self._listed(url))
        if not names:
            raise ValueError(f"{url} {NO_LIST}.")
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            ask = [pool.submit(self._tried_version, url.below(name)) for name in names]
            return {name: each.result() for name, each in zip(names, ask, strict=True)}

    def version(self, url: Url) -> Version:
        """Return what the server says of a file."""
        with _answer(url, "HEAD") as head:
            return _version(url, head)

    def fetch(self, url: Url, target: Path) -> Version:
        """Write the content into a file."""
        with _answer(url, "GET") as got, target.open("wb") as file:
            version = _version(url, got)
            shutil.copyfileobj(got, file, 2**20)
            if file.tell() < version.num_bytes:
                raise CutError(f"the connection ended after {file.tell()} bytes")
            return version

    def head(self, url: Url, num_bytes: int) -> bytes:
        """Return the first bytes of a file, also of a server that knows no parts of files."""
        with _answer(url, "GET", {"Range": f"bytes=0-{num_bytes - 1}"}) as got:
            return got.read(num_bytes)

    def server(self, url: Url) -> str:
        """Return its name and port."""
        return url.host

    def _tried_version(self, url: Url) -> Version:
        return attempted(self, url, "read", partial(self.version, url))

    def _listed(self, url: Url) -> Iterator[str]:
        """Yield the names of all files that index pages link to, relative to `url`."""
        waiting, num_folders = [""], 0
        while waiting:
            folder = waiting.pop()
            num_folders += 1
            if num_folders > MOST_FOLDERS:
                raise ValueError(f"{url} has more than {MOST_FOLDERS} folders. Name one of them.")
            inner = url.below(folder)
            for name in sorted(attempted(self, inner, "listed", partial(_links, inner))):
                joined = f"{folder}/{name}".lstrip("/")
                if name.endswith("/"):
                    waiting.append(joined.rstrip("/"))
                elif is_path(joined):
                    yield joined


@contextmanager
def _answer(
    url: Url, method: str, more: Mapping[str, str] = {}, end: str = ""
) -> Iterator[HTTPResponse]:
    # Packed answers have another size than the file.
    headers = {"Accept-Encoding": "identity", "User-Agent": "tfunet", **more}
    request = urllib.request.Request(f"{url.request}{end}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            yield response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (404, 410):
            raise FileNotFoundError("there is no such file") from error
        if error.code in (401, 403):
            raise PermissionError(f"answered {error.code}") from error
        raise


def _version(url: Url, response: HTTPResponse) -> Version:
    size = response.headers.get("Content-Length")
    if size is None or not size.isdigit():
        raise FileNotFoundError("the server does not say its size; download it")
    changed = response.headers.get("Last-Modified")
    tag = response.headers.get("ETag", changed or "").removeprefix("W/").strip('"')
    return Version(int(size), seconds_of(changed), tag)


def _links(url: Url) -> set[str]:
    """Return the names in one folder, those of folders with a slash."""
    base = f"{url.request.rstrip('/')}/"
    page = _Page()
    with _answer(url, "GET", end="" if base == url.request else "/") as response:
        if response.headers.get_content_type() != "text/html":
            return set()
        page.feed(response.read().decode(errors="replace"))
    names = set()
    for link in page.links:
        target = urllib.parse.urljoin(base, link)
        name = urllib.parse.unquote(target.removeprefix(base))
        is_inside = target.startswith(base) and "/" not in name.rstrip("/")
        if is_inside and name not in ("", "./") and not set("?#") & set(link):
            names.add(name)
    return names


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]
