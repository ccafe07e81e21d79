"""The command line. Imports no TensorFlow: commands that need it start processes of their own."""

import argparse
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfunet import __version__, exit_codes

LOGS = Path("logs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (tfunet.exit_codes)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options, rest = parser.parse_known_args(given)
    if rest and options.command not in (_train, _data_show, _swap_plan):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    try:
        return options.command(options)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except (ValueError, OSError, KeyboardInterrupt) as error:
        code = exit_codes.of_error(error)
        if code is None:
            raise
        print(f"error: {error}" if str(error) else "interrupted", file=sys.stderr)
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tfunet",
        description="Train Keras segmentation models on many devices, and compare the ways.",
        epilog="Exit codes: 0 done, 2 bad usage, configuration or data, 3 a process died, 4 a "
        "check of correctness failed, 5 a file could not be written, 6 compare: a cell is slower, "
        "7 compare: it cannot tell, 130 Ctrl-C, 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=f"tfunet {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    train = _command(commands, "train", _train, "train one model with one backend", help_=False)
    train.add_argument("-h", "--help", action="store_true", help="show all keys of a run")
    train.add_argument("--out", type=Path, help="folder of the record; started again, it resumes")
    train.add_argument("--verbose", action="store_true", help="show the output of all processes")

    sweep = commands.add_parser("sweep", help="plan, run and watch a study of many runs")
    actions = sweep.add_subparsers(metavar="ACTION", required=True)
    plan = _command(actions, "plan", _sweep_plan, "print every trial of a study")
    plan.add_argument("study", type=Path, help="TOML file")
    plan.add_argument(
        "--precision",
        type=_share,
        metavar="2%",
        help="say how many repeats find a difference this small",
    )
    plan.add_argument(
        "--noise",
        type=_share,
        metavar="3%",
        help="standard deviation of a trial, for --precision; by default that of the sweep's "
        "records, else what this machine shows now",
    )
    plan.add_argument("--out", type=Path, help="folder of the sweep; by default logs/STUDY")
    plan.add_argument("--json", action="store_true", help="as JSON")
    run = _command(actions, "run", _sweep_run, "run what is not done yet, then report")
    run.add_argument("study", type=Path, help="TOML file")
    run.add_argument("--out", type=Path, help="folder of the sweep; by default logs/STUDY")
    status = _command(actions, "status", _sweep_status, "say what is done, failed and waiting")
    status.add_argument("folder", type=Path, help="folder of a sweep")
    status.add_argument("--json", action="store_true", help="as JSON")

    report = _command(commands, "report", _report, "write the report of a sweep")
    report.add_argument("folder", type=Path, help="folder of a sweep")
    report.add_argument("--out", type=Path, help="folder of the report; by default FOLDER/report")
    report.add_argument(
        "--target-dice",
        type=float,
        metavar="DICE",
        help="tell what it took to reach it; by default the highest that all trials reached",
    )
    report.add_argument("--json", action="store_true", help="print JSON and write nothing")

    compare = _command(commands, "compare", _compare, "compare two sweeps of the same study")
    compare.add_argument("first", type=Path, help="folder of the sweep to measure by")
    compare.add_argument("second", type=Path, help="folder of the other one")
    compare.add_argument(
        "--tolerance", type=_share, default=0.0, metavar="3%", help="a change that does not matter"
    )
    compare.add_argument("--json", action="store_true", help="as JSON")

    models = commands.add_parser("models", help="list the models, or show one")
    models.set_defaults(command=_models)
    about = models.add_subparsers(metavar="ACTION")
    show = _command(about, "show", _models_show, "levels, shapes, parameters, memory of a model")
    show.add_argument("name", help="a name of the list, or 'package.module:build'")
    show.add_argument(
        "--shape", type=_sizes, required=True, help="spatial sizes and channels, as 128,128,1"
    )
    show.add_argument("--classes", type=int, default=2, help="labels, with background")
    show.add_argument("--batch", type=int, default=1, help="samples, for the memory")
    show.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the builder, the value as in TOML: filters=8; may be given again",
    )

    data = commands.add_parser("data", help="check a data set, or show samples of it")
    checks = data.add_subparsers(metavar="ACTION", required=True)
    check = _command(checks, "check", _data_check, "read every case once and list all defects")
    check.add_argument("config", type=Path, help="TOML file with the keys data and data_options")

    show = _command(checks, "show", _data_show, "draw samples before and after augmentation")
    show.add_argument("config", type=Path, help="TOML file of a run; further keys: --KEY VALUE")
    show.add_argument("--out", type=Path, default=Path("samples.png"), help="file to write")
    show.add_argument("--num_samples", type=int, default=4, help="the first so many of the epoch")
    show.add_argument("--epoch", type=int, default=0, help="counted from 0")
    show.add_argument("--each", action="store_true", help="one sample, each augmentation alone")

    swap = commands.add_parser("swap", help="plan what to swap, for any device; show a plan")
    plans = swap.add_subparsers(metavar="ACTION", required=True)
    plan = _command(plans, "plan", _swap_plan, "say what a step needs and takes on a device")
    plan.add_argument("config", type=Path, help="TOML file of a run; further keys: --KEY VALUE")
    plan.add_argument("--device", required=True, help="such as v100-nvlink2; a wrong one lists all")
    plan.add_argument("--memory", metavar="40GiB", help="by default the device's")
    plan.add_argument("--save", type=Path, help="file for the plan, as JSON")
    plan.add_argument("--json", action="store_true", help="print JSON")
    show = _command(plans, "show", _swap_show, "draw the memory of a step under a plan")
    show.add_argument("plan", type=Path, help="folder of a run, or a plan that was saved")
    show.add_argument("--out", type=Path, help="picture to write: .svg, .png or .pdf")

    doctor = _command(commands, "doctor", _doctor, "say what works here and what is missing")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _command(
    commands: argparse._SubParsersAction,
    name: str,
    function: Callable[[argparse.Namespace], int],
    help_text: str,
    *,
    help_: bool = True,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=help_text, add_help=help_)
    parser.set_defaults(command=function)
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _share(text: str) -> float:
    """Return 0.02 for "2%" and for "0.02"."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write it as 2% or 0.02, got {text!r}") from error


def _toml(pairs: Sequence[str]) -> dict[str, Any]:
    try:
        return tomllib.loads("\n".join(pairs))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"Options are KEY=VALUE with a value as in TOML (a text in quotes), got {pairs}: "
            f"{error}."
        ) from error


def _train(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names, parse, run_parser
    from tfunet.bench.launch import launch
    from tfunet.record import RunFolder

    if options.help:
        run_parser().print_help()
        print("\n  --out OUT             Folder of the record; started again, it resumes.")
        print("  --verbose             Show the output of all processes.")
        return exit_codes.OK
    config = parse(options.rest)
    check_names(config)
    folder = options.out or LOGS / "runs" / time.strftime("%Y%m%d-%H%M%S")
    outcome = launch(config, folder, verbose=options.verbose)
    if outcome.exit_code != exit_codes.OK:
        return outcome.exit_code
    if not RunFolder(folder).is_done():
        print(f"error: the processes ended early, without a result; see {folder}", file=sys.stderr)
        return exit_codes.PROCESS_DIED
    print(f"Record: {folder}")
    return exit_codes.OK


def _sweep_plan(options: argparse.Namespace) -> int:
    from tfunet.bench.plan import plan, plan_json, plan_table
    from tfunet.bench.study import read_study

    planned = plan(read_study(options.study))
    if options.precision is None and (options.noise is not None or options.out is not None):
        raise ValueError("--noise and --out serve --precision: give that too, as --precision 2%.")
    table, text = plan_json(planned), plan_table(planned)
    if options.precision is not None:
        from tfunet.bench.precision import need_json, need_of, need_text

        folder = options.out or LOGS / planned.study.name
        need = need_of(planned, folder, options.precision, options.noise)
        table["precision"] = need_json(need)
        text = f"{text}\n\n{need_text(need, planned)}"
    print(json.dumps(table, indent=1) if options.json else text)
    return exit_codes.OK


def _sweep_run(options: argparse.Namespace) -> int:
    from tfunet.bench.study import read_study
    from tfunet.bench.sweep import run_sweep

    study = read_study(options.study)
    folder = options.out or LOGS / study.name
    code = run_sweep(study, folder)
    if code not in (exit_codes.INTERRUPTED, exit_codes.TERMINATED):
        _print_report(folder, None)
    return code


def _sweep_status(options: argparse.Namespace) -> int:
    from tfunet.bench.status import status, status_table

    folder = options.folder
    print(json.dumps(status(folder), indent=1) if options.json else status_table(folder))
    return exit_codes.OK


def _report(options: argparse.Namespace) -> int:
    from tfunet.bench.campaign import is_campaign

    if is_campaign(options.folder):
        return _report_campaign(options)
    if options.json:
        from tfunet.bench.report import summary_json

        print(json.dumps(summary_json(options.folder, options.target_dice), indent=1))
        return exit_codes.OK
    _print_report(options.folder, options.out, options.target_dice)
    return exit_codes.OK


def _print_report(folder: Path, out: Path | None, target_dice: float | None = None) -> None:
    from tfunet.bench.report import summary_table, write_report

    print(summary_table(folder, target_dice))
    print(f"Report: {write_report(folder, out, target_dice).html}")


def _report_campaign(options: argparse.Namespace) -> int:
    from tfunet.bench.campaign import (
        campaign_json,
        campaign_text,
        read_campaign,
        write_campaign_report,
    )

    runs = read_campaign(options.folder)
    if options.json:
        print(json.dumps(campaign_json(runs), indent=1))
        return exit_codes.OK
    print(campaign_text(runs))
    print(f"Report: {write_campaign_report(options.folder, options.out)}")
    return exit_codes.OK


def _compare(options: argparse.Namespace) -> int:
    from tfunet.bench.compare_sweeps import change_json, change_text, compare_sweeps

    change = compare_sweeps(options.first, options.second, options.tolerance)
    print(json.dumps(change_json(change), indent=1) if options.json else change_text(change))
    return change.exit_code


def _models(options: argparse.Namespace) -> int:
    from tfunet.models import list_models

    print(list_models())
    return exit_codes.OK


def _models_show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfunet.models.show import describe

    print(
        describe(
            options.name,
            image_shape=options.shape,
            num_classes=options.classes,
            batch=options.batch,
            options=_toml(options.option),
        )
    )
    return exit_codes.OK


def _data_check(options: argparse.Namespace) -> int:
    from tfunet.arguments import from_toml
    from tfunet.data import DATASETS
    from tfunet.data.check import check
    from tfunet.refs import call, resolve

    config = from_toml(options.config)
    source = call("data set", resolve("data set", config.data, DATASETS), config.data_options)
    defects = check(source)
    for defect in defects:
        print(defect)
    print(f"{source.name}: {len(source.case_ids)} cases, {len(defects)} defects.")
    return exit_codes.BAD_INPUT if defects else exit_codes.OK


def _data_show(options: argparse.Namespace) -> int:
    from tfunet.arguments import parse

    config = parse(["--config", str(options.config), *options.rest])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfunet.data.show import show

    show(
        config,
        options.out,
        num_samples=options.num_samples,
        epoch=options.epoch,
        each=options.each,
    )
    print(f"Picture: {options.out}")
    return exit_codes.OK


def _swap_plan(options: argparse.Namespace) -> int:
    from tfunet.arguments import check_names, parse
    from tfunet.refs import near_match
    from tfunet.swap.devices import DEVICES

    if options.device not in DEVICES:
        raise ValueError(
            f"Unknown device {options.device!r}.{near_match(options.device, DEVICES)} Known: "
            f"{', '.join(DEVICES)}."
        )
    config = parse(["--config", str(options.config), *options.rest])
    check_names(config)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfunet.record import write_atomic
    from tfunet.swap.budget import parse as parse_bytes
    from tfunet.swap.forecast import forecast, forecast_json, forecast_text

    memory_bytes = None if options.memory is None else parse_bytes(options.memory)
    if isinstance(memory_bytes, float):
        raise ValueError(f"--memory is an amount such as 40GiB, got {options.memory!r}.")
    found = forecast(config, DEVICES[options.device], memory_bytes=memory_bytes)
    if options.save is not None:
        write_atomic(options.save, found.plan.to_json() + "\n")
    print(json.dumps(forecast_json(found), indent=1) if options.json else forecast_text(found))
    return exit_codes.OK


def _swap_show(options: argparse.Namespace) -> int:
    from tfunet.swap.show import draw, read_plans, text

    plan = read_plans(options.plan)[-1]
    print(text(plan))
    if options.out is not None:
        draw(plan, options.out)
        print(f"Picture: {options.out}")
    return exit_codes.OK


def _doctor(options: argparse.Namespace) -> int:
    from tfunet import doctor

    return doctor.run(as_json=options.json)
