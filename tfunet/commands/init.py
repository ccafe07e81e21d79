"""`tfunet init`: a first configuration for a folder of images and masks."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path

from tfunet import exit_codes
from tfunet.commands.parsers import add_command
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "write a first run.toml for a folder of images and masks"
    init = add_command(commands, "init", _init, about)
    init.add_argument("folder", help="folder with images and masks")
    init.add_argument(
        "--out", type=Path, default=Path("run.toml"), help="file to write; never overwritten"
    )
    for kind in ("images", "masks"):
        init.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="PATTERN",
            help=f"pattern of the {kind}, such as '{kind}/{{case}}.png', if the names do not say "
            "it; repeat it for " + ("several channels" if kind == "images" else "several classes"),
        )
    init.add_argument(
        "--labels",
        choices=("classes", "objects"),
        help="what the numbers in the masks are, if that is not clear",
    )


def _init(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from tfunet.data.discovery.run_file import describe_folder
    from tfunet.files.atomic import writing
    from tfunet.files.regular import open_regular

    out = options.out
    if out.exists() or out.is_symlink():
        raise ValueError(
            f"{out} is there already, and is not overwritten. Choose another --out, or remove it."
        )
    run = describe_folder(
        options.folder,
        images=options.images,
        masks=options.masks,
        labels=options.labels,
        progress=functools.partial(tqdm, desc="Reading masks", unit="file", disable=None),
    )
    head = [
        f"Written by `tfunet init` from {lines_of(options.folder)}. Every line may be changed.",
        f"tfunet data check {out}   reads everything once, and lists what is wrong",
        f"tfunet data show {out}    draws samples with their masks",
        f"tfunet train {out}        trains",
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with writing(out), os.fdopen(open_regular(out, flags), "w", encoding="utf-8") as file:
        file.write(run.text(head))
    print(lines_of(run.summary()))
    print(f"Wrote {out}. Look at it, then: tfunet data check {out}")
    return exit_codes.OK
