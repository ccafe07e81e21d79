"""`tfunet rate`: finds a learning rate, with a picture."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tfunet import exit_codes
from tfunet.commands.parsers import add_command, add_config, config_of, path
from tfunet.process.terminal import lines_of


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this module."""
    about = "find a learning rate: train with a rising one, and draw the loss"
    rate = add_command(commands, "rate", _rate, about, takes_keys=True)
    add_config(rate)
    rate.add_argument("--out", type=path, default=Path("rates.svg"), help="picture to write")
    rate.add_argument("--lowest", type=float, default=1e-6, help="first rate; by default 1e-6")
    rate.add_argument("--highest", type=float, default=1.0, help="last rate; by default 1")
    rate.add_argument("--rates", type=int, default=100, help="steps, each with a rate; default 100")


def _rate(options: argparse.Namespace) -> int:
    if not 0 < options.lowest < options.highest:
        raise ValueError(
            f"--lowest and --highest must be positive and in order, got {options.lowest:g} and "
            f"{options.highest:g}."
        )
    if options.rates < 10:
        raise ValueError(f"--rates must be at least 10, got {options.rates}.")
    from tfunet.arguments import check_names
    from tfunet.data.early_checks import check_early
    from tfunet.machine.environment import DEFAULTS

    config = config_of(options)
    check_names(config)
    check_early(config)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from tqdm import tqdm

    from tfunet.machine.gpu_memory import cap_gpus
    from tfunet.training.rate_picture import draw_rates
    from tfunet.training.rate_range import measure_rates

    cap_gpus(config.gpu_memory)
    bar = tqdm(total=options.rates, desc="Rates", unit="step", disable=None)
    with bar, tempfile.TemporaryDirectory() as folder:
        found = measure_rates(
            config,
            Path(folder),
            lowest=options.lowest,
            highest=options.highest,
            steps=options.rates,
            progress=bar.update,
        )
    draw_rates(
        found.rates,
        found.losses,
        found.smoothed.tolist(),
        options.out,
        advised=found.advised,
        best=found.best,
    )
    print(found)
    print(lines_of(f"Picture: {options.out}"))
    return exit_codes.OK
