"""Launches the processes of a script on this machine. No TensorFlow."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tfunet.bench.launch.child_process import signals_noted
from tfunet.bench.launch.launch_run import GRACE_SECONDS, pass_on
from tfunet.bench.launch.private_network import private_network
from tfunet.bench.launch.processes_to_start import plan_processes
from tfunet.bench.launch.supervisor import RunOutcome, Supervisor
from tfunet.fit.placement import Placement
from tfunet.machine.cores import usable_cores
from tfunet.record import RunFolder

SAVES_ITSELF = (
    "The state of a script is not saved. keras.callbacks.BackupAndRestore saves the state of `fit`."
)


def launch_script(
    placement: Placement, words: Sequence[str], folder: Path, *, verbose: bool = False
) -> RunOutcome:
    """Run a script with as many processes as its backend needs, until all have ended.

    The terminal shows the output of the chief, or of all processes with `verbose`. A signal ends
    them at once. Their exit codes are those of the script; PROCESS_DIED stands for a signal.

    Args:
        placement: What TFUNET_SCRIPT in the environment says.
        words: The script, and its arguments.
        folder: For log-<index>.txt, the output of each process, and failure.json.

    Raises ValueError for more replicas than there are cores, and for a folder in use, and
    WriteError.
    """
    plans = plan_processes(placement, usable_cores())
    logs = RunFolder(folder)
    logs.create()
    with signals_noted() as noted, logs.locked(), private_network(os.environ) as network:
        logs.clear_failure()
        processes = Supervisor(
            logs,
            noted,
            verbose=verbose,
            grace_seconds=GRACE_SECONDS,
            hang_seconds=placement.hang_seconds,
            after_signal=lambda _: SAVES_ITSELF,
            network=network,
            is_saved_at_end=False,
            keeps_codes=True,
        )
        outcome = processes.run(plans, [sys.executable, "-m", "tfunet.fit.script", *words])
    pass_on(noted, outcome)
    return outcome
