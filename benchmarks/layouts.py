"""Measures layouts of twelve runs beside what `tfunet plan` predicts, and writes docs/layouts.md.

    python benchmarks/layouts.py --out logs/layouts [--tasks quickstart tumours] [--rounds 2]

Regret is how much longer a step of the layout takes that the plan puts first than one of the
fastest that was measured; after three measurements, of the fastest of the first three by their
first runs, judged by their later ones. What --out holds is not measured again. `--tasks` measures
some; the page has all that is there. The model was finished before the tasks that are held out
were measured.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

from tfunet.arguments import from_dict
from tfunet.bench import machine_constants
from tfunet.bench.planned import kind_of, make_plan
from tfunet.bench.short_runs import Measurement, measure
from tfunet.config.amount import MIB
from tfunet.files.atomic import write_atomic
from tfunet.plan.here import this_machine, usable_backends
from tfunet.plan.prediction import Prediction
from tfunet.plan.rank import Ranking, short_list

HERE = Path(__file__).resolve()
PAGE = HERE.parents[1] / "docs/layouts.md"
NUM_LAYOUTS = 7
# Devices of runs whose devices share cores.
SHARING = 4
NUM_BEST = 3
LABELS = "derivatives/labels/sub-{group}/micr/sub-{group}_sample-{case}_SEM_seg"
NETWORK = {
    "filters": 8,
    "levels": 3,
    "normalization": "instance",
    "activation": "leaky_relu",
}
OWN = f"{HERE.parent / 'public_networks.py'}:"
CELLS = {"data": "cells", "cpu_memory": "6GiB", "augmentation": {"flips": False}}


def cells(size: int, batch: int, cases: int = 40, **keys: Any) -> dict[str, Any]:
    return {
        **CELLS,
        "data_options": {"num_cases": cases, "size": size},
        "global_batch": batch,
        **keys,
    }


def tumours(size: int, batch: int, cases: int = 10, **keys: Any) -> dict[str, Any]:
    return {**cells(size, batch, cases, **keys), "data": "tumours"}


def unet(filters: int, levels: int, **more: Any) -> dict[str, Any]:
    return {"model_options": {"filters": filters, "levels": levels, **more}}


SEM = {
    **CELLS,
    "data": "folder",
    "data_options": {
        "root": "../shared/data/axondeepseg_sem",
        "images": "sub-{group}/micr/sub-{group}_sample-{case}_SEM.png",
        "masks": {
            "axon": f"{LABELS}-axon-manual.png",
            "myelin": f"{LABELS}-myelin-manual.png",
        },
        "threshold": 127,
        "pixel_size": {"file": "sub-{group}/micr/sub-{group}_*SEM.json", "key": "PixelSize"},
        "target_pixel_size": 0.1,
        "intensity": "zscore",
    },
    "patch": [128, 128],
    "patches_per_case": 24,
    "validation_groups": ["rat8"],
    "global_batch": 4,
    "model_options": NETWORK,
}
HIPPOCAMPUS = {
    **CELLS,
    "data": "folder",
    "data_options": {
        "root": "../shared/data/msd_hippocampus",
        "images": "imagesTr/hippocampus_{case}.nii.gz",
        "masks": "labelsTr/hippocampus_{case}.nii.gz",
        "classes": {"anterior": 1, "posterior": 2},
        "intensity": "zscore",
    },
    "patch": [32, 48, 32],
    "global_batch": 2,
    "model_options": NETWORK,
}
QUICKSTART = cells(128, 8, **unet(8, 3))
# Where a task says so, a device has half of what the run needs on one device.
HALF = {"quickstart": "56MiB", "sem": "30MiB", "hippocampus": "34MiB"}
TASKS = {
    "quickstart": QUICKSTART,
    "quickstart, half of its memory": {**QUICKSTART, "cpu_memory": HALF["quickstart"]},
    "sem": SEM,
    "sem, half of its memory": {**SEM, "cpu_memory": HALF["sem"]},
    "hippocampus": HIPPOCAMPUS,
    "hippocampus, half of its memory": {**HIPPOCAMPUS, "cpu_memory": HALF["hippocampus"]},
    "2D, large": cells(256, 4, **unet(16, 4)),
    "3D, small": tumours(32, 4, **unet(8, 2)),
    "resunet": cells(128, 4, model=f"{OWN}resunet"),
    "fcn8": cells(128, 8, model=f"{OWN}fcn8"),
    "2D, four devices on two cores": cells(128, 8, **unet(8, 3), share_cores=True),
    "3D, four devices on two cores": tumours(48, 4, **unet(8, 2), share_cores=True),
}
HELD_OUT = tuple(TASKS)[1::2]


def layouts_to_measure(ranking: Ranking) -> list[Prediction]:
    """Return the first layouts, the best of each kind, and some that lie further back."""
    chosen = short_list(ranking, NUM_BEST)
    kinds: dict[str, Prediction] = {}
    for one in ranking.fitting:
        kinds.setdefault(kind_of(one.layout), one)
    fitting = ranking.fitting
    spread = [fitting[at * len(fitting) // NUM_LAYOUTS] for at in range(1, NUM_LAYOUTS)]
    unsure = [one for one in ranking.others if one.sure > 0.05][:2]
    for one in (*kinds.values(), *unsure, *spread):
        if one not in chosen and len(chosen) < NUM_LAYOUTS:
            chosen.append(one)
    return chosen


def measured_task(keys: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return what was predicted and measured of a task's layouts."""
    config = from_dict(keys)
    begin = time.monotonic()
    devices = SHARING if config.share_cores else 0
    plan = make_plan(
        config,
        this_machine(config, num_devices=devices),
        is_here=True,
        num_devices=devices or None,
    )
    seconds = time.monotonic() - begin
    ranking = plan.ranking
    found = measure(config, layouts_to_measure(ranking), [], rounds=rounds, say=print)
    return {
        "plan_seconds": seconds,
        "num_layouts": len(ranking.fitting) + len(ranking.others) + ranking.num_refused,
        "rows": [row(one) for one in found],
    }


def row(one: Measurement) -> dict[str, Any]:
    predicted = one.predicted
    layout = predicted.layout
    # The devices of one process share an allocator. Stages are cut by times that are measured, in
    # more memory than a step takes.
    sharing = layout.num_devices if layout.backend == "mirrored" else 1
    num_bytes = 0 if layout.stages > 1 else one.num_bytes // sharing
    return {
        "layout": str(layout),
        "parts": vars(predicted.parts),
        "predicted": predicted.seconds,
        "predicted_bytes": predicted.num_bytes,
        "fits": predicted.fits,
        "measured": one.seconds,
        "measured_bytes": num_bytes,
        "failure": one.failure,
    }


def regrets(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the regret of the first layout, and of the one chosen among the first three."""
    ran = [one for one in rows if one["measured"]]
    best = min(statistics.median(one["measured"]) for one in ran)
    first = rows[0]["measured"]
    alone = statistics.median(first) / best - 1 if first else math.inf
    three = [one for one in rows[:NUM_BEST] if one["measured"]]
    if not three:
        return alone, math.inf
    chosen = min(three, key=lambda one: one["measured"][0])["measured"]
    later = min(statistics.median(one["measured"][1:] or one["measured"]) for one in ran)
    return alone, max(0.0, statistics.median(chosen[1:] or chosen) / later - 1)


def noise(rows: Sequence[dict[str, Any]]) -> float:
    """Return how much the runs of one layout differ, in the median over layouts."""
    spreads = [max(one["measured"]) / min(one["measured"]) - 1 for one in rows if one["measured"]]
    return statistics.median(spreads)


def page(tasks: dict[str, dict[str, Any]]) -> str:
    machine = machine_constants.read()
    lines = [
        "# Predicted and measured layouts",
        "",
        "`python benchmarks/layouts.py --out logs/layouts` writes this page. It measures layouts",
        "of twelve runs with short runs, in turns, and compares them with what `tfunet plan` says",
        "without measuring them. **Regret** is how much longer a step of the chosen layout takes",
        "than one of the fastest that was measured; **after three** chooses the fastest of the",
        "first three by one run of each. **Noise** is how much two runs of the same layout differ.",
        "Memory is that of a device, predicted and measured; 0 where it was not measured.",
        "",
        f"{machine.software.get('cores', '')} CPU cores, TensorFlow "
        f"{machine.software.get('tensorflow', '')}, {machine.date}.",
        "",
        "| run | layouts | measured | regret | after three | rank correlation | noise | plan (s) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, task in tasks.items():
        rows = task["rows"]
        ran = [one for one in rows if one["measured"]]
        alone, three = regrets(rows)
        tau = kendalltau(
            [one["predicted"] for one in ran],
            [statistics.median(one["measured"]) for one in ran],
        ).statistic
        held = ", held out" if name in HELD_OUT else ""
        lines.append(
            f"| {name}{held} | {task['num_layouts']:,} | {len(ran)} | {alone:.1%} | {three:.1%} | "
            f"{tau:.2f} | {noise(rows):.0%} | {task['plan_seconds']:.0f} |"
        )
    every = [one for task in tasks.values() for one in task["rows"]]
    both = [regrets(task["rows"]) for task in tasks.values()]
    ratios = [
        statistics.median(one["measured"]) / one["predicted"] for one in every if one["measured"]
    ]
    sizes = [
        one["measured_bytes"] / one["predicted_bytes"]
        for one in every
        if one["measured"] and one["measured_bytes"]
    ]
    said = [one for one in every if one["fits"]]
    unsaid = [one for one in every if not one["fits"]]
    lines += [
        "",
        f"- **Regret**: median {statistics.median(one for one, _ in both):.1%}, most "
        f"{max(one for one, _ in both):.1%}; after three measurements "
        f"{statistics.median(one for _, one in both):.1%} and {max(one for _, one in both):.1%}.",
        f"- **Steps**: measured over predicted {quantiles(ratios)} (lowest, median, highest).",
        f"- **Memory**: measured over predicted {quantiles(sizes)}; "
        f"{sum(abs(one - 1) <= 0.1 for one in sizes)} of {len(sizes)} within 10 %.",
        f"- **Fits**: {sum(bool(one['measured']) for one in said)} of {len(said)} that were said "
        f"to fit ran; {sum(bool(one['measured']) for one in unsaid)} of {len(unsaid)} that were "
        "not said to fit ran, too.",
        "",
    ]
    for name, task in tasks.items():
        columns = ("layout", "predicted (ms)", "measured (ms)", "predicted (MiB)", "measured (MiB)")
        lines += [f"## {name}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for one in task["rows"]:
            took = ", ".join(f"{1e3 * each:.0f}" for each in one["measured"]) or one["failure"]
            lines.append(
                f"| {one['layout']} | {1e3 * one['predicted']:.0f} | {took} | "
                f"{one['predicted_bytes'] / MIB:,.0f} | {one['measured_bytes'] / MIB:,.0f} |"
            )
        lines.append("")
    return "\n".join(lines)


def quantiles(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return ", ".join(f"{one:.2f}" for one in (min(values), statistics.median(values), max(values)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    constants = machine_constants.read()
    if constants.is_stale():
        constants = machine_constants.measured(constants, usable_backends(), print, [])
    # What was measured of these runs before is not known to their plans.
    machine_constants.keep(replace(constants, steps=[]))
    for name in options.tasks:
        path = options.out / f"{list(TASKS).index(name)}.json"
        if not path.exists():
            print(f"{name} ...", flush=True)
            write_atomic(path, json.dumps(measured_task(TASKS[name], options.rounds), indent=1))
    there = {
        name: json.loads(path.read_text())
        for number, name in enumerate(TASKS)
        if (path := options.out / f"{number}.json").exists()
    }
    write_atomic(PAGE, page(there))
    print(page(there))


if __name__ == "__main__":
    main()
