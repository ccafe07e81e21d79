"""`tfunet swap`: show and compare what large-model support does."""

from __future__ import annotations

import argparse
import json

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, path
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    swap = commands.add_parser("swap", help="show and compare what large-model support does")
    plans = swap.add_subparsers(metavar="ACTION", required=True)
    plans.add_parser("plan", add_help=False).set_defaults(command=_gone, takes_keys=True)
    show = add_command(plans, "show", _show, "show the memory of a step, planned and measured")
    show.add_argument("plan", type=path, help="folder of a run, or its swap.json")
    show.add_argument("--out", type=path, help="picture to write: .svg, .png or .pdf")
    diff = add_command(plans, "diff", _diff, "show how two plans differ; exit code 8 if they do")
    diff.add_argument("first", type=path, help="folder of a run, or its swap.json")
    diff.add_argument("second", type=path, help="the other folder or file")
    diff.add_argument("--json", action="store_true", help="print JSON")


def _gone(options: argparse.Namespace) -> int:
    raise ValueError("Time and memory of a run are predicted by: tfunet plan RUN.toml")


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
