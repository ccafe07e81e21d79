"""`tfunet swap`: plan what large-model support would do on any device, show and compare plans."""

from __future__ import annotations

import argparse
import json

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_config, config_of, path
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    swap = commands.add_parser(
        "swap", help="plan what to swap, for any device; show and compare plans"
    )
    plans = swap.add_subparsers(metavar="ACTION", required=True)
    plan = add_command(
        plans,
        "plan",
        _plan,
        "predict the memory and time of a step on a device",
        takes_keys=True,
    )
    add_config(plan)
    plan.add_argument(
        "--device", required=True, help="such as v100-nvlink2; an unknown name lists all devices"
    )
    plan.add_argument(
        "--memory", metavar="40GiB", help="memory to plan for; by default all that the device has"
    )
    plan.add_argument("--save", type=path, help="file to write the plan to, as JSON")
    plan.add_argument("--json", action="store_true", help="print JSON")
    show = add_command(plans, "show", _show, "show the memory of a step, planned and measured")
    show.add_argument("plan", type=path, help="folder of a run, or file of a saved plan")
    show.add_argument("--out", type=path, help="picture to write: .svg, .png or .pdf")
    diff = add_command(plans, "diff", _diff, "show how two plans differ; exit code 8 if they do")
    diff.add_argument("first", type=path, help="folder of a run, or file of a saved plan")
    diff.add_argument("second", type=path, help="the other folder or file")
    diff.add_argument("--json", action="store_true", help="print JSON")


def _plan(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names
    from tfunet.performance.devices import DEVICES, known_device

    device = DEVICES[known_device(options.device)]
    config = config_of(options)
    check_names(config)
    from tfunet.config.amount import parse as parse_bytes
    from tfunet.files.atomic import write_atomic
    from tfunet.performance.forecast import forecast, forecast_json, forecast_text

    memory_bytes = None if options.memory is None else parse_bytes(options.memory)
    if isinstance(memory_bytes, float):
        raise ValueError(f"--memory must be an amount such as 40GiB, got {options.memory!r}.")
    predicted = forecast(config, device, memory_bytes=memory_bytes)
    if options.save is not None:
        write_atomic(options.save, predicted.plan.to_json() + "\n")
    as_json = options.json
    print(json.dumps(forecast_json(predicted), indent=1) if as_json else forecast_text(predicted))
    return exit_codes.OK


def _show(options: argparse.Namespace) -> int:
    from tfunet.swap.report.picture import draw
    from tfunet.swap.report.text import read_measured, read_plans, text
    from tfunet.timing.recorded import copied_seconds

    plan, measured = read_plans(options.plan)[-1], read_measured(options.plan)
    copied = copied_seconds(options.plan) if options.plan.is_dir() else None
    print(lines_of(text(plan, measured, copied)))
    if options.out is not None:
        draw(plan, options.out, measured)
        print(lines_of(f"Picture: {options.out}"))
    return exit_codes.OK


def _diff(options: argparse.Namespace) -> int:
    from tfunet.swap.report.diff import difference, difference_json, difference_text
    from tfunet.swap.report.text import read_measured, read_plans

    both = options.first, options.second
    first, second = (read_plans(path)[-1] for path in both)
    changes = difference(first, second, *(read_measured(path) for path in both))
    as_json = options.json
    print(json.dumps(difference_json(changes), indent=1) if as_json else difference_text(changes))
    return exit_codes.OK if changes.is_same else exit_codes.DIFFERENT
