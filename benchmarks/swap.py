"""Large-model support: how much grows under a cap, what it costs, and whether it was predicted.

    python benchmarks/swap.py predictions [--only unet2d] [--quick]
    python benchmarks/swap.py cost [--only unet3d] [--quick]
    python benchmarks/swap.py growth [--only unet3d] [--quick]

predictions: peak memory and step time of plans for models, sizes, budgets and precisions, over
what was then measured; and the step of support that has nothing to do over that without it.

cost: the budget is what a volume of n^3 needs without support. For larger volumes under it, the
step of the planner, of swapping alone and of recomputing alone over the same step with everything
kept and no cap.

growth: TensorFlow's allocator is capped at the least in which a volume of n^3 trains without
support. The largest volume that trains with it, over n^3: without splitting, over the bound that
the largest op sets, and with.

Every step counts only where its losses are those of the same step with everything kept.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import measure

STEP = Path(__file__).with_name("swap_step.py")
PEERS = ["tensorflow", "keras"]
LIMIT_SECONDS = 400
LOSS_APART = 1e-3
# (model, precision, sizes of its images). None of them was used to tune the predictions: that was
# done with unet3d 24, 32, 40, 56, unet3d_instance 40, isensee 32 and unet2d 16, 128, 160, 224. A
# 16-bit convolution without hardware for it takes ten times as long.
COMBINATIONS = (
    ("unet3d", "float32", (48, 64, 72)),
    ("unet3d", "mixed_bfloat16", (32,)),
    ("unet3d_instance", "float32", (32, 48, 56)),
    ("isensee", "float32", (48, 64)),
    ("unet2d", "float32", (192, 256, 320)),
    ("unet2d", "mixed_bfloat16", (192,)),
)
SHARES = (0.75, 0.55)
BASE = {"unet3d": 48, "isensee": 48, "unet2d": 256}
# 2.37 and 4 times the voxels, rounded to what the networks can halve.
GROWN = {"unet3d": (64, 76), "isensee": (64, 80), "unet2d": (400, 512)}
# The share of the arena that is left to its losses: what a user would try.
MARGINS = (0.2, 0.35, 0.5)
# TFLMS v2's figure for a 3D U-Net (ISMM 2019), and where the search ends.
TFLMS_GROWTH, MOST_GROWTH = 5.6, 14
GROWTH_STEP = {"unet3d": 4, "isensee": 16, "unet2d": 16}


def train(cap_mib=None, **settings):
    """Return what one fresh process found; None where it ended without a word."""
    environment = {**os.environ}
    if cap_mib is not None:
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(int(cap_mib))
    done = subprocess.run(
        [sys.executable, str(STEP), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        env=environment,
    )
    if done.returncode and cap_mib is None:
        raise SystemExit(f"{settings}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    # In a capped arena oneDNN ends the process where its own scratch does not fit.
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def check_same(runs):
    """Return how far apart the losses of the runs are; end the benchmark where it is far.

    Without op determinism the last bits differ, and a 16-bit format has few.
    """
    furthest = 0.0
    first, *others = runs.values()
    for run in others:
        apart = max(abs(a - b) for a, b in zip(first["losses"], run["losses"], strict=True))
        if apart > LOSS_APART:
            raise SystemExit(f"Losses of {run['way']} differ by {apart}.")
        furthest = max(furthest, apart)
    return furthest


def show(row):
    """Print a row while the rest is measured."""
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}))
    sys.stdout.flush()


def predictions(models, quick):
    """Return claims on predicted against measured peaks and step times."""
    rows, overheads = [], []
    for model, precision, sizes in COMBINATIONS:
        for size in sizes if model in models else ():
            settings = {"model": model, "size": size, "precision": precision}
            planned = [{"name": str(one), "way": "planner", "share": one} for one in SHARES]
            found = train(
                **settings,
                runs=[{"way": "keep"}, {"name": "fits", "way": "planner"}, *planned],
                rounds=2 if quick else 5,
            )
            runs = found["runs"]
            apart = check_same(runs)
            kept = runs["keep"]
            overheads.append(runs["fits"]["step_seconds"] / kept["step_seconds"])
            for share in SHARES:
                run = runs[str(share)]
                plan = run["plan"]
                rows.append(
                    {
                        **settings,
                        "share": share,
                        "swap": plan["swap"],
                        "recompute": plan["recompute"],
                        "within": plan["peak_mib"] <= plan["budget_mib"],
                        "peak_ratio": plan["peak_mib"] / run["peak_mib"],
                        "kept_peak_ratio": runs["fits"]["plan"]["peak_mib"] / kept["peak_mib"],
                        "time_ratio": plan["step_seconds"] / run["step_seconds"],
                        "kept_time_ratio": plan["unlimited_step_seconds"] / kept["step_seconds"],
                        "loss_apart": apart,
                        "over_kept": run["step_seconds"] / kept["step_seconds"],
                        "fits_over_kept": overheads[-1],
                        "peak_mib": run["peak_mib"],
                        "step_seconds": run["step_seconds"],
                        "planning_seconds": run["first_seconds"] - kept["first_seconds"],
                    }
                )
                show(rows[-1])
    return [
        claim("predicted peak / measured peak, furthest from 1", rows, "peak_ratio", 0.05),
        claim("predicted step / measured step, furthest from 1", rows, "time_ratio", 0.10),
        measure.verdict(
            "step with support / without, everything fits",
            overheads,
            bound=1.01,
            most=True,
            samples={"ratios": overheads},
            peers=PEERS,
        ),
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


def rank(model):
    return 2 if model.endswith("2d") else 3


def cost(models, quick):
    """Return claims on the step time of larger volumes under the need of a smaller one."""
    found = []
    ways = ("keep", "planner", "swap", "recompute")
    for model in models:
        base = BASE[model]
        for size in GROWN[model]:
            times = (size / base) ** rank(model)
            result = train(
                model=model,
                size=size,
                base_size=base,
                rounds=2 if quick else 5,
                runs=[{"way": way, "share": 1.0} for way in ways],
            )
            runs = result["runs"]
            check_same(runs)
            plan = runs["planner"]["plan"]
            peaks = {way: round(runs[way]["peak_mib"]) for way in ways}
            print(
                f"{model} {size}: {times:.2f} times the voxels, {result['need_mib']:.0f} MiB; "
                f"measured peaks {peaks}; planned {plan['peak_mib']:.0f} of "
                f"{plan['budget_mib']:.0f}, largest op {plan['floor_mib']:.0f}",
                flush=True,
            )
            for way in ways[1:]:
                pairs = zip(runs[way]["seconds"], runs["keep"]["seconds"], strict=True)
                found.append(
                    measure.verdict(
                        f"{model}, {times:.2f} times the voxels: step of {way} / all kept",
                        [one / kept for one, kept in pairs],
                        bound=1.20 if times < 3 else 1.35,
                        most=True,
                        samples={"seconds": runs[way]["seconds"], "peak_mib": peaks[way]},
                        peers=PEERS,
                    )
                )
                show({k: found[-1][k] for k in ("name", "ratio", "low", "high", "holds")})
    return found


def growth(models, quick):
    """Return claims on the largest volume that trains in a capped arena."""
    found = []
    for model in models:
        base = BASE[model]
        cap_mib = least_cap(model, base)
        floor = train(model=model, size=base, rounds=1, runs=[{"way": "whole"}])
        plan = floor["runs"]["whole"]["plan"]
        resident = floor["runs"]["whole"]["resident_mib"]
        bound = (cap_mib - resident) / plan["floor_mib"]
        claimed = f"{model}: voxels that train in {cap_mib} MiB / those that train without support"
        for way, most in (("whole", bound), ("planner", MOST_GROWTH)):
            largest, tried = grown(model, base, cap_mib, way, most, quick)
            times = (largest / base) ** rank(model)
            name = f"{claimed} ({largest} / {base}), with splitting"
            if way == "whole":
                name = (
                    f"{claimed} ({largest} / {base}), over the bound of the largest op, {bound:.2f}"
                )
            found.append(
                measure.verdict(
                    name,
                    [times / bound if way == "whole" else times],
                    bound=0.9 if way == "whole" else TFLMS_GROWTH,
                    most=False,
                    samples={"tried": tried, "times": times, "bound": bound},
                    peers=PEERS,
                )
            )
            print(name, round(times, 2), flush=True)
    return found


def grown(model, base, cap_mib, way, most, quick):
    """Return the largest size that trains, up to so many times the voxels, and what was tried."""
    largest, tried = base, {}
    step = GROWTH_STEP[model]
    too_large = step * (math.floor(base * most ** (1 / rank(model)) / step) + 1)
    while too_large - largest > step:
        size = step * round((largest + too_large) / 2 / step)
        tried[size] = fits(model, size, cap_mib, way)
        show({"model": model, "way": way, "cap_mib": cap_mib, "size": size, "fits": tried[size]})
        largest, too_large = (size, too_large) if tried[size] else (largest, size)
        if quick:
            break
    return largest, tried


def fits(model, size, cap_mib, way):
    """Whether steps of this size go through in a capped arena, with one of a few margins."""
    for margin in MARGINS if way in ("whole", "planner") else MARGINS[:1]:
        settings = {"model": model, "size": size, "margin": margin, "runs": [{"way": way}]}
        result = train(cap_mib, rounds=2, capped=True, **settings)
        if result is not None and result["fits"]:
            return True
    return False


def least_cap(model, size):
    """Return the MiB of the smallest arena, to 5 %, in which a size trains without support."""
    cap_mib = train(2**15, model=model, size=size, rounds=2, capped=True, runs=[{"way": "keep"}])
    cap_mib = math.ceil(cap_mib["arena_peak_mib"])
    while not fits(model, size, cap_mib, "keep"):
        cap_mib = math.ceil(cap_mib * 1.05)
    return cap_mib


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = {"predictions": predictions, "cost": cost, "growth": growth}
    parser.add_argument("what", choices=modes)
    parser.add_argument("--only", help="one of the models")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    options = parser.parse_args()
    models = [one for one, *_ in COMBINATIONS] if options.what == "predictions" else list(BASE)
    models = [one for one in dict.fromkeys(models) if options.only in (None, one)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    measure.show(modes[options.what](models, options.quick))


if __name__ == "__main__":
    main()
