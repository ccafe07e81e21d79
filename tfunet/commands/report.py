"""`tfunet report` and `tfunet compare`: the results of sweeps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, path, share
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    report = add_command(commands, "report", _report, "write the report of a sweep")
    report.add_argument("folder", type=path, help="folder of a sweep")
    report.add_argument("--out", type=path, help="folder of the report; by default FOLDER/report")
    report.add_argument(
        "--target-dice",
        type=float,
        metavar="DICE",
        help="report the time to this Dice score; by default the highest score that every trial "
        "reached",
    )
    report.add_argument("--json", action="store_true", help="print JSON and write nothing")

    compare = add_command(
        commands, "compare", _compare, "compare two sweeps of the same study, or two runs"
    )
    compare.add_argument("first", type=path, help="folder of the sweep or run to compare with")
    compare.add_argument("second", type=path, help="folder of the other one")
    compare.add_argument(
        "--tolerance",
        type=share,
        default=0.0,
        metavar="3%",
        help="a change up to this size does not matter",
    )
    compare.add_argument("--json", action="store_true", help="print JSON")


def _report(options: argparse.Namespace) -> int:
    from tfunet.bench.records.published_campaign import is_campaign

    if is_campaign(options.folder):
        return _report_campaign(options)
    if options.json:
        from tfunet.bench.report.sweep_report import summary_json

        print(json.dumps(summary_json(options.folder, options.target_dice), indent=1))
        return exit_codes.OK
    print_report(options.folder, options.out, options.target_dice)
    return exit_codes.OK


def print_report(folder: Path, out: Path | None, target_dice: float | None = None) -> None:
    """Print the summary of a sweep and write its report, by default beside its records."""
    from tfunet.bench.report.sweep_report import summary_table, write_report

    print(lines_of(summary_table(folder, target_dice)))
    print(lines_of(f"Report: {write_report(folder, out, target_dice).html}"))


def _report_campaign(options: argparse.Namespace) -> int:
    from tfunet.bench.records.published_campaign import read_campaign
    from tfunet.bench.report.campaign_report import (
        campaign_json,
        campaign_text,
        write_campaign_report,
    )

    runs = read_campaign(options.folder)
    if options.json:
        print(json.dumps(campaign_json(runs), indent=1))
        return exit_codes.OK
    print(lines_of(campaign_text(runs)))
    print(lines_of(f"Report: {write_campaign_report(options.folder, options.out)}"))
    return exit_codes.OK


def _compare(options: argparse.Namespace) -> int:
    from tfunet.bench.analysis.two_runs import are_runs, compare_runs
    from tfunet.bench.analysis.two_sweeps import compare_sweeps
    from tfunet.bench.report.two_runs_text import runs_json, runs_text
    from tfunet.bench.report.two_sweeps_text import change_json, change_text

    if are_runs(options.first, options.second):
        compared = compare_runs(options.first, options.second)
        table = runs_json(compared)
        print(json.dumps(table, indent=1) if options.json else lines_of(runs_text(compared)))
        return compared.exit_code
    change = compare_sweeps(options.first, options.second, options.tolerance)
    print(json.dumps(change_json(change), indent=1) if options.json else change_text(change))
    return change.exit_code
