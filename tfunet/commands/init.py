"""`tfunet init`: a first configuration for a folder of images and masks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, path
from tfunet.process.terminal import lines_of, reading

if TYPE_CHECKING:
    from tfunet.data.discovery.run_file import RunFile


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "write a first run.toml for a folder of images and masks"
    init = add_command(commands, "init", _init, about)
    init.add_argument("folder", help="folder with images and masks")
    add_data_arguments(init)


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file to write, and what the names of a folder's files may not say."""
    parser.add_argument(
        "--out", type=path, default=Path("run.toml"), help="file to write; never overwritten"
    )
    for kind in ("images", "masks"):
        parser.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="PATTERN",
            help=f"pattern of the {kind}, such as '{kind}/{{case}}.png', if the names do not say "
            "it; repeat it for " + ("several channels" if kind == "images" else "several classes"),
        )
    parser.add_argument(
        "--labels",
        choices=("classes", "objects"),
        help="what the numbers in the masks are, if that is not clear",
    )


def given_data(options: argparse.Namespace) -> dict[str, Any]:
    """Return these arguments for `describe_folder` and `describe_data`, with a bar."""
    return {
        "images": options.images,
        "masks": options.masks,
        "labels": options.labels,
        "progress": reading("masks", "file"),
    }


def check_new(out: Path) -> None:
    """Raise ValueError if a file to write is there already."""
    if out.exists() or out.is_symlink():
        raise ValueError(
            f"{out} is there already, and is not overwritten. Choose another --out, or remove it."
        )


def write_run(run: RunFile, out: Path, head: list[str]) -> None:
    """Write a configuration, with a comment at its head, into a new file."""
    from tfunet.files.atomic import writing
    from tfunet.files.regular import open_regular

    head = [
        *head,
        f"tfunet data check {out}   reads everything once, and lists what is wrong",
        f"tfunet data show {out}    draws samples with their masks",
        f"tfunet train {out}        trains",
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with writing(out), os.fdopen(open_regular(out, flags), "w", encoding="utf-8") as file:
        file.write(run.text(head))
    print(lines_of(f"Wrote {out}. Look at it, then: tfunet data check {out}"))


def _init(options: argparse.Namespace) -> int:
    from tfunet.data.discovery.describe import check_folder, describe_folder

    check_folder(options.folder)
    check_new(options.out)
    run = describe_folder(options.folder, **given_data(options))
    print(lines_of(run.summary()))
    source = lines_of(options.folder)
    head = [f"Written by `tfunet init` from {source}. Every line may be changed."]
    write_run(run, options.out, head)
    return exit_codes.OK
