"""Files of a server through TensorFlow's file systems, in a process of their own.

tensorflow-io's library of S3 calls a function of an object that is gone when Python ends, and the
process aborts after all its work is done. So a child process has it, which ends without clean-up.
This module imports no TensorFlow.
"""

import base64
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, final

from tfunet.files.server import Version
from tfunet.files.urls import Url

ERRORS = {"NotFoundError": FileNotFoundError, "PermissionDeniedError": PermissionError}


@final
class TensorflowIo:
    """TensorFlow's own file system of a scheme, or that of tensorflow-io."""

    def __init__(self, scheme: str) -> None:
        """Raise ImportError where no file system of the scheme loads."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tfunet.files.gfile_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_variables(os.environ),
            text=True,
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, Future] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            schemes = self._ask("schemes")
        except ConnectionError as error:
            raise ImportError("TensorFlow cannot be imported") from error
        if scheme not in schemes:
            self._child.stdin and self._child.stdin.close()
            raise ImportError(f"no file system of TensorFlow is for {scheme}://")

    def find(self, url: Url) -> dict[str, Version]:
        """Return all files below a URL, each of which is asked for its size."""
        found = self._ask("find", url=str(url))
        return {name: Version(*facts) for name, facts in found.items()}

    def version(self, url: Url) -> Version:
        """Return what there is now."""
        return Version(*self._ask("version", url=str(url)))

    def fetch(self, url: Url, target: Path) -> None:
        """Write the content into a new file."""
        self._ask("fetch", url=str(url), target=str(target))

    def head(self, url: Url, num_bytes: int) -> bytes:
        """Return the first bytes of a file."""
        told = self._ask("head", url=str(url), num_bytes=num_bytes)
        return base64.b64decode(told)

    def server(self, url: Url) -> str:
        """Return the bucket: TensorFlow does not say more."""
        return f"of {url.scheme}://{url.host}"

    def _ask(self, what: str, **given: str | int) -> Any:
        answer: Future = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            try:
                if self._child.stdin is None or self._child.poll() is not None:
                    raise BrokenPipeError
                self._child.stdin.write(json.dumps([number, what, given]) + "\n")
                self._child.stdin.flush()
            except OSError:
                raise ConnectionError("the process with TensorFlow's file systems ended") from None
        told = answer.result()
        if "error" in told:
            raise ERRORS.get(told["error"], OSError)(told["said"])
        return told["result"]

    def _receive(self) -> None:
        for line in self._child.stdout or ():
            number, told = json.loads(line)
            self._waiting.pop(number).set_result(told)
        ended = {"error": "", "said": "the process with TensorFlow's file systems ended"}
        with self._lock:
            self._child.wait()
            for answer in self._waiting.values():
                with contextlib.suppress(Exception):
                    answer.set_result(ended)


def child_variables(environment: Any) -> dict[str, str]:
    """Return the variables of the child: what AWS's tools call by one name, it calls by another."""
    variables = dict(environment)
    endpoint = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL") or ""
    if endpoint:
        variables.setdefault("S3_ENDPOINT", endpoint)
        variables.setdefault("S3_USE_HTTPS", str(int(endpoint.startswith("https"))))
        variables.setdefault("S3_VERIFY_SSL", variables["S3_USE_HTTPS"])
    if region := variables.get("AWS_DEFAULT_REGION"):
        variables.setdefault("AWS_REGION", region)
    return {**variables, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
