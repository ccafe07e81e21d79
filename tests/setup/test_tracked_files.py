"""What must stand in no file of the project."""

import re
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

# In pieces, or this file would hold what it looks for.
FORBIDDEN = {
    "a path of one machine": "|".join(
        (
            re.escape(f"{ROOT}/"),
            "/" + "root/",
            "/" + r"work/\w",
            "/" + "tmp/w/",
            "/" + "opt/pypi",
        )
    ),
    "a package registry": "|".join(
        (
            "pypi" + r"\.org",
            "python" + "hosted",
            "index" + r"-url\s*[= ]\s*\S",
            "find" + r"-links\s*=\s*http",
        )
    ),
    "a private address": r"\b(10|192\.168|172\.(1[6-9]|2\d|3[01]))" + r"(\.\d{1,3}){2,3}(:\d+)\b",
}


def project_files() -> list[Path]:
    """Tracked files and those that would be: git add . would take them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    paths = (ROOT / name for name in listed.split("\0") if name)
    return [path for path in paths if path.is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names_what_only_one_machine_has(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in project_files()
        if (match := pattern.search(text_of(path)))
    ]
    assert found == []


def test_what_tools_leave_behind_is_ignored() -> None:
    left = [".venv/tf-2.21/bin/python", "logs/a/b.csv", "build/x", "tfunet.egg-info/PKG-INFO"]
    left += [f".{tool}/x" for tool in ("pytest_cache", "ruff_cache", "mypy_cache", "hypothesis")]
    left += ["tfunet/__pycache__/x.pyc"]
    kept = ["logs/reference/a/result.json", ".ci/run", "tfunet/bench/report.html.j2"]
    command = ["git", "check-ignore", "--no-index", *left, *kept]
    ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert ignored == left
