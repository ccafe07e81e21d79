"""One step of an exported workflow: `python -m tfunet.bench.workflow_step --code HASH STEP ...`.

Every step may run again: after a kill, or when an engine delivers it twice. The exit codes are
those of Merlin; to Maestro, any but 0 is a failure.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tfunet import exit_codes
from tfunet.bench.launch.child_process import signals_noted
from tfunet.bench.launch.local_sweep import note_noise
from tfunet.bench.launch.one_trial import run_trial, train_command
from tfunet.bench.launch.sweep_folder import locked_soon
from tfunet.bench.launch.workflow_file import WORKSPACE
from tfunet.bench.records.sweep_record import FINISHED, planned_trial, read_plan
from tfunet.bench.records.trial_states import TrialState, read_states
from tfunet.files.regular import open_regular, read_bytes
from tfunet.machine.environment import code_hash
from tfunet.process.terminal import counted, lines_of, show_messages_safely
from tfunet.record import RunFolder

# What Merlin does: starts the step again (100); goes on with the other steps (101); ends the
# workflow and its workers (102); ends the workflow (106).
RESTART, SOFT_FAIL, HARD_FAIL, RAISE_ERROR = 100, 101, 102, 106
OF_TRIAL = {
    exit_codes.OK: 0,
    exit_codes.NOT_WRITTEN: HARD_FAIL,  # The disk is full for all trials.
    exit_codes.STOPPED: RESTART,
    exit_codes.INTERRUPTED: RESTART,
    exit_codes.TERMINATED: RESTART,
}
MOST_SHOWN = 10


def prepare(root: Path) -> int:
    """Note how steady the machine is, unless all trials are done."""
    if _not_done(root):
        note_noise(root, "before")
    return 0


def trial(
    root: Path,
    name: str,
    attempts: int = 1,
    command: Callable[[Path], Sequence[str]] = train_command,
    num_trials: int | None = None,
) -> int:
    """Run a trial that is not done, at most so often if its processes die; return Merlin's code.

    If the same step runs already, wait for its end, and run only what it left undone. The step that
    ends last, of so many in the plan, also writes the report.
    """
    code = _trial(root, name, attempts, command)
    if code == 0 and _was_last(root, name, num_trials):
        report(root)
    return code


def _trial(root: Path, name: str, attempts: int, command: Callable[[Path], Sequence[str]]) -> int:
    with _alone(root, name), signals_noted() as noted:
        code = exit_codes.OK
        for _ in range(attempts):
            record = planned_trial(root, name)
            if record.state in FINISHED:
                print(f"{name} is done.")
                return 0
            code = run_trial(record, root, command, noted)
            if code != exit_codes.PROCESS_DIED:
                break
        ended = planned_trial(root, name)
        print(lines_of(f"{name}: {ended.state} {ended.reason}".rstrip()))
        if ended.state in FINISHED:
            return 0
        return OF_TRIAL.get(exit_codes.INTERRUPTED if noted else code, SOFT_FAIL) or SOFT_FAIL


def collect(root: Path) -> int:
    """Return 0 if all trials are done, else RAISE_ERROR, and name those that are not."""
    if missing := _not_done(root):
        print(f"error: {counted(len(missing), 'trial')} without a result:", file=sys.stderr)
        for state in missing[:MOST_SHOWN]:
            line = f"  {state.trial}: {state.state} {state.reason}"
            print(lines_of(line.rstrip()), file=sys.stderr)
        if len(missing) > MOST_SHOWN:
            print(f"  and {len(missing) - MOST_SHOWN} more", file=sys.stderr)
        return RAISE_ERROR
    print("All trials have results.")
    return 0


def _was_last(root: Path, name: str, num_trials: int | None) -> bool:
    """Note that a trial is done; return whether all are.

    An engine may lose its last step with a worker. To read all records at the end of each trial
    would take longer with each, so they are read once as many have ended as there are.
    """
    ended = root / WORKSPACE / "ended.txt"
    line = os.fdopen(open_regular(ended, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb")
    with line:
        line.write(f"{name}\n".encode())
    num_ended = read_bytes(ended).count(b"\n")
    num_trials = num_trials or len(read_plan(root)["trials"])
    return num_ended >= num_trials and not _not_done(root)


def report(root: Path) -> int:
    """Write the report and print the summary, unless that was done since the last trial ended."""
    # Not above: the steps of trials need no figures.
    from tfunet.bench.report.sweep_report import summary_table, write_report

    with _alone(root, "report"):
        written, ended = root / "report/report.html", root / WORKSPACE / "ended.txt"
        both = written.exists() and ended.exists()
        if both and written.stat().st_mtime >= ended.stat().st_mtime:
            print(lines_of(f"The report is there: {written}"))
            return 0
        note_noise(root, "after")
        print(lines_of(summary_table(root)))
        print(lines_of(f"Report: {write_report(root).html}"))
    return 0


def _not_done(root: Path) -> list[TrialState]:
    return [state for state in read_states(root).trials if state.state not in FINISHED]


def _alone(root: Path, name: str) -> contextlib.AbstractContextManager[None]:
    """Wait until no other process runs the step of this trial, and keep others waiting."""
    # Not the folder of the trial: its run locks that, and an earlier attempt is moved away.
    locks = root / WORKSPACE / "locks"
    for folder in (locks.parent, locks, locks / name):
        RunFolder(folder).create_inside()
    return locked_soon(RunFolder(locks / name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and run the step."""
    program = "python -m tfunet.bench.workflow_step"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--code", required=True, help="hash of the code that wrote the workflow")
    parser.add_argument("--attempts", type=int, default=1, help="at most, if processes die")
    parser.add_argument("--trials", type=int, help="how many the plan has")
    parser.add_argument("step", choices=("prepare", "trial", "collect", "report"))
    parser.add_argument("folder", type=Path, help="folder of the sweep")
    parser.add_argument("trial", nargs="?", default="", help="name of the trial")
    options = parser.parse_args(arguments)
    root = options.folder
    show_messages_safely()
    try:
        if (now := code_hash()) != options.code:
            raise ValueError(
                f"The code has changed since the workflow was exported (from {options.code} to "
                f"{now}). Export it again: tfunet sweep export"
            )
        # The paths in a study are relative to it.
        os.chdir(read_plan(root, options.trial).get("working_folder", "."))
        if options.step == "trial":
            return trial(root, options.trial, options.attempts, num_trials=options.trials)
        return {"prepare": prepare, "collect": collect, "report": report}[options.step](root)
    except (ValueError, OSError) as error:
        print(f"error: {lines_of(error)}", file=sys.stderr)
        return HARD_FAIL


if __name__ == "__main__":
    sys.exit(main())
