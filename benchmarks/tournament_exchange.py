"""Times the exchange of a model through files, and the steps of a round.

    python benchmarks/tournament_exchange.py [FOLDER]

For the default U-Net with Adam: offer a model (written, synced, renamed), and load that of another
trainer, in FOLDER (by default a temporary one), to the bit and rounded to bfloat16. Then a training
step on 4 images of 128 x 128. Prints a row of docs/tournaments.md each, and all times as JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import keras
import numpy as np

from tfunet.models.make import make_model
from tfunet.population.meeting import PopulationFolder
from tfunet.population.offers import Offer, load, publish

REPEATS, IMAGES, SIZE, ROUND_STEPS = 7, 4, 128, 50


def seconds_of(action):
    """Return the time of each of REPEATS calls, after one that is not counted."""
    times = []
    for repeat in range(REPEATS + 1):
        since = time.perf_counter()
        action(repeat + 1)
        times.append(time.perf_counter() - since)
    return times[1:]


def exchange(folder, values, *, is_rounded):
    """Return size in bytes, and the times to offer and to load a model."""
    meeting, offer = PopulationFolder(folder, 0), Offer(0.5, {"learning_rate": 1e-3}, is_rounded)
    offered = seconds_of(lambda round: publish(meeting, round, values, offer))
    loaded = seconds_of(lambda round: load(meeting, round, 0, values))
    return meeting.offer_path(1, 0).stat().st_size, offered, loaded


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    folder = parser.parse_args().folder
    model = make_model("unet", image_shape=(SIZE, SIZE, 1), num_classes=2, options={})
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, SIZE, SIZE, 1)).astype(np.float32)
    masks = rng.integers(0, 2, (IMAGES, SIZE, SIZE))
    steps = seconds_of(lambda _: model.train_on_batch(images, masks))
    step = statistics.median(steps)
    values = [np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)]
    table = {"step_seconds": steps, "parameters": model.count_params()}
    print("| exchange | MB | offer (s) | load (s) | share of a round |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        for way, is_rounded in (("weights", False), ("weights_bfloat16", True)):
            size, offered, loaded = exchange(Path(name) / way, values, is_rounded=is_rounded)
            both = statistics.median(offered) + statistics.median(loaded)
            print(
                f"| `{way}` | {size / 1e6:.0f} | {statistics.median(offered):.2f} | "
                f"{statistics.median(loaded):.2f} | {both / (both + ROUND_STEPS * step):.1%} |"
            )
            table[way] = {"bytes": size, "offer_seconds": offered, "load_seconds": loaded}
    print(json.dumps(table))


if __name__ == "__main__":
    main()
