"""An object store that speaks S3 on this machine, which counts requests, and can fail.

moto's server, with a layer before it: `faults` answers instead of it. A plain web server, too.
"""

import contextlib
import io
import threading
import time
from collections import Counter

import numpy as np
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import get_canned_acl, s3_backends
from PIL import Image
from werkzeug.serving import WSGIRequestHandler, make_server

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYSECRETKEY"
BUCKET = "scans"
ACCOUNT = "123456789012"  # The one that moto takes everybody for.


class Quiet(WSGIRequestHandler):
    def log(self, *_):
        """Say nothing: thousands of files are asked for."""


class ObjectStore:
    """The server's address, what it was asked, and what it shall do instead of answering.

    A fault is called with (method, path, answer) and returns the answer to give.
    """

    def __init__(self):
        self.requests = Counter()
        self.sent = 0
        self.faults = []
        self.files = {}  # What is served under /web/.
        self._objects = s3_backends[ACCOUNT]["aws"]
        self._objects.create_bucket(BUCKET, "us-east-1")
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=Quiet)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def variables(self):
        """Return the variables of the environment that lead S3's library here."""
        return {
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address,
        }

    def put(self, key, content, acl="private"):
        """Put an object there, without a request."""
        self._objects.put_object(BUCKET, key, content)
        self._objects.put_object_acl(BUCKET, key, get_canned_acl(acl))

    def remove(self, key):
        self._objects.delete_object(BUCKET, key)

    def asked(self):
        """Return how many requests of each kind there were since the last call."""
        kinds = Counter()
        for (kind, _), count in self.requests.items():
            kinds[kind] += count
        self.requests.clear()
        return dict(kinds)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        s3_backends.reset()

    def _answer(self, environ, start):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        is_list = "list-type=2" in environ.get("QUERY_STRING", "")
        self.requests["LIST" if is_list else method, path] += 1
        told = {}

        def begin(status, headers, *_):
            told.update(status=status, headers=headers)

        app = self._web if path.startswith("/web/") else self._moto
        content = b"".join(app(environ, begin))
        answer = told["status"], told["headers"], content
        for fault in self.faults:
            answer = fault(method, path, answer)
        status, headers, content = answer
        self.sent += len(content)
        start(status, headers)
        return [content]

    def _web(self, environ, start):
        path = environ["PATH_INFO"].removeprefix("/web/")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Content-Length", "0")])
            return []
        if path in self.files:
            content, kind = self.files[path], "application/octet-stream"
        elif path.endswith("/") and path.startswith("index/"):
            names = {
                name.removeprefix(path).partition("/")[0] + "/" * ("/" in name.removeprefix(path))
                for name in self.files
                if name.startswith(path)
            }
            links = "".join(f'<a href="{name}">{name}</a>' for name in sorted(names))
            content, kind = f'<a href="../">up</a><a href="?C=N">{links}'.encode(), "text/html"
        elif path == "index" and self.files:
            start("301 Moved Permanently", [("Location", "/web/index/"), ("Content-Length", "0")])
            return []
        else:
            start("404 Not Found", [("Content-Length", "0")])
            return []
        start("200 OK", [("Content-Length", str(len(content))), ("Content-Type", kind)])
        return [content if environ["REQUEST_METHOD"] == "GET" else b""]


@contextlib.contextmanager
def serving():
    """Run an object store with one bucket."""
    store = ObjectStore()
    try:
        yield store
    finally:
        store.close()


def png(pixels):
    """Return the bytes of an image."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def fill(store, num_cases, prefix="cells", size=16):
    """Put images with masks into the bucket: a bright square on noise."""
    rng = np.random.default_rng(0)
    for number in range(num_cases):
        mask = np.zeros((size, size), np.uint8)
        top, left = rng.integers(0, size // 2, 2)
        mask[top : top + size // 2, left : left + size // 2] = 255
        image = rng.integers(0, 60, (size, size)).astype(np.uint8) + mask // 2
        for folder, pixels in (("images", image), ("masks", mask)):
            store.put(f"{prefix}/{folder}/c{number:05d}.png", png(pixels))


def failing(times, status="503 Slow Down", where="png"):
    """Return a fault: an answer of this status, so many times for each file."""
    failed = Counter()

    def fault(method, path, answer):
        if where in path and failed[path] < times:
            failed[path] += 1
            return status, [("Content-Length", "0")], b""
        return answer

    return fault


def cutting(times, where="png"):
    """Return a fault: a connection that ends in the middle of a file."""
    failed = Counter()

    def fault(method, path, answer):
        status, headers, content = answer
        if method == "GET" and where in path and content and failed[path] < times:
            failed[path] += 1
            return status, headers, content[: len(content) // 2]
        return answer

    return fault


def slow(seconds, where="png"):
    """Return a fault: an answer that takes its time."""

    def fault(method, path, answer):
        if where in path:
            time.sleep(seconds)
        return answer

    return fault
