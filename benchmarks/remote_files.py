"""How the time to open a data set grows with its files, on a disk and on an object store.

    python benchmarks/remote_files.py --files 100 1000 10000 100000

The store is a process of this machine that speaks S3, so that a request takes no time but that of
the two processes. Cold: nothing is fetched yet. Warm: the same command once more. Each figure is
seconds by the clock / seconds of the process on its cores: other work changes only the first.
"""

import argparse
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

PAGE = 1000
BUCKET = "bench"
PATTERNS = {"images": "images/{case}.png", "masks": "masks/{case}.png", "classes": {"cell": 255}}
# A new process for each figure: what is imported, and what is known of the store, is known once.
OPEN = """
import sys, time
from tfunet.data.source import open_source
from tfunet.files import remote
from tfunet.files.urls import is_url
root, patterns = sys.argv[1], {patterns}
def now():
    return time.perf_counter(), time.process_time()


def since(began):
    return "/".join(f"{{end - start:.2f}}" for start, end in zip(began, now(), strict=True))


began = now()
if is_url(root):
    remote.shadow(root)
listed, began = since(began), now()
source = open_source("folder", {{"root": root, **patterns}})
print(listed, since(began))
"""


def pictures():
    """Return an image and its mask, as PNGs."""
    mask = np.zeros((16, 16), np.uint8)
    mask[4:12, 4:12] = 255
    encoded = []
    for pixels in (mask // 2 + np.arange(16, dtype=np.uint8), mask):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        encoded.append(file.getvalue())
    return dict(zip(("images", "masks"), encoded, strict=True))


CONTENTS, REQUESTS = pictures(), Counter()


class Store(BaseHTTPRequestHandler):
    """As many images with masks as the name of their folder says: /bench/1000/images/..."""

    protocol_version = "HTTP/1.1"
    contents = CONTENTS
    requests = REQUESTS

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/requests":
            content, kind = repr(dict(self.requests)).encode(), "text/plain"
            self.requests.clear()
        elif "list-type" in query:
            self.requests["LIST"] += 1
            content, kind = self._page(query), "application/xml"
        else:
            self.requests["GET"] += 1
            content, kind = self.contents[url.path.split("/")[3]], "image/png"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(content)

    def _page(self, query):
        number = int(query["prefix"].strip("/"))
        start = int(query.get("continuation-token", 0))
        items = []
        for at in range(start, min(start + PAGE, number)):
            folder = ("images", "masks")[at % 2]
            content = self.contents[folder]
            items.append(
                f"<Contents><Key>{number}/{folder}/c{at // 2:06d}.png</Key>"
                "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
                f"<ETag>&quot;{hashlib.md5(content).hexdigest()}&quot;</ETag>"
                f"<Size>{len(content)}</Size></Contents>"
            )
        end = start + PAGE
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < number else ""
        return (
            "<ListBucketResult>"
            f"<IsTruncated>{str(end < number).lower()}</IsTruncated>{more}{''.join(items)}"
            "</ListBucketResult>"
        ).encode()

    def log_message(self, *_):
        """Say nothing."""


def serve():
    """Serve until killed; the first line says where."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextlib.contextmanager
def served():
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def opened(root, variables):
    """Return the seconds of listing and of opening."""
    code = OPEN.format(patterns=PATTERNS)
    told = subprocess.run(
        [sys.executable, "-c", code, root], env=variables, stdout=subprocess.PIPE, check=True
    )
    listed, headers = told.stdout.decode().split()
    return listed, headers


def asked_of(address):
    """Return what the store was asked for since the last call."""
    with urllib.request.urlopen(f"{address}/requests") as told:
        return told.read().decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    if options.serve:
        return serve()
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "nothing"}
    print("files | disk: open | list | and open, cold | warm: list | and open | requests")
    with served() as address, tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, **keys, "AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1"}
        variables["TFUNET_CACHE"] = f"{folder}/cache"
        for number in options.files:
            for at in range(number):
                kind = ("images", "masks")[at % 2]
                path = Path(folder, "disk", str(number), kind, f"c{at // 2:06d}.png")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(Store.contents[kind])
            _, disk = opened(f"{folder}/disk/{number}", variables)
            asked_of(address)
            cold = opened(f"s3://{BUCKET}/{number}", variables)
            asked = asked_of(address)
            warm = opened(f"s3://{BUCKET}/{number}", variables)
            print(" | ".join([str(number), disk, *cold, *warm, asked]), flush=True)
    return None


if __name__ == "__main__":
    main()
