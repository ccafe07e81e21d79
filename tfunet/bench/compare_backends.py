"""The comparison from Python: one call that runs a study and reports. Imports no TensorFlow."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfunet.bench.launch.local_sweep import run_sweep
from tfunet.bench.report.sweep_report import Report, summary_table, write_report
from tfunet.bench.study.study_file import study_from_dict
from tfunet.config.refs import reference

ALL_BACKENDS = ("single", "mirrored", "multiworker", "horovod")


def compare(
    build: str | Callable[..., Any],
    data: str | Callable[..., Any],
    *,
    backends: Sequence[str] = ALL_BACKENDS,
    num_replicas: Sequence[int] = (1, 2),
    repeats: int = 3,
    folder: str | Path = "logs/compare",
    **settings: Any,
) -> Report:
    """Train the same model on the same data in several ways, and report which is better.

    Every run is a fresh process, so that functions must be importable: at the top of a file, not
    typed into a notebook. A script that calls this keeps the call under
    `if __name__ == "__main__":`. Called again with the same folder, it goes on.

    Args:
        build: The model's builder, or a string as in `RunConfig.model`.
        data: A function that returns a DataSource, or a string as in `RunConfig.data`.
        backends: Names of backends.
        num_replicas: Replicas; combinations that cannot be are skipped with the reason.
        repeats: Runs of every combination, with different seeds.
        folder: Of the sweep and its report.
        **settings: Other keys of RunConfig.

    Returns where the report is. Raises ValueError for a setting that is wrong, and RuntimeError
    if the sweep was interrupted.
    """
    table = {
        "name": Path(folder).name,
        "repeats": repeats,
        "base": {**settings, "model": _name(build), "data": _name(data)},
        "grid": {"backend": list(backends), "num_replicas": list(num_replicas)},
    }
    code = run_sweep(study_from_dict(table), folder)
    if code > 128:
        raise RuntimeError(f"The comparison was interrupted; call it again to go on ({folder}).")
    print(summary_table(Path(folder)))
    return write_report(Path(folder))


def _name(given: str | Callable[..., Any]) -> str:
    return given if isinstance(given, str) else reference(given)
