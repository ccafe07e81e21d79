"""`tfunet auto`: settings for a data set, by published rules, that fill a device's memory."""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfunet import exit_codes
from tfunet.commands.init import add_data_arguments, check_new, given_data, write_run
from tfunet.commands.parsers import add_command, add_trust
from tfunet.process.terminal import counted, lines_of, reading

if TYPE_CHECKING:
    from tfunet.config.run import RunConfig
    from tfunet.data.discovery.automatic import Settings
    from tfunet.data.discovery.run_file import RunFile
    from tfunet.performance.largest_fitting import Candidate

STEPS = 1000
# The share of the memory that may be filled. The rest is for gaps between blocks, and for what
# convolutions take for a moment.
SHARE = 0.85


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "choose settings from the data by published rules, and fill the device's memory"
    auto = add_command(commands, "auto", _auto, about)
    auto.add_argument("data", help="folder with images and masks, or a run.toml that names them")
    auto.add_argument(
        "--memory",
        metavar="8GiB",
        help="memory for a training step; by default that of the GPU, or half of the free memory",
    )
    auto.add_argument("--device", help="device whose memory to fill, such as h100")
    auto.add_argument(
        "--steps", type=int, default=STEPS, help=f"optimizer steps; by default {STEPS}"
    )
    add_data_arguments(auto)
    add_trust(auto)


def _auto(options: argparse.Namespace) -> int:
    from tfunet.data.discovery.describe import check_folder

    if not options.data.endswith(".toml"):
        check_folder(options.data)
    check_new(options.out)
    if options.steps < 1:
        raise ValueError(f"--steps must be at least 1, got {options.steps}.")
    memory_bytes = _given_memory(options)
    run = _data(options)
    settings = _settings(run, options.steps)
    # TensorFlow is imported from here on: whatever is wrong with the data is known before.
    from tfunet.config.amount import MIB

    print("Tracing training steps, to predict the memory that they take ...", flush=True)
    if memory_bytes is None:
        memory_bytes = _found_memory()
    run, total_bytes = _filled(settings, memory_bytes)
    needs = (
        f"A step is predicted to take {total_bytes / MIB:,.1f} MiB of "
        f"{memory_bytes / MIB:,.1f} MiB."
    )
    shown = {**run.keys, **run.model_options, **run.options}
    named = ("patch", "replica_batch", "levels", "filters", "normalization", "intensity")
    print(lines_of(run.summary()))
    print(", ".join(f"{key} {shown[key][0]}" for key in named if key in shown))
    print(needs)
    source = lines_of(options.data)
    head = [
        f"Written by `tfunet auto` from {source}. Every line may be changed.",
        f"{needs} {SHARE:.0%} of it may be filled.",
        "nnU-Net is Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z, in the form",
        "of its version 2. docs/auto.md has all rules.",
    ]
    write_run(run, options.out, head)
    return exit_codes.OK


def _given_memory(options: argparse.Namespace) -> int | None:
    from tfunet.config.amount import in_bytes
    from tfunet.performance.devices import DEVICES, known_device

    if options.memory is not None and options.device is not None:
        raise ValueError("Give --memory or --device, not both: each says what may be filled.")
    if options.device is not None:
        return DEVICES[known_device(options.device)].memory_bytes
    return None if options.memory is None else in_bytes("--memory", options.memory)


def _found_memory() -> int:
    """Return the memory of this machine's GPU, or half of the free memory without one."""
    import psutil

    from tfunet.machine.device import device_bytes

    return device_bytes() or psutil.virtual_memory().available // 2


def _data(options: argparse.Namespace) -> RunFile:
    """Return what describes the data that the command names."""
    from tfunet.arguments import check_names, parse
    from tfunet.data.defects import DefectsError
    from tfunet.data.discovery.automatic import not_taken, of_config
    from tfunet.data.discovery.describe import describe_data
    from tfunet.data.source import open_source

    path = Path(options.data)
    if path.suffix != ".toml":
        run, _ = describe_data(options.data, **given_data(options))
        if run.source.defects:
            raise DefectsError(run.source.name, run.source.defects, run.source.found)
        return run
    if options.images or options.masks or options.labels:
        raise ValueError(
            f"{path} says which files are images and masks. Leave out --images, --masks and "
            "--labels, or change it."
        )
    config = parse(["--config", str(path)])
    check_names(config)
    source = open_source(config.data, config.data_options, skip_bad=config.skips_bad)
    run = of_config(config, source, path)
    if keys := not_taken(config):
        print(
            f"Not taken from {path}: {', '.join(keys)}. They belong to the network, batch, epochs "
            "and learning rates there."
        )
    return run


def _settings(run: RunFile, steps: int) -> Settings:
    from tfunet.data.discovery.automatic import Settings
    from tfunet.data.discovery.fingerprint import fingerprint
    from tfunet.data.split import split_of

    train = split_of(_config(run), run.source).train
    progress = reading("images and masks", "case")
    return Settings.of(run, fingerprint(run.source, train, progress=progress), steps)


def _config(run: RunFile) -> RunConfig:
    from tfunet.arguments import from_dict

    return from_dict(tomllib.loads(run.text([])))


def _filled(settings: Settings, memory_bytes: int) -> tuple[RunFile, int]:
    """Return the largest network and batch that fit, and the bytes of a step."""
    from tfunet.data.discovery.plan_rules import LEAST_BATCH, networks
    from tfunet.data.task import Task
    from tfunet.performance.largest_fitting import Candidate, largest_fitting
    from tfunet.plan.gather import gather
    from tfunet.plan.layout import Layout
    from tfunet.plan.machine import of_cores
    from tfunet.plan.predict import Predictor

    def completed(candidate: Candidate) -> RunFile:
        return settings.complete(
            patch=candidate.patch,
            levels=candidate.levels,
            filters=candidate.filters,
            batch=candidate.batch,
        )

    limit = int(SHARE * memory_bytes)

    def predict(candidate: Candidate) -> int:
        run = completed(candidate)
        task = Task(config=_config(run), source=run.source, patch=candidate.patch)
        shape = " x ".join(map(str, candidate.patch))
        print(
            f"Tracing a step of {counted(candidate.batch, 'sample')} of {shape}, with "
            f"{counted(candidate.levels, 'level')} and {counted(candidate.filters, 'filter')} ...",
            file=sys.stderr,
            end="",
            flush=True,
        )
        # On any device SHARE leaves room for what convolutions work in.
        machine = replace(of_cores(1, memory_bytes), is_cpu=False)
        facts = gather(task.config, machine.device, task=task)
        needed = Predictor(facts, machine).predict(Layout()).num_bytes
        print(f" needs {needed / 2**20:,.0f} MiB of {limit / 2**20:,.0f}.", file=sys.stderr)
        return needed

    fitting = largest_fitting(
        [
            Candidate(patch=patch, levels=levels, filters=filters, batch=LEAST_BATCH)
            for patch, levels, filters in networks(settings.first_patch, settings.median)
        ],
        predict,
        limit,
        lambda candidate: settings.most_batch(candidate.patch),
    )
    return completed(fitting.candidate), fitting.total_bytes
