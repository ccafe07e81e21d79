"""A process of its own that writes files, and a row of a table."""

import os
import subprocess
import sys
from pathlib import Path

import tfunet

COLUMNS = ("step", "seconds", "loss")


def python(program: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tfunet.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def output_of(program: str, *arguments: object) -> str:
    process = python(program, *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def row(step: int) -> dict[str, object]:
    return {"step": step, "seconds": 0.5, "loss": 1 / step}
