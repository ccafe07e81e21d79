"""`tfunet data`: check a data set, draw samples of it, decode it, pack it."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_config, config_of, path
from tfunet.data.class_lines import inline_table
from tfunet.process.terminal import counted, lines_of, reading

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    data = commands.add_parser("data", help="check, draw, decode or pack a data set")
    actions = data.add_subparsers(metavar="ACTION", required=True)
    check = add_command(
        actions,
        "check",
        _check,
        "read every case once, and report the contents and all defects",
        takes_keys=True,
    )
    check.epilog = "Exit codes: 0 no defects (there may be warnings), 2 defects."
    add_config(check)
    check.add_argument("--json", action="store_true", help="print JSON, with every case")

    show = add_command(
        actions, "show", _show, "draw samples before and after augmentation", takes_keys=True
    )
    add_config(show)
    show.add_argument(
        "--out",
        type=path,
        help="file to write; by default samples.png, or samples-2.png and so on where it exists",
    )
    show.add_argument(
        "--num_samples", type=int, default=4, help="how many samples of the epoch, from its first"
    )
    show.add_argument("--epoch", type=int, default=0, help="epoch, counted from 0")
    show.add_argument("--each", action="store_true", help="draw one sample under each augmentation")

    cache = add_command(
        actions, "cache", _cache, "decode a data set, list or clear the cache", takes_keys=True
    )
    add_config(cache, nargs="?")
    cache.add_argument("--list", action="store_true", help="list the decoded data sets")
    cache.add_argument(
        "--clear", action="store_true", help="remove the decoded data sets that no process uses"
    )

    pack = add_command(
        actions,
        "pack",
        _pack,
        'write a data set into few large files, which data = "packed" reads',
        takes_keys=True,
    )
    add_config(pack)
    pack.add_argument("--out", type=path, required=True, help="folder to write, or to go on with")


def _check(options: argparse.Namespace) -> int:
    from tfunet.data.cache import cache_folder, noting_cases
    from tfunet.data.check import DataReport, check, report_text
    from tfunet.data.defects import DefectsError
    from tfunet.data.source import open_source
    from tfunet.data.split import split_of

    config = config_of(options)
    try:
        source = open_source(config.data, config.data_options, skip_bad=True)
    except DefectsError as error:  # No case is left to read.
        report = DataReport.of_nothing(error)
    else:
        source.check_images("tfunet data check")
        split, refusal = None, ""
        try:
            split = split_of(config, source)
        except ValueError as error:
            refusal = str(
                error.__cause__ or error
            )  # The cause alone: the report names the defects.
        progress = reading("images and masks", "case")
        with noting_cases(source, cache_folder(config.cache_dir)) as note:
            report = check(source, split, refusal=refusal, progress=progress, note=note)
    as_json = options.json
    print(json.dumps(report.to_json(), indent=1) if as_json else lines_of(report_text(report)))
    return exit_codes.BAD_INPUT if report.defects else exit_codes.OK


def _show(options: argparse.Namespace) -> int:
    config = config_of(options)
    from tfunet.data.sample_pictures import show

    out = options.out or _new_picture(Path("samples.png"))
    show(
        config,
        out,
        num_samples=options.num_samples,
        epoch=options.epoch,
        each=options.each,
    )
    print(lines_of(f"Picture: {out}"))
    return exit_codes.OK


def _new_picture(path: Path) -> Path:
    """Return this path, or one with a number that is not taken."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
    every = itertools.chain((path,), numbered)
    return next(
        candidate for candidate in every if not (candidate.exists() or candidate.is_symlink())
    )


def _cache(options: argparse.Namespace) -> int:
    from tfunet.data.cache import cache_folder
    from tfunet.data.cache_eviction import clear, listing
    from tfunet.files import remote, remote_room

    config = config_of(options)
    folder = cache_folder(config.cache_dir)
    if options.clear:
        removed, used = clear(folder)
        print(f"Removed {removed} data sets from {folder}; {used} are in use.")
        if freed := remote_room.clear(remote.folder()):
            print(f"Removed {freed} files that were fetched into {remote.folder()}.")
    if options.list:
        print(lines_of(listing(folder)))
        if held := remote_room.held(remote.folder()):
            print(lines_of(held))
    if not (options.clear or options.list):
        if options.config is None:
            raise ValueError("Name the configuration to decode, or give --list or --clear.")
        print(lines_of(_build_cache(config)))
    return exit_codes.OK


def _pack(options: argparse.Namespace) -> int:
    from tfunet.data.packing import pack
    from tfunet.data.source import open_source
    from tfunet.process.terminal import decoding_bar

    config, place = config_of(options), options.out
    words = ["tfunet", "data", "pack", options.config, *options.rest, "--out", place]
    source = open_source(config.data, config.data_options, skip_bad=config.skips_bad)
    with decoding_bar() as show:
        index = pack(
            source,
            place,
            command=shlex.join(map(str, words)),
            progress=show,
            skip_bad=config.skips_bad,
        )
    files = [file for file in place.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 2**20
    num_cases = counted(len(index.case_ids), "case")
    print(lines_of(f"{index.name}: {num_cases}, {size:.1f} MiB in {len(files)} files in {place}"))
    print(lines_of(f'data = "packed", data_options = {inline_table({"root": str(place)})}'))
    return exit_codes.OK


def _build_cache(config: RunConfig) -> str:
    from tfunet.data.cache import cache_folder, cache_key
    from tfunet.data.task import open_task

    task = open_task(config)
    task.source.check_images("the cache")
    cases = task.decode()
    home = cache_folder(config.cache_dir) / cache_key(task.source)
    size = f"{sum(file.stat().st_size for file in home.iterdir()) / 2**20:.1f} MiB"
    return f"{task.source.name}: {len(cases.case_ids)} cases, {size} in {home}"
