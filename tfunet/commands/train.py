"""`tfunet train`: one run."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_trust, keys_apart, path
from tfunet.process.launcher_variables import Place
from tfunet.process.terminal import lines_of
from tfunet.record import RunFolder

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig

# Is in what a process says that ran out of memory.
OUT_OF_MEMORY = "out of memory:"
OPTIONS = """
  --out OUT             Folder of the record. The same command resumes a run that was interrupted.
  --trust               Run the programs (FILE.py:NAME) that a file names, even if it is not yours.
  --verbose             Show the output of all processes.
  --slurm [CLUSTER.toml]
                        Submit the run to SLURM and return. The file has the keys of [slurm] of a
                        study: time, partition, gpus_per_replica, setup and others.
  --dry-run             With --slurm: only print the job script.
  --help-all            Show what each key means, and its default."""
HELP = f"""usage: tfunet train [RUN.toml] [--KEY VALUE ...] [--out OUT]

Train one model with one backend and write its record. All processes that mpirun or srun starts take
part in one run.

options:{OPTIONS}

keys, in the file and on the command line (--patch 256,256 for a list, --model_options.filters 8 for
an entry of a table). What each means: --help-all, or docs/configuration.md.
"""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "train one model with one backend"
    train = add_command(commands, "train", _train, about, has_help=False, takes_keys=True)
    train.set_defaults(starts_runs=True)
    train.add_argument("-h", "--help", action="store_true")
    train.add_argument("--help-all", action="store_true")
    train.add_argument("--out", type=path)
    train.add_argument("--verbose", action="store_true")
    train.add_argument("--slurm", nargs="?", const="", metavar="CLUSTER.toml")
    train.add_argument("--dry-run", action="store_true")
    add_trust(train)


def _train(options: argparse.Namespace) -> int:
    from tfunet.arguments import help_of_keys, parse
    from tfunet.bench.launch.start_run import new_folder, start_run
    from tfunet.bench.planned import in_best_layout, note_measured
    from tfunet.worker import take_part

    if options.help or options.help_all:
        print(f"{help_of_keys()}{OPTIONS}" if options.help_all else _short_help())
        return exit_codes.OK
    files, given = keys_apart(options.rest)
    if files and not files[0].startswith("-"):  # Without --config, as with the other commands.
        files = ["--config", *files]
    given = [*files, *given]
    config = parse(given)
    if options.dry_run and options.slurm is None:
        raise ValueError("--dry-run prints the job script: give --slurm, too.")
    if options.slurm is not None:
        return _submit(config, options)
    folder = options.out or new_folder()
    if config.layout is not None:
        config = in_best_layout(config, RunFolder(folder), _say)

    def join(place: Place) -> None:
        _check_launcher(place, config, options.out)
        take_part(config, folder, place)

    outcome = start_run(config, folder, join, verbose=options.verbose)
    if isinstance(outcome, str):
        print(lines_of(f"{outcome}\nRecord: {folder}"))
        return exit_codes.OK
    if outcome.exit_code != exit_codes.OK:
        if OUT_OF_MEMORY in outcome.reason and files:
            _say_what_fits(config, files[-1], given)
        return outcome.exit_code
    note_measured(RunFolder(folder))
    print(lines_of(f"Record: {folder}"))
    name = shlex.quote(str(folder))
    data = RunFolder(folder).read_data() or {}
    if data.get("targets") or data.get("arrays"):
        print(lines_of(f"Curves: tfunet report {name}"))
        return exit_codes.OK
    print(lines_of(f"Curves and pictures: tfunet report {name}"))
    print(lines_of(f"Scores of other images with masks: tfunet evaluate {name} FOLDER"))
    return exit_codes.OK


def _say_what_fits(config: RunConfig, file: str, given: Sequence[str]) -> None:
    """Say which layout takes less than a run that ran out of memory."""
    from tfunet.bench.planned import that_fits

    keys = given[given.index(file) + 1 :]
    run = shlex.join([file, *keys])
    try:
        line = that_fits(config, run, _say)
    except ValueError:
        return  # The run cannot be planned: its error says what else helps.
    if line:
        print(lines_of(f"The first layout that fits, as predicted: {line}"), file=sys.stderr)


def _say(line: str) -> None:
    print(lines_of(f"{line} ..."), file=sys.stderr, flush=True)


def _submit(config: RunConfig, options: argparse.Namespace) -> int:
    """Submit the run as a study of one trial, which status, wait, cancel and resume know."""
    from tfunet.bench.launch.slurm_submit import dry_run, submit_sweep
    from tfunet.bench.study.study_file import study_from_dict
    from tfunet.bench.study.trial_plan import plan_trials
    from tfunet.commands.sweep import submitted
    from tfunet.config.keys import KEYS, defaults, flat
    from tfunet.config.trust import check_own
    from tfunet.files.typed import parse_toml, toml_text

    if options.out is None:
        raise ValueError("With --slurm, name the folder of the run, which --out creates.")
    if config.tournament:
        raise ValueError("A tournament is several runs: submit a study with tfunet sweep run.")
    if (options.out / "config.json").exists():
        raise ValueError(f"{options.out} has the record of a run. Name another folder with --out.")
    file = Path(options.slurm) if options.slurm else None
    table = {} if file is None else parse_toml(toml_text(file))
    if {*KEYS} & {*table}:
        raise ValueError(
            f"{file} has keys of a run. The file after --slurm has those of [slurm] of a study; "
            "the run stands before it: tfunet train RUN.toml --slurm CLUSTER.toml"
        )
    usual = defaults()
    base = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flat(vars(config)).items()
        if key not in usual or value != usual[key]
    }
    slurm = table.get("slurm", table)
    study = study_from_dict({"name": options.out.name, "base": base, "slurm": slurm})
    check_own([], [] if file is None else [file], study.slurm.commands)
    if options.dry_run:
        print(dry_run(study, options.out))
        return exit_codes.OK
    submit_sweep(study, options.out, refuses=True)
    (trial,) = plan_trials(study, math.inf).trials
    print(f"Record: {options.out / trial.id}")
    return submitted(options.out)


def _short_help() -> str:
    """Return the help that fits a screen or two: keys by heading, without their meaning."""
    from tfunet.config.keys import keys_by_heading

    lines = [HELP]
    for heading, keys in keys_by_heading().items():
        words = textwrap.wrap(", ".join(keys), 94, break_on_hyphens=False)
        lines += [f"  {heading}:", *(f"      {line}" for line in words)]
    return "\n".join(lines)


def _check_launcher(place: Place, config: RunConfig, folder: Path | None) -> None:
    """Raise ValueError unless the launcher started what the run needs."""
    from tfunet.connection import check_count

    check_count(config, place.count)
    if folder is None:
        raise ValueError(
            "Under srun, mpirun or another launcher, name the folder that all processes use: --out"
        )
    if config.elastic:
        raise ValueError(
            "elastic needs processes that tfunet starts itself: other launchers end all processes "
            "when one dies. Leave out elastic; the same command resumes the run."
        )
