"""A run in MLflow: in its file store, or on a server."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import final

from tfunet.export.tracked_run import TrackedRun, imported

# MLflow's own bounds: of a batch, and of a text.
MOST_PARAMS = 100
MOST_CHARACTERS = 6000
# What its users can set otherwise. Without these it would try a dead server for minutes, write no
# file store, and tell its makers what is used.
DEFAULTS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}


def place(out: Path | None, folder: Path) -> str:
    """Return the address of the store: `out`, else $MLFLOW_TRACKING_URI, else one in `folder`."""
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if out is None and address:
        return address
    return (out or folder / "mlflow").resolve().as_uri()


@final
class MlflowRun:
    """A run in MLflow; its experiment is the study, or the folder in which runs lie."""

    def __init__(self, run: TrackedRun) -> None:
        mlflow = imported("mlflow", DEFAULTS)
        self._run, self._entities = run, mlflow.entities
        self._failure = mlflow.exceptions.MlflowException
        self._client = mlflow.MlflowClient(tracking_uri=run.place)

    def begin(self, known: str | None) -> str:
        if known is not None:
            with contextlib.suppress(self._failure):  # It was deleted there.
                self._client.update_run(known, status="RUNNING")
                self._id = known
                return known
        made = self._client.create_run(self._experiment(), run_name=self._run.name)
        self._id = str(made.info.run_id)
        params = [
            self._entities.Param(key, value[:MOST_CHARACTERS])
            for key, value in self._run.settings().items()
        ]
        for begin in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[begin : begin + MOST_PARAMS])
        return self._id

    def _experiment(self) -> str:
        name = self._run.group
        found = self._client.get_experiment_by_name(name)
        if found is None:
            with contextlib.suppress(self._failure):  # Another run has made it in the meantime.
                return str(self._client.create_experiment(name))
            found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def log(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        self._log({**metrics, "epoch": epoch}, step)

    def _log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id,
            metrics=[
                self._entities.Metric(key, float(value), now, step)
                for key, value in metrics.items()
            ],
        )

    def end(self, *, is_done: bool, metrics: Mapping[str, float]) -> None:
        if metrics:
            self._log(metrics, int(metrics.get("result/steps", 0)))
        self._client.set_terminated(self._id, "FINISHED" if is_done else "FAILED")
