"""The command line. Imports no TensorFlow: commands that need it start processes of their own."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfunet import __version__, exit_codes

if TYPE_CHECKING:
    from tfunet.config import RunConfig

LOGS = Path("logs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (tfunet.exit_codes)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options, rest = parser.parse_known_args(given)
    own_keys = (_train, _data_check, _data_show, _data_cache, _swap_plan)
    if rest and options.command not in own_keys:
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

    predict = _command(commands, "predict", _predict, "predict whole images with a trained network")
    predict.add_argument("run", type=Path, help="folder of a finished run")
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files; those of one image joined by commas"
    )
    predict.add_argument(
        "--out", type=Path, required=True, help="folder; started again, it resumes"
    )
    predict.add_argument(
        "--tiles",
        default="gaussian",
        metavar="WAY",
        help="gaussian: overlap by half and blend (the default); halo: context around each, the "
        "prediction of the whole image",
    )
    predict.add_argument("--window", type=_sizes, metavar="512,512", help="size of the tiles")
    predict.add_argument(
        "--halo", type=int, metavar="N", help="voxels of context; by default as far as it looks"
    )
    predict.add_argument("--batch", type=int, default=1, help="tiles at once on the device")
    predict.add_argument("--format", help="tiff, nifti or zarr; by default as the image")
    predict.add_argument(
        "--probabilities", action="store_true", help="write those of each class too"
    )
    predict.add_argument(
        "--pixel_size",
        type=_numbers,
        metavar="0.1,0.1",
        help="of the images, if the run resampled its own and these do not state it",
    )

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
    run.add_argument(
        "--slurm",
        action="store_true",
        help="submit it to SLURM as [slurm] in the study says, and return",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="with --slurm: print the job scripts and do nothing"
    )
    status = _command(actions, "status", _sweep_status, "say what is done, failed and waiting")
    status.add_argument("folder", type=Path, help="folder of a sweep")
    status.add_argument("--json", action="store_true", help="as JSON")
    wait = _command(actions, "wait", _sweep_wait, "wait until nothing of it runs, then report")
    resume = _command(
        actions, "resume", _sweep_resume, "run what is not done, here or under SLURM as before"
    )
    resume.set_defaults(states=("waiting", "interrupted", "failed"))
    retry = _command(actions, "retry", _sweep_resume, "run what failed again, and nothing else")
    retry.set_defaults(states=("failed",))
    cancel = _command(actions, "cancel", _sweep_cancel, "end what runs, and take it out of queues")
    for action in (wait, resume, retry, cancel):
        action.add_argument("folder", type=Path, help="folder of a sweep")
    cancel.add_argument(
        "trials", nargs="*", metavar="TRIAL", help="only these, under SLURM; by default all"
    )

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
    check = _command(
        checks, "check", _data_check, "read every case once, say what is there and what is wrong"
    )
    check.epilog = "Exit codes: 0 no defect (there may be warnings), 2 defects."
    check.add_argument("config", type=Path, help="TOML file of a run; further keys: --KEY VALUE")
    check.add_argument("--json", action="store_true", help="as JSON, with every case")

    show = _command(checks, "show", _data_show, "draw samples before and after augmentation")
    show.add_argument("config", type=Path, help="TOML file of a run; further keys: --KEY VALUE")
    show.add_argument("--out", type=Path, default=Path("samples.png"), help="file to write")
    show.add_argument("--num_samples", type=int, default=4, help="the first so many of the epoch")
    show.add_argument("--epoch", type=int, default=0, help="counted from 0")
    show.add_argument("--each", action="store_true", help="one sample, each augmentation alone")

    cache = _command(checks, "cache", _data_cache, "decode a data set now, list or clear the cache")
    cache.add_argument(
        "config", type=Path, nargs="?", help="TOML file of a run; further keys: --KEY VALUE"
    )
    cache.add_argument("--list", action="store_true", help="say what is there, and build nothing")
    cache.add_argument("--clear", action="store_true", help="remove all that no process uses")

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


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


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


def _predict(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # As in training.
    from tfunet.predict.run import Options, predict

    try:
        predict(
            options.run,
            options.images,
            options.out,
            Options(
                tiles=options.tiles,
                window=options.window,
                halo=options.halo,
                batch=options.batch,
                format=options.format,
                probabilities=options.probabilities,
                pixel_size=options.pixel_size,
            ),
        )
    except KeyboardInterrupt:
        print("The same command goes on from here.", file=sys.stderr)
        raise
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

    study = read_study(options.study)
    folder = options.out or LOGS / study.name
    if options.dry_run and not options.slurm:
        raise ValueError("--dry-run prints job scripts: give --slurm too. See also: sweep plan.")
    if not options.slurm:
        from tfunet.bench.sweep import run_sweep

        return _ended(folder, run_sweep(study, folder))
    from tfunet.bench.submit import dry_run, submit_sweep

    if options.dry_run:
        print(dry_run(study, folder))
        return exit_codes.OK
    submit_sweep(study, folder)
    return _submitted(folder)


def _sweep_wait(options: argparse.Namespace) -> int:
    from tfunet.bench.submit import wait_for

    return _ended(options.folder, wait_for(options.folder))


def _sweep_resume(options: argparse.Namespace) -> int:
    from tfunet.bench.control import resume_sweep

    code = resume_sweep(options.folder, options.states)
    return _submitted(options.folder) if code is None else _ended(options.folder, code)


def _sweep_cancel(options: argparse.Namespace) -> int:
    from tfunet.bench.control import cancel_sweep

    names = cancel_sweep(options.folder, options.trials)
    print("\n".join(f"cancelled: {one}" for one in names) or "Nothing of it runs or is queued.")
    return exit_codes.OK


def _submitted(folder: Path) -> int:
    print(f"You may log out. The report, when all is done: tfunet sweep wait {folder}")
    return exit_codes.OK


def _ended(folder: Path, code: int) -> int:
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
    from tqdm import tqdm

    from tfunet.arguments import parse
    from tfunet.data.check import Report, check, report_text
    from tfunet.data.defects import DefectsError
    from tfunet.data.source import open_source
    from tfunet.data.split import split_of

    config = parse(["--config", str(options.config), *options.rest])
    try:
        source = open_source(config.data, config.data_options, skip_bad=True)
    except DefectsError as error:  # No case is left to read.
        report = Report.of_nothing(config.data, error.defects)
    else:
        # None: without a terminal, no bar.
        progress = functools.partial(tqdm, desc="Reading", unit="case", disable=None)
        report = check(source, split_of(config, source), progress=progress)
    print(json.dumps(report.to_json(), indent=1) if options.json else report_text(report))
    return exit_codes.BAD_INPUT if report.defects else exit_codes.OK


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


def _data_cache(options: argparse.Namespace) -> int:
    from tfunet.arguments import parse
    from tfunet.data.cache import default_folder
    from tfunet.data.cache_folder import clear, listing

    given = ["--config", str(options.config)] if options.config else []
    config = parse([*given, *options.rest])
    folder = Path(config.cache_dir) if config.cache_dir else default_folder()
    if options.clear:
        removed, used = clear(folder)
        print(f"Removed {removed} data sets from {folder}; {used} are in use.")
    if options.list:
        print(listing(folder))
    if not (options.clear or options.list):
        if options.config is None:
            raise ValueError("Name the configuration to decode, or give --list or --clear.")
        print(_build_cache(config, folder))
    return exit_codes.OK


def _build_cache(config: RunConfig, folder: Path) -> str:
    from tfunet.data.cache import build_cache
    from tfunet.data.source import open_source
    from tfunet.progress import decoding_bar

    source = open_source(config.data, config.data_options, skip_bad=config.skips_bad)
    with decoding_bar() as show:
        patch = source.chosen_patch(config.patch)
        cases = build_cache(source, folder, patch=patch, progress=show, skip_bad=config.skips_bad)
    size = f"{cases.num_bytes / 2**20:.1f} MiB"
    return f"{source.name}: {len(cases.case_ids)} cases, {size} in {cases.image_path.parent}"


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
