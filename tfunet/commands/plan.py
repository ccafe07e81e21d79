"""`tfunet plan`: which layout of a run is fastest, here or on machines that need not be here."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_config, config_of
from tfunet.process.terminal import lines_of, shows_progress

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig
    from tfunet.plan.machine import Machine


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "rank the ways to train a run: time, memory, and what to type"
    plan = add_command(commands, "plan", _plan, about, takes_keys=True)
    add_config(plan)
    plan.add_argument("--devices", type=int, help="devices to use at most; by default all")
    plan.add_argument(
        "--memory", metavar="16GiB", help="what each device has; by default all of its memory"
    )
    plan.add_argument(
        "--cluster",
        metavar="TEXT",
        help='a machine that need not be here: "4 nodes x 6 v100-nvlink2, edr"',
    )
    plan.add_argument(
        "--device", help="a device that need not be here, such as h100; --devices says how many"
    )
    plan.add_argument("--json", action="store_true", help="print JSON")


def _plan(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names

    config = config_of(options)
    check_names(config)
    machine = _machine(options, config)
    from tfunet.plan.here import missing
    from tfunet.plan.text import ranking_json, ranking_text

    # TensorFlow is imported from here on.
    _say(f"Planning for {machine.name}")
    from tfunet.plan.gather import gather
    from tfunet.plan.rank import ranked
    from tfunet.plan.swapped import with_plans

    facts = gather(config, machine.device, say=_say)
    is_here = options.cluster is None and options.device is None
    lacking = {name: why for name in ("horovod",) if is_here and (why := missing(name))}
    ranking = ranked(
        config,
        facts,
        machine,
        num_devices=options.devices,
        missing=lacking,
        progress=_progress,
    )
    ranking = with_plans(ranking, _say)
    if options.json:
        print(json.dumps(ranking_json(ranking), indent=1))
    else:
        print(lines_of(ranking_text(ranking, str(options.config))))
    return exit_codes.OK


def _machine(options: argparse.Namespace, config: RunConfig) -> Machine:
    from tfunet.config.amount import in_bytes
    from tfunet.performance.devices import known_device
    from tfunet.plan.here import this_machine
    from tfunet.plan.machine import described

    if options.cluster is not None and options.device is not None:
        raise ValueError("Give --cluster or --device, not both: each says what to plan for.")
    if options.devices is not None and options.devices < 1:
        raise ValueError(f"--devices must be at least 1, got {options.devices}.")
    limit = None if options.memory is None else in_bytes("--memory", options.memory)
    if options.cluster is not None:
        return described(options.cluster, limit)
    if options.device is not None:
        return described(f"{options.devices or 1} {known_device(options.device)}", limit)
    return this_machine(config, limit)


def _say(line: str) -> None:
    print(f"{line} ...", file=sys.stderr, flush=True)


def _progress(count: int) -> None:
    if count and count % 1000 == 0 and shows_progress():
        print(f"\r{count:,} layouts", end="", file=sys.stderr, flush=True)
