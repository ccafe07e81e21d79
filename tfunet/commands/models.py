"""`tfunet models`: list the models, describe one, or plan its stages or tiles."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, path, sizes, toml_options
from tfunet.process.terminal import lines_of

SCHEDULE, MICRO_BATCHES, DEVICE = "1f1b", 8, "v100-nvlink2"


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this module."""
    models = add_command(commands, "models", _models, "list the models, or describe one")
    actions = models.add_subparsers(metavar="ACTION")
    add_command(actions, "list", _models, "list the models, as `tfunet models` does")
    show = add_command(
        actions, "show", _models_show, "print the levels, shapes, parameters and memory of a model"
    )
    show.add_argument("name", help="a name that `tfunet models` lists, or 'package.module:build'")
    show.add_argument(
        "--shape",
        type=sizes,
        help="spatial sizes and channels, such as 128,128,1; by default those of docs/models.md",
    )
    show.add_argument("--classes", type=int, help="classes, with the background; by default 2")
    show.add_argument(
        "--batch",
        type=int,
        help="samples in a batch, for the memory; by default 1, with --stages one a micro-batch",
    )
    show.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the builder, with a TOML value: filters=8; can be repeated",
    )
    show.add_argument("--stages", type=int, help="plan the model as a pipeline of so many stages")
    show.add_argument(
        "--micro_batches", type=int, help=f"parts of a batch; by default {MICRO_BATCHES}"
    )
    show.add_argument(
        "--recompute", action="store_true", help="keep only what stages are given, as in training"
    )
    show.add_argument("--schedule", help=f"gpipe, 1f1b or v; by default {SCHEDULE}")
    show.add_argument(
        "--device", help=f"for which times are predicted, as in `swap plan`; by default {DEVICE}"
    )
    show.add_argument(
        "--measure", action="store_true", help="time the layers here instead, each alone"
    )
    show.add_argument(
        "--link", metavar="10GB", help="bytes a second between devices; by default the device's"
    )
    show.add_argument("--out", type=path, help="picture of the schedule: .svg, .png or .pdf")
    show.add_argument(
        "--image", type=sizes, help="plan training on tiles of an image, such as 10000,10000"
    )
    show.add_argument("--memory", metavar="16GiB", help="what a device has, for stages and tiles")


def _models(options: argparse.Namespace) -> int:
    from tfunet.models import list_models

    print(list_models())
    return exit_codes.OK


def _models_show(options: argparse.Namespace) -> int:
    _check(options)
    shape, classes = _shape_and_classes(options)
    model: dict[str, Any] = {
        "image_shape": shape,
        "num_classes": classes,
        "options": toml_options(options.option),
    }
    if options.stages is not None:
        print(lines_of(_stages(options, model)))
    elif options.image is not None:
        print(lines_of(_tiles(options, model)))
    else:
        from tfunet.models.describe import describe

        batch = 1 if options.batch is None else options.batch
        print(lines_of(describe(options.name, batch=batch, **model)))
    return exit_codes.OK


def _check(options: argparse.Namespace) -> None:
    """Refuse options that go with others which were not given."""
    if options.stages is not None and options.image is not None:
        raise ValueError("Give --stages or --image, not both: each prints a plan of its own.")
    if options.image is not None and options.memory is None:
        raise ValueError("--image needs --memory, what a device has, such as --memory 16GiB.")
    for name in ("micro_batches", "schedule", "device", "link", "out", "measure", "recompute"):
        if getattr(options, name) and options.stages is None:
            raise ValueError(f"--{name} is for a pipeline: give --stages, too.")
    if options.memory is not None and options.stages is None and options.image is None:
        raise ValueError("--memory is for a plan: give --stages or --image, too.")
    if options.image is not None and options.batch is not None:
        raise ValueError("--image plans one tile a device: leave out --batch.")
    if options.measure and options.device is not None:
        raise ValueError("Give --measure (times of this machine) or --device, not both.")
    if options.measure and options.link is None:
        raise ValueError("--measure times no link: give --link, such as --link 10GB.")


def _shape_and_classes(options: argparse.Namespace) -> tuple[Sequence[int], int]:
    from tfunet.models import EXAMPLES

    shape, classes = options.shape, 2
    if shape is None:
        if options.name not in EXAMPLES:
            raise ValueError(
                f"The size of an image for {options.name!r} is not known: give --shape, such as "
                "--shape 128,128,1."
            )
        shape, classes = EXAMPLES[options.name]
    return shape, classes if options.classes is None else options.classes


def _stages(options: argparse.Namespace, model: dict[str, Any]) -> str:
    from tfunet.config.amount import in_bytes
    from tfunet.config.words import check_known
    from tfunet.performance.devices import DEVICES
    from tfunet.pipeline.schedules import check_schedule
    from tfunet.pipeline.simulation import Link
    from tfunet.swap.plan.costs import COPY_START_SECONDS

    schedule = SCHEDULE if options.schedule is None else options.schedule
    micro_batches = MICRO_BATCHES if options.micro_batches is None else options.micro_batches
    check_schedule(schedule, micro_batches)
    batch = micro_batches if options.batch is None else options.batch
    if batch < 1 or batch % micro_batches:
        raise ValueError(
            f"A batch of {batch} cannot be cut into {micro_batches} micro-batches of as many "
            "samples each. Let --batch be a multiple of --micro_batches."
        )
    device_name = DEVICE if options.device is None else options.device
    check_known("device", device_name, DEVICES)
    device = None if options.measure else DEVICES[device_name]
    memory_bytes = None if options.memory is None else in_bytes("--memory", options.memory)
    rate = DEVICES[device_name].link_bytes_per_second
    if options.link is not None:
        rate = in_bytes("--link", options.link)
        if rate < 1:
            raise ValueError(f"--link must be at least 1 byte a second, got {options.link!r}.")

    from tfunet.performance.layer_costs import layer_costs, symbolic_model
    from tfunet.performance.stages import plan_stages, stages_text
    from tfunet.pipeline.drawing import draw
    from tfunet.pipeline.network import read_network

    network = read_network(symbolic_model(options.name, **model))
    chain = layer_costs(network, batch // micro_batches, device)
    plan = plan_stages(
        chain,
        options.stages,
        schedule=schedule,
        micro_batches=micro_batches,
        link=Link(bytes_per_second=rate, seconds=COPY_START_SECONDS),
        memory_bytes=memory_bytes,
        recompute=options.recompute,
    )
    where = (
        "measured on this machine, each op alone"
        if device is None
        else f"predicted for {device_name} ({device.source})"
    )
    shape = " x ".join(map(str, model["image_shape"]))
    costs_from = (
        f"{len(chain.layers)} layers, images {shape}, batch {batch}. Times are {where}; "
        f"{rate / 1e9:g} GB/s between devices."
    )
    text = stages_text(
        chain, plan, title=options.name, costs_from=costs_from, memory_bytes=memory_bytes
    )
    if options.out is not None:
        draw(plan.step, f"{options.name}: {options.stages} stages, {schedule}", options.out)
        text += f"\nPicture: {options.out}"
    return text


def _tiles(options: argparse.Namespace, model: dict[str, Any]) -> str:
    from tfunet.config.amount import in_bytes

    memory_bytes = in_bytes("--memory", options.memory)

    from tfunet.performance.devices import DEVICES
    from tfunet.performance.layer_costs import layer_costs, symbolic_model
    from tfunet.performance.tilings import tilings_text
    from tfunet.pipeline.network import read_network

    built = symbolic_model(options.name, **model)
    chain = layer_costs(read_network(built), 1, DEVICES[DEVICE])
    return tilings_text(options.name, built, chain, image=options.image, memory_bytes=memory_bytes)
