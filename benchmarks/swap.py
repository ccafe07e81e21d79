"""Large-model support: how much grows under a cap, what it costs, and whether it was predicted.

    python benchmarks/swap.py predictions [--quick]
    python benchmarks/swap.py cost [--quick]

predictions: peak memory and step time of plans for models, sizes, budgets and precisions, beside
what was then measured; each in a fresh process, and only where losses and weights are those of
the same run with everything kept.

cost: the budget is what a volume of n^3 needs without support. For larger volumes under it: the
step time of the planner, of swapping alone and of recomputing alone, over that of the same step
with everything kept and no cap, interleaved; and of keras.RematScope, with its own memory.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

import measure

STEP = Path(__file__).with_name("swap_step.py")
PEERS = ["tensorflow", "keras"]
LIMIT_SECONDS = 600
# (model, sizes of its images)
SIZES = (("unet3d", (32, 48)), ("unet3d_instance", (32, 40)), ("isensee", (32, 48)))
SIZES_2D = (("unet2d", (192, 256)),)
SHARES = (0.8, 0.6, 0.45)
BASE = {"unet3d": 48, "isensee": 48, "unet2d": 256}
# 2.37 and 4 times the voxels, rounded to what the networks can halve.
GROWN = {"unet3d": (64, 76), "isensee": (64, 80), "unet2d": (400, 512)}


def step(**settings):
    """Return what one fresh process found."""
    done = subprocess.run(
        [sys.executable, str(STEP), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{settings}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def need(**settings):
    """Return the MiB that a step needs with everything kept, weights included, as predicted."""
    found = step(**settings, way="planner", budget_mib=2**20, steps=1, profile=False)
    return found["plan"]["unlimited_mib"] + found["resident_mib"]


def predictions(quick):
    """Return claims on predicted against measured peaks and step times."""
    combinations = [
        {"model": model, "size": size, "precision": precision}
        for model, sizes in (*SIZES, *SIZES_2D)
        for size in sizes
        for precision in ("float32", "mixed_bfloat16")
        # A 16-bit convolution without hardware for it takes ten times as long.
        if precision == "float32" or size == min(sizes)
    ]
    rows = []
    for settings in combinations[:2] if quick else combinations:
        kept = step(**settings, way="keep")
        whole = need(**settings)
        for share in SHARES[-1:] if quick else SHARES:
            found = step(**settings, way="planner", budget_mib=share * whole)
            check_same(kept, found)
            plan = found["plan"]
            rows.append(
                {
                    **settings,
                    "share": share,
                    "swap": plan["swap"],
                    "recompute": plan["recompute"],
                    "within": plan["peak_mib"] <= plan["budget_mib"],
                    "peak_ratio": plan["peak_mib"] / found["peak_mib"],
                    "time_ratio": plan["step_seconds"] / found["step_seconds"],
                    "over_kept": found["step_seconds"] / kept["step_seconds"],
                    "peak_mib": found["peak_mib"],
                    "step_seconds": found["step_seconds"],
                }
            )
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()})
            sys.stdout.flush()
    return [
        claim("predicted peak / measured peak, furthest from 1", rows, "peak_ratio", 0.05),
        claim("predicted step / measured step, furthest from 1", rows, "time_ratio", 0.10),
    ]


def claim(name, rows, key, bound):
    """Return the claim that a ratio is within a bound of 1 in every row."""
    ratios = [row[key] for row in rows]
    worst = max(ratios, key=lambda one: abs(one - 1))
    found = measure.verdict(name, [worst], bound=bound, most=True, samples={}, peers=PEERS)
    inside = sum(abs(one - 1) <= bound for one in ratios)
    return {
        **found,
        "low": round(min(ratios), 4),
        "high": round(max(ratios), 4),
        "holds": inside == len(ratios),
        "name": f"{name} ({inside} of {len(ratios)} within {bound:.0%}, median "
        f"{statistics.median(ratios):.3f})",
        "samples": rows,
    }


def check_same(kept, found):
    """End the benchmark unless two runs computed the same."""
    apart = max(abs(a - b) for a, b in zip(kept["losses"], found["losses"], strict=True))
    if apart > 1e-6:
        raise SystemExit(f"Losses differ by {apart}: {found}")


def cost(quick):
    """Return claims on the step time of larger volumes under the need of a smaller one."""
    drawn = random.Random(0)
    found = []
    for model, base in list(BASE.items())[: 1 if quick else None]:
        cap = need(model=model, size=base)
        rank = 2 if model.endswith("2d") else 3
        for size in GROWN[model]:
            times = (size / base) ** rank
            ways = ["keep", "planner", "swap", "recompute", "remat"]
            rounds = []
            peaks = {}
            for _ in range(1 if quick else 3):
                drawn.shuffle(ways)
                one = {
                    way: step(model=model, size=size, way=way, budget_mib=cap, profile=not rounds)
                    for way in ways
                }
                for way in ways[1:]:
                    check_same(one[ways[0]], one[way])
                rounds.append({way: one[way]["step_seconds"] for way in ways})
                peaks = peaks or {way: round(one[way]["peak_mib"]) for way in ways}
                within = one["planner"]["plan"]
            print(
                f"{model} {size}: {times:.2f} times the voxels, {cap:.0f} MiB; measured peaks "
                f"{peaks}; planned {within['peak_mib']:.0f} of {within['budget_mib']:.0f}, "
                f"largest op {within['floor_mib']:.0f}",
                flush=True,
            )
            for way in ("planner", "swap", "recompute", "remat"):
                found.append(
                    measure.verdict(
                        f"{model}, {times:.2f} times the voxels: step of {way} / all kept",
                        [one[way] / one["keep"] for one in rounds],
                        bound=1.20 if times < 3 else 1.35,
                        most=True,
                        samples={"seconds": rounds, "peak_mib": peaks},
                        peers=PEERS,
                    )
                )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["predictions", "cost"])
    parser.add_argument("--quick", action="store_true", help="fewer, for a look")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    measure.show({"predictions": predictions, "cost": cost}[options.what](options.quick))


if __name__ == "__main__":
    main()
