"""A run in Weights & Biases: offline, unless $WANDB_MODE says otherwise."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import final

from tfunet.export.tracked_run import TrackedRun, imported

DEFAULTS = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


def place(out: Path | None, folder: Path) -> str:
    """Return where wandb makes its folder "wandb": in `out`, else $WANDB_DIR, else `folder`."""
    if out is not None:
        return str(out.resolve())
    return os.environ.get("WANDB_DIR") or str(folder.resolve())


@final
class WandbRun:
    """A run in Weights & Biases; its project is the study, or the folder in which runs lie."""

    def __init__(self, run: TrackedRun) -> None:
        self._run, self._wandb = run, imported("wandb", DEFAULTS)

    def begin(self, known: str | None) -> str:
        folder = Path(self._run.place) / "wandb"
        # wandb itself would go on in /tmp.
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} cannot be written.")
        self._opened = self._wandb.init(
            dir=self._run.place,
            project=os.environ.get("WANDB_PROJECT") or self._run.group,
            name=self._run.name,
            id=known or secrets.token_hex(4),
            resume="allow",
            config=self._run.settings(),
            settings=self._wandb.Settings(
                console="off", disable_git=True, save_code=False, x_disable_stats=True
            ),
        )
        return str(self._opened.id)

    def log(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        self._opened.log({**metrics, "epoch": epoch}, step=step)

    def end(self, *, is_done: bool, metrics: Mapping[str, float]) -> None:
        self._opened.summary.update(dict(metrics))
        self._opened.finish(exit_code=0 if is_done else 1)
