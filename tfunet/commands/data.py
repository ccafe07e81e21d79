"""`tfunet data`: check a data set, show samples of it, decode it."""

from __future__ import annotations

import argparse
import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_config, config_of

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    data = commands.add_parser("data", help="check a data set, or show samples of it")
    checks = data.add_subparsers(metavar="ACTION", required=True)
    check = add_command(
        checks,
        "check",
        _check,
        "read every case once, say what is there and what is wrong",
        takes_keys=True,
    )
    check.epilog = "Exit codes: 0 no defect (there may be warnings), 2 defects."
    add_config(check)
    check.add_argument("--json", action="store_true", help="as JSON, with every case")

    show = add_command(
        checks, "show", _show, "draw samples before and after augmentation", takes_keys=True
    )
    add_config(show)
    show.add_argument("--out", type=Path, default=Path("samples.png"), help="file to write")
    show.add_argument("--num_samples", type=int, default=4, help="the first so many of the epoch")
    show.add_argument("--epoch", type=int, default=0, help="counted from 0")
    show.add_argument("--each", action="store_true", help="one sample, each augmentation alone")

    cache = add_command(
        checks, "cache", _cache, "decode a data set now, list or clear the cache", takes_keys=True
    )
    add_config(cache, nargs="?")
    cache.add_argument("--list", action="store_true", help="say what is there, and build nothing")
    cache.add_argument("--clear", action="store_true", help="remove all that no process uses")


def _check(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from tfunet.data.check import Report, check, report_text
    from tfunet.data.defects import DefectsError
    from tfunet.data.source import open_source
    from tfunet.data.split import split_of

    config = config_of(options)
    try:
        source = open_source(config.data, config.data_options, skip_bad=True)
    except DefectsError as error:  # No case is left to read.
        report = Report.of_nothing(error)
    else:
        # None: without a terminal, no bar.
        progress = functools.partial(tqdm, desc="Reading", unit="case", disable=None)
        report = check(source, split_of(config, source), progress=progress)
    print(json.dumps(report.to_json(), indent=1) if options.json else report_text(report))
    return exit_codes.BAD_INPUT if report.defects else exit_codes.OK


def _show(options: argparse.Namespace) -> int:
    config = config_of(options)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfunet.data.sample_pictures import show

    show(
        config,
        options.out,
        num_samples=options.num_samples,
        epoch=options.epoch,
        each=options.each,
    )
    print(f"Picture: {options.out}")
    return exit_codes.OK


def _cache(options: argparse.Namespace) -> int:
    from tfunet.data.cache import default_folder
    from tfunet.data.cache_eviction import clear, listing

    config = config_of(options)
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
    from tfunet.process.terminal import decoding_bar

    source = open_source(config.data, config.data_options, skip_bad=config.skips_bad)
    with decoding_bar() as show:
        patch = source.chosen_patch(config.patch)
        cases = build_cache(source, folder, patch=patch, progress=show, skip_bad=config.skips_bad)
    size = f"{cases.num_bytes / 2**20:.1f} MiB"
    return f"{source.name}: {len(cases.case_ids)} cases, {size} in {cases.image_path.parent}"
