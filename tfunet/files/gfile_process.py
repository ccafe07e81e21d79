"""The process that has TensorFlow's file systems: requests come in lines of JSON, answers go out.

It ends when its input does, by os._exit: see `tfunet.files.gfile`.
"""

import base64
import importlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

NUM_THREADS = 16


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print is no answer.
    import tensorflow as tf

    try:
        importlib.import_module("tensorflow_io")
    except Exception as error:  # Its libraries are of another TensorFlow, which has its own.
        print(error, file=sys.stderr)
    lock = threading.Lock()
    with ThreadPoolExecutor(NUM_THREADS) as pool, ThreadPoolExecutor(NUM_THREADS) as stats:

        def answer(number: int, what: str, given: dict[str, Any]) -> None:
            try:
                told: dict[str, Any] = {"result": _answer(tf.io.gfile, stats, what, **given)}
            except Exception as error:
                told = {"error": type(error).__name__, "said": str(error)}
            with lock:
                answers.write(json.dumps([number, told]) + "\n")
                answers.flush()

        for line in sys.stdin:
            pool.submit(answer, *json.loads(line))
    os._exit(0)


def _answer(
    gfile: Any,
    stats: ThreadPoolExecutor,
    what: str,
    url: str = "",
    target: str = "",
    num_bytes: int = 0,
) -> Any:
    if what == "schemes":
        return gfile.get_registered_schemes()
    if what == "version":
        return _version(gfile, url)
    if what == "head":
        with gfile.GFile(url, "rb") as file:
            return base64.b64encode(file.read(num_bytes)).decode()
    if what == "fetch":
        gfile.copy(url, target, overwrite=True)
        return None
    if gfile.exists(url) and not gfile.isdir(url):
        return {"": _version(gfile, url)}
    base = f"{url}/"
    files = [
        f"{folder.rstrip('/')}/{name}" for folder, _, names in gfile.walk(base) for name in names
    ]
    versions = stats.map(lambda file: _version(gfile, file), files)
    return {file.removeprefix(base): version for file, version in zip(files, versions, strict=True)}


def _version(gfile: Any, url: str) -> tuple[int, int, str]:
    facts = gfile.stat(url)
    return facts.length, facts.mtime_nsec // 10**9, str(facts.mtime_nsec)


if __name__ == "__main__":
    main()
