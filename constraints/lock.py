"""Writes the hashes of the pinned packages: python constraints/lock.py

For each constraints/*.txt it writes a file of hashes, which `make env` and `make engines` install
with --require-hashes. The hashes come from the package index of pip: $PIP_INDEX_URL, else its own.
"""

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from pip._internal.models.index import PyPI

HERE = Path(__file__).parent
INDEX = os.environ.get("PIP_INDEX_URL", PyPI.simple_url)
# hvd/build.py builds it from source, and has its hash.
BUILT = "horovod"
PYTHONS = ("3.11", "3.12")
MACHINES = ("x86_64", "aarch64")
HEAD = "# Written by constraints/lock.py, from {}. Wheels of Linux for Python 3.11 and 3.12.\n"


def pins(text: str) -> dict[str, str]:
    """Return the version of each package of a constraints file."""
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def markers(setup: str) -> dict[str, str]:
    """Return where each package of setup.cfg is wanted, for those not wanted everywhere."""
    lines = [line.strip() for line in setup.splitlines() if ";" in line and "#" not in line]
    return {wanted.name: str(wanted.marker) for wanted in map(Requirement, lines)}


def locked(name: str, version: str, files: Iterable[Mapping[str, Any]], marker: str = "") -> str:
    """Return the lines of a package, with the hash of each wheel that a supported machine takes.

    `files` are those of the index. A package is left out on machines for which it has no wheel, and
    where `marker` does not want it. Raises ValueError if it has none at all.
    """
    hashes: set[str] = set()
    places: set[tuple[str, str]] = set()
    for file in files:
        if file["filename"].endswith(".whl"):
            try:
                _, release, _, tags = parse_wheel_filename(file["filename"])
            except InvalidWheelFilename:  # Old releases have such names.
                continue
            if str(release) == version and (taking := set().union(*map(_places, tags))):
                places |= taking
                hashes.add(file["hashes"]["sha256"])
    if not hashes:
        raise ValueError(f"The index has no wheel of {name} {version} for Python 3.11 or 3.12.")
    parts = [part for part in (marker, _marker(places)) if part]
    pin = " ; ".join([f"{name}=={version}", *([" and ".join(parts)] if parts else [])])
    lines = [pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes))]
    return " \\\n    ".join(lines)


def _places(tag: Tag) -> set[tuple[str, str]]:
    """Return the (Python, machine) that take a wheel with this tag."""
    # Not musllinux: TensorFlow has no wheels for it.
    is_linux = tag.platform.startswith(("manylinux", "linux"))
    machines = [
        machine
        for machine in MACHINES
        if tag.platform == "any" or (is_linux and tag.platform.endswith(machine))
    ]
    return {(python, machine) for python in PYTHONS if _fits(tag, python) for machine in machines}


def _fits(tag: Tag, python: str) -> bool:
    """Whether a Python such as "3.11" takes a wheel with this tag."""
    digits = python.replace(".", "")
    if tag.interpreter in ("py3", f"py{digits}", f"cp{digits}"):
        return tag.abi in ("none", "abi3", f"cp{digits}")
    # The stable interface of an older Python.
    older = re.fullmatch(r"cp3(\d+)", tag.interpreter)
    return tag.abi == "abi3" and older is not None and int(older[1]) <= int(digits[1:])


def _marker(places: set[tuple[str, str]]) -> str:
    if len(places) == len(PYTHONS) * len(MACHINES):
        return ""
    wanted = (
        f'(python_version == "{python}" and platform_machine == "{machine}")'
        for python, machine in sorted(places)
    )
    return f"({' or '.join(wanted)})"


def _files(name: str) -> list[dict[str, Any]]:
    url = f"{INDEX.rstrip('/')}/{canonicalize_name(name)}/"
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["files"]


def main() -> int:
    """Write the files, and return 0."""
    texts = {path: pins(path.read_text()) for path in sorted(HERE.glob("*.txt"))}
    only = markers(HERE.with_name("setup.cfg").read_text())
    names = sorted({name for wanted in texts.values() for name in wanted if name != BUILT})
    with ThreadPoolExecutor(4) as pool:
        files = dict(zip(names, pool.map(_files, names), strict=True))
    for path, wanted in texts.items():
        lines = [
            locked(name, version, files[name], only.get(name, ""))
            for name, version in wanted.items()
            if name != BUILT
        ]
        target = path.with_suffix("").with_name(f"{path.stem}.hashes")
        target.write_text(HEAD.format(path.name) + "\n".join(lines) + "\n")
        print(f"{target}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
