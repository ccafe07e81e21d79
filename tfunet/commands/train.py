"""tfunet train: one run."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tfunet import exit_codes
from tfunet.commands.parsers import LOGS, add_command
from tfunet.process.cluster import Place


def add(commands: argparse._SubParsersAction) -> None:
    train = add_command(
        commands, "train", _train, "train one model with one backend", help_=False, takes_keys=True
    )
    train.add_argument("-h", "--help", action="store_true", help="show all keys of a run")
    train.add_argument("--out", type=Path, help="folder of the record; started again, it resumes")
    train.add_argument("--verbose", action="store_true", help="show the output of all processes")


def _train(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names, parse, run_parser
    from tfunet.backend import num_processes
    from tfunet.bench.launch.launch_run import launch
    from tfunet.record import RunFolder
    from tfunet.worker import own_place, take_part

    if options.help:
        run_parser().print_help()
        print("\n  --out OUT             Folder of the record; started again, it resumes.")
        print("  --verbose             Show the output of all processes.")
        return exit_codes.OK
    given = options.rest
    if given and given[0].endswith(".toml"):  # As the other commands take it.
        given = ["--config", *given]
    config = parse(given)
    check_names(config)
    place = own_place()
    if place is not None and place.count > 1:
        _check_others(place, num_processes(config), options.out)
        if config.elastic:
            raise ValueError(
                "elastic needs processes that tfunet starts itself: srun and mpirun end all where "
                "one is lost. Leave it out; the same command resumes the run."
            )
        take_part(config, options.out, place)
    folder = options.out or LOGS / "runs" / time.strftime("%Y%m%d-%H%M%S")
    outcome = launch(config, folder, verbose=options.verbose)
    if outcome.exit_code != exit_codes.OK:
        return outcome.exit_code
    if not RunFolder(folder).is_done():
        print(f"error: the processes ended early, without a result; see {folder}", file=sys.stderr)
        return exit_codes.PROCESS_DIED
    print(f"Record: {folder}")
    return exit_codes.OK


def _check_others(place: Place, count: int, folder: Path | None) -> None:
    """Raise ValueError unless srun or mpirun started what the run needs."""
    if place.count != count:
        raise ValueError(
            f"The run takes {count} process{'es' if count > 1 else ''}, and srun or mpirun started "
            f"{place.count}. Start {count}, or let num_replicas be {place.count} with the backend "
            "horovod or multiworker."
        )
    if folder is None:
        raise ValueError("Under srun or mpirun, name the folder that all processes use: --out")
