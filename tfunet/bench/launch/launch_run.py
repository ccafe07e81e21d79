"""Launches a run on this machine, and with `elastic` once more with the processes that are left."""

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tfunet import exit_codes
from tfunet.bench.launch.child_process import signals_noted
from tfunet.bench.launch.private_network import private_network
from tfunet.bench.launch.processes_to_start import ProcessPlan, fewer, plan_processes
from tfunet.bench.launch.supervisor import RunOutcome, Supervisor
from tfunet.config.run import RunConfig
from tfunet.machine.cores import usable_cores
from tfunet.machine.doctor import check_installed
from tfunet.process.stop_request import TRIAL_VARIABLE
from tfunet.record import RunFolder

GRACE_SECONDS = 2.0


def launch(
    config: RunConfig,
    folder: Path,
    *,
    command: Sequence[str] | None = None,
    verbose: bool = False,
    grace_seconds: float = GRACE_SECONDS,
) -> RunOutcome:
    """Run `config` in `folder` with as many processes as its backend needs, until all have ended.

    Each process runs `command`, by default the worker on this folder. The terminal shows the output
    of the chief, or of all processes with `verbose`. After a failure it shows the last lines of the
    process that failed, and failure.json holds the reason. log-<index>.txt holds the whole output
    of a process.

    Before any process is started, ValueError says that the run is impossible (too many replicas; a
    backend that is not installed; a folder in use, finished, or of other settings) and
    WriteError that files cannot be written. Afterwards the outcome tells. In the main thread,
    SIGINT, SIGTERM and SIGHUP end the run. If it has taken a step, and is no trial of a sweep, it
    is saved after the step that it is in. A second signal ends it at once. Processes have
    `grace_seconds` to end. In other threads, signals are left to the caller.
    """
    plans = _plans(config)
    run_folder = RunFolder(folder)
    worker = [sys.executable, "-m", "tfunet.worker", str(folder)]
    run_folder.create()
    with (
        signals_noted() as noted,
        run_folder.locked(),
        private_network(os.environ) as network,
    ):
        while True:
            run_folder.begin(config)
            run = Supervisor(
                run_folder,
                noted,
                verbose=verbose,
                grace_seconds=grace_seconds,
                hang_seconds=config.hang_seconds,
                network=network,
                after_signal=partial(_how_to_go_on, run_folder),
                is_saved_at_end=TRIAL_VARIABLE not in os.environ,
            )
            outcome = run.run(plans, list(command or worker))
            left = fewer(config) if outcome.is_lost and config.elastic else None
            is_over = noted or run_folder.is_done() or run.is_anyone_left()
            if left is None or is_over:
                break
            run.screen.say(
                f"tfunet: going on with num_replicas={left.num_replicas} of {config.num_replicas}"
            )
            config, plans = left, plan_processes(left, usable_cores())
    pass_on(noted, outcome)
    return outcome


def pass_on(noted: Sequence[int], outcome: RunOutcome) -> None:
    """Let a signal that came too late to end a run end what the caller does next."""
    if noted and outcome.exit_code == exit_codes.OK:
        signal.raise_signal(noted[0])


def _how_to_go_on(folder: RunFolder, step: int | None) -> str:
    """Return how a run goes on that a signal ended; it was saved after `step`, if it was."""
    if step is not None:
        where = f"Saved after step {step}. To go on from there"
    elif folder.has_checkpoint():
        where = "To go on from the last checkpoint"
    else:
        return (
            "This run has no checkpoint yet. The same command starts it again from the first step."
        )
    return f"{where}: the same command with --out {folder.path}"


def _plans(config: RunConfig) -> list[ProcessPlan]:
    """Return the processes of a run; ValueError if it is impossible here."""
    check_installed(config.backend)
    plans = plan_processes(config, usable_cores())
    if config.elastic and len(plans) == 1:
        raise ValueError(
            f"elastic goes on with the processes that are left, but this run of the backend "
            f"{config.backend!r} has only one. Leave elastic out: the same command resumes a run."
        )
    return plans
