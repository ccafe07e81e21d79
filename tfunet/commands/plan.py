"""`tfunet plan`: which layout of a run is fastest, here or on machines that need not be here."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_config, config_of, path
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
    plan.add_argument(
        "--measure",
        type=int,
        default=0,
        metavar="N",
        help="take some steps of the best N; measures constants of this machine once",
    )
    plan.add_argument(
        "--out", type=path, metavar="plan.html", help="page to write, with two pictures"
    )
    plan.add_argument("--json", action="store_true", help="print JSON")


def _plan(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names

    config = config_of(options)
    check_names(config)
    machine = _machine(options, config)
    from tfunet.bench.launch.child_process import signals_noted
    from tfunet.bench.plan_text import plan_json, plan_text
    from tfunet.bench.planned import make_plan

    is_here = options.cluster is None and options.device is None
    if options.measure and not is_here:
        raise ValueError("--measure runs on this machine: leave out --cluster and --device.")
    _say(f"planning for {machine.name}")
    with contextlib.ExitStack() as stack:
        noted = stack.enter_context(signals_noted()) if options.measure else []
        plan = make_plan(
            config,
            machine,
            is_here=is_here,
            num_devices=options.devices,
            num_measured=options.measure,
            noted=noted,
            say=_say,
            progress=_progress,
        )
    if options.out is not None:
        from tfunet.bench.plan_page import write_page

        write_page(plan, str(options.config), options.out)
        _say(f"wrote {options.out}")
    if options.json:
        print(json.dumps(plan_json(plan), indent=1))
    else:
        print(lines_of(plan_text(plan, str(options.config))))
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
    if options.measure < 0:
        raise ValueError(f"--measure must be at least 0, got {options.measure}.")
    limit = None if options.memory is None else in_bytes("--memory", options.memory)
    if options.cluster is not None:
        return described(options.cluster, limit)
    if options.device is not None:
        return described(f"{options.devices or 1} {known_device(options.device)}", limit)
    return this_machine(config, limit, options.devices or 0)


def _say(line: str) -> None:
    print(f"{line} ...", file=sys.stderr, flush=True)


def _progress(count: int) -> None:
    if count and count % 1000 == 0 and shows_progress():
        print(f"\r{count:,} layouts", end="", file=sys.stderr, flush=True)
