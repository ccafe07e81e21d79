"""`tfunet.compare`: one call from Python that runs a study and reports. No TensorFlow."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfunet import exit_codes
from tfunet.backend import BACKENDS
from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.report.sweep_report import ReportFiles, summary_table, write_report
from tfunet.bench.study.study_file import study_from_dict
from tfunet.config.refs import reference
from tfunet.process.terminal import lines_of


def compare(
    build: str | Callable[..., Any],
    data: str | Callable[..., Any],
    *,
    backends: str | Sequence[str] = tuple(BACKENDS),
    num_replicas: int | Sequence[int] = (1, 2),
    repeats: int = 3,
    folder: str | Path = "logs/compare",
    **settings: Any,
) -> ReportFiles:
    """Train the same model on the same data with several backends, and report which is better.

    Every run is a fresh process, so functions must be importable: define them at the top level of a
    file, not in a notebook, and call this under `if __name__ == "__main__":`. A second call with
    the same folder continues.

    Args:
        build: The builder of the model, or a string as in `RunConfig.model`.
        data: A function that returns a DataSource or arrays, or a string as in `RunConfig.data`.
        num_replicas: Numbers of replicas; impossible combinations are skipped with the reason.
        **settings: Other keys of RunConfig.

    Returns the paths of the report. Raises ValueError for a wrong setting, and KeyboardInterrupt
    after Ctrl-C.
    """
    table = {
        "name": Path(folder).name,
        "repeats": repeats,
        "base": {**settings, "model": _name(build), "data": _name(data)},
        "grid": {"backend": _list(backends), "num_replicas": _list(num_replicas)},
    }
    code = run_sweep(study_from_dict(table), folder, refuses=True)
    if code == exit_codes.INTERRUPTED:
        raise KeyboardInterrupt(
            f"The comparison in {folder} was interrupted. The same call goes on."
        )
    if code == exit_codes.TERMINATED:
        raise RuntimeError(f"The comparison in {folder} was ended. The same call goes on.")
    print(lines_of(summary_table(Path(folder))))
    return write_report(Path(folder))


def _list(given: Any) -> list[Any]:
    return [given] if isinstance(given, str | int) else list(given)


def _name(given: str | Callable[..., Any]) -> str:
    return given if isinstance(given, str) else reference(given)
