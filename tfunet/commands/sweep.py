"""`tfunet sweep`: plan, run, watch and cancel the trials of a study."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfunet import exit_codes
from tfunet.commands.parsers import LOGS, add_command, add_trust, path, share
from tfunet.commands.report import print_report
from tfunet.process.terminal import lines_of

if TYPE_CHECKING:
    from tfunet.bench.study.refusals import Refusal


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    sweep = commands.add_parser("sweep", help="plan, run and watch a study of many runs")
    sweep.set_defaults(starts_runs=True)
    actions = sweep.add_subparsers(metavar="ACTION", required=True)
    plan = add_command(actions, "plan", _plan, "print the trials of a study, and run nothing")
    plan.add_argument(
        "--precision",
        type=share,
        metavar="2%",
        help="say how many repeats it takes to detect a difference of this size",
    )
    plan.add_argument(
        "--noise",
        type=share,
        metavar="3%",
        help="standard deviation between repeats, for --precision; by default it is estimated "
        "from the records of the sweep, or measured on this machine if there are none",
    )
    plan.add_argument("--json", action="store_true", help="print JSON")
    run = add_command(
        actions, "run", _run, "run the trials that are not done, then write the report"
    )
    run.add_argument(
        "--slurm",
        action="store_true",
        help="submit the trials to SLURM with the settings in [slurm] of the study, and return",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="with --slurm: only print the job scripts"
    )
    export = add_command(
        actions, "export", _export, "write a study as a workflow file for Maestro and Merlin"
    )
    export.add_argument(
        "--attempts",
        type=int,
        default=2,
        help="how often a trial whose process dies is run at most; by default 2",
    )
    export.add_argument(
        "--run",
        choices=("maestro", "merlin"),
        help="also run it, on this machine and without a broker, and check all results",
    )
    for action in (plan, run, export):
        action.add_argument("study", type=path, help="TOML file")
        action.add_argument("--out", type=path, help="folder of the sweep; by default logs/STUDY")
        add_trust(action)
    _add_actions_on_sweeps(actions)
    for name in ("run", "export", "resume", "retry"):
        actions.choices[name].add_argument(
            "--go-on",
            action="store_true",
            help="also if trials would be refused; the others run, and these fail",
        )


def _add_actions_on_sweeps(actions: argparse._SubParsersAction) -> None:
    status = add_command(actions, "status", _status, "show the state of every trial")
    status.add_argument("--json", action="store_true", help="print JSON")
    watch = add_command(
        actions, "watch", _watch, "show trials, curves and the time left while the sweep runs"
    )
    wait = add_command(
        actions, "wait", _wait, "wait until no trial runs or is queued, then write the report"
    )
    resume = add_command(
        actions,
        "resume",
        _resume,
        "run the trials that are not done, here or under SLURM, as they were started",
    )
    resume.set_defaults(states=("waiting", "interrupted", "failed"))
    retry = add_command(actions, "retry", _resume, "run only the failed trials again")
    retry.set_defaults(states=("failed",))
    cancel = add_command(actions, "cancel", _cancel, "end running and queued trials")
    for action in (resume, retry):
        add_trust(action)
    for action in (status, watch, wait, resume, retry, cancel):
        action.add_argument("folder", type=path, help="folder of a sweep")
    cancel.add_argument(
        "trials",
        nargs="*",
        metavar="TRIAL",
        help="end only these trials (under SLURM only); by default all",
    )


def _plan(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.study_time import time_json, time_text
    from tfunet.bench.study.plan_text import plan_json, plan_table, search_json, search_text
    from tfunet.bench.study.refusals import refusals, search_refusals
    from tfunet.bench.study.study_file import read_study
    from tfunet.bench.study.trial_plan import plan_trials

    study = read_study(options.study)
    if study.search is not None and options.precision is None:
        return _planned(options, search_json(study), search_text(study), search_refusals(study))
    planned = plan_trials(study)
    if options.precision is None and options.noise is not None:
        raise ValueError("--noise needs --precision. Give it too, such as --precision 2%.")
    folder = options.out or LOGS / planned.study.name
    table, text = plan_json(planned), plan_table(planned)
    table["time"] = time_json(planned, folder)
    text = f"{text}\n\n{time_text(planned, folder)}"
    if options.precision is not None:
        from tfunet.bench.analysis.repeats_needed import need_of
        from tfunet.bench.report.repeats_needed_text import need_json, need_text

        try:
            need = need_of(planned, folder, options.precision, options.noise)
        except ValueError:
            if not options.json:
                print(lines_of(text))  # The plan does not depend on it.
            raise
        table["precision"] = need_json(need)
        text = f"{text}\n\n{need_text(need, planned)}"
    return _planned(options, table, text, refusals(planned))


def _planned(
    options: argparse.Namespace, table: dict[str, Any], text: str, refused: Sequence[Refusal]
) -> int:
    """Print a plan; raise ValueError if trials of it would be refused.

    Trials that only need what is not installed here may be for another machine: a warning.
    """
    from tfunet.bench.study.refusals import warn

    missing = [refusal for refusal in refused if refusal.is_missing]
    wrong = [refusal for refusal in refused if not refusal.is_missing]
    for key, refusals in (("refused", wrong), ("not_installed", missing)):
        if refusals:
            table[key] = [{"reason": each.reason, "trials": each.trials} for each in refusals]
    print(json.dumps(table, indent=1) if options.json else lines_of(text), flush=True)
    warn(missing)
    if wrong:
        raise ValueError("\n".join(map(str, wrong)))
    return exit_codes.OK


def _run(options: argparse.Namespace) -> int:
    from tfunet.bench.study.study_file import read_study

    study = read_study(options.study)
    folder = options.out or LOGS / study.name
    if options.dry_run and not options.slurm:
        raise ValueError("--dry-run prints job scripts: give --slurm too, or use sweep plan.")
    if not options.slurm:
        from tfunet.bench.launch.local_sweep import run_sweep

        return _ended(folder, run_sweep(study, folder, refuses=not options.go_on))
    from tfunet.bench.launch.slurm_submit import dry_run, submit_sweep

    if options.dry_run:
        print(lines_of(dry_run(study, folder)))
        return exit_codes.OK
    submit_sweep(study, folder, refuses=not options.go_on)
    return submitted(folder)


def _watch(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.sweep_watch import watch

    return watch(options.folder)


def _export(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.one_trial import first_exit_code
    from tfunet.bench.launch.workflow_file import (
        ENGINES,
        engine_command,
        export_sweep,
        run_engine,
    )
    from tfunet.bench.records.sweep_record import FINISHED, read_sweep
    from tfunet.bench.study.study_file import read_study

    study = read_study(options.study)
    folder = options.out or LOGS / study.name
    if options.run is None:
        path = export_sweep(study, folder, options.attempts, refuses=not options.go_on)
        print(lines_of(f"Written: {path}\nTo run it:"))
        for engine, words in ENGINES.items():
            print(lines_of(f"  {engine} {' '.join(words)} {path}"))
        return exit_codes.OK
    command = engine_command(options.run, folder / "workflow.yaml")
    export_sweep(study, folder, options.attempts, refuses=not options.go_on)
    run_engine(command)
    # Merlin's exit code is 0 also if steps failed, or did not run.
    trials = [trial for trial in read_sweep(folder).trials if trial.state not in FINISHED]
    return _ended(folder, first_exit_code(trials))


def _wait(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.slurm_submit import wait_for

    return _ended(options.folder, wait_for(options.folder))


def _resume(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.resume_and_cancel import resume_sweep

    code = resume_sweep(options.folder, options.states, refuses=not options.go_on)
    return submitted(options.folder) if code is None else _ended(options.folder, code)


def _cancel(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.resume_and_cancel import cancel_sweep

    names = cancel_sweep(options.folder, options.trials)
    listed = "\n".join(f"cancelled: {name}" for name in names)
    print(lines_of(listed or "No trial runs or is queued."))
    return exit_codes.OK


def submitted(folder: Path) -> int:
    """Say what comes after a submission, and return the exit code."""
    print(
        lines_of(
            f"You can log out. To wait for the end and get the report: tfunet sweep wait {folder}"
        )
    )
    return exit_codes.OK


def _ended(folder: Path, code: int) -> int:
    if code not in (exit_codes.INTERRUPTED, exit_codes.TERMINATED):
        print_report(folder, None)
    return code


def _status(options: argparse.Namespace) -> int:
    from tfunet.bench.launch.sweep_status import status, status_table

    folder = options.folder
    print(json.dumps(status(folder), indent=1) if options.json else lines_of(status_table(folder)))
    return exit_codes.OK
