"""The trackers of experiments, by name. Imports neither them nor TensorFlow."""

from pathlib import Path

from tfunet.export import mlflow_run, wandb_run
from tfunet.export.tracked_run import TrackedRun, Tracker


def open_tracked(
    tracker: str, folder: Path, *, out: Path | None = None, default: Path | None = None
) -> tuple[TrackedRun, Tracker]:
    """Return a run and where a tracker keeps it.

    Args:
        folder: Folder of the run.
        out: Folder for what the tracker writes.
        default: Holds this folder, where it is not given; by default that of the run.

    Raises ValueError if the tracker is not installed.
    """
    module = {"mlflow": mlflow_run, "wandb": wandb_run}[tracker]
    place = module.place(out, default or folder)
    run = TrackedRun(folder=folder, tracker=tracker, place=place)
    to: Tracker = mlflow_run.MlflowRun(run) if tracker == "mlflow" else wandb_run.WandbRun(run)
    return run, to


def export_run(
    tracker: str, folder: Path, *, out: Path | None = None, default: Path | None = None
) -> str:
    """Tell a tracker of a run that has ended; return where the tracker has it.

    Raises ValueError if the tracker fails.
    """
    run, to = open_tracked(tracker, folder, out=out, default=default)
    try:
        run.tell(to, is_over=True)
    except OSError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{tracker} does not take {folder}: {text}") from error
    return run.place
