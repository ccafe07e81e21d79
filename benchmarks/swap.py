"""Large-model support: how much grows under a cap, what it costs, and whether it was predicted.

    python benchmarks/swap.py predictions [--only unet2d] [--quick]
    python benchmarks/swap.py cost [--only unet3d] [--quick]
    python benchmarks/swap.py growth [--only unet3d] [--quick]

predictions: peak memory and step time of plans for models, sizes, budgets and precisions, over
what was then measured; and the step of support that has nothing to do over that without it.

cost: the budget is what a smaller volume needs without support. For a larger one under it, at 1 to
8 times its voxels, the step of the planner, of swapping alone and of recomputing alone over the
same step with everything kept and no cap. keras.RematScope in its modes and grappler's memory
optimizer take no budget: the planner has the peak that they reach.

growth: how much larger a volume, or a batch, trains in a capped arena (swap_growth.py).

Every step counts only where its losses are those of the same step with everything kept, its
gradients added up in the same order (TensorFlow's own order in a large step hangs on when each
arrives). A peer's losses must be those of the step with everything kept as TensorFlow has it. Slabs
round sums in other last bits, and a network may make much of that: where the losses part by more
than is allowed, so do those of weights that were nudged by a last bit, half as much or more; and
the losses of the first step, which no update has parted, are equal to 1 in 100,000.
"""

import argparse
import os
import statistics

import measure
from swap_growth import BASE, growth
from swap_runs import PEERS, losses_apart, rank, show, train

LOSS_APART = 1e-3
FIRST_LOSS_APART = 1e-5
# How many times as far as those of nudged weights losses may part.
OF_NUDGED = 2
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
# A size, and those whose need is the budget: 1, 2.37, 4 and 8 times the voxels, as near as the
# networks' halvings let it.
CURVES = {
    "unet3d": (64, (64, 48, 40, 32)),
    "isensee": (64, (64, 48, 32)),
    "unet2d": (512, (512, 336, 256, 176)),
}
# What takes no budget (swap_peers.py). keras.RematScope("larger_than") is left out: with Keras 3.15
# the step of a model with a concatenation ends in an error in it.
PEER_WAYS = (
    "remat_full",
    "remat_activations",
    "remat_list_of_layers",
    "grappler_heuristics",
    "grappler_recomputation_heuristics",
    "grappler_scheduling_heuristics",
    "grappler_swapping_heuristics",
)
# What two medians of one and the same step differ by, on a machine that does nothing else.
SAME = 1.02
# A way that is so much above the budget, by what was measured, does not count as within it: as far
# off as a predicted peak may be.
NEAR = 1.05


def check_same(first, *others):
    """Return how far apart the losses of the runs are; end the benchmark where it is far.

    In slabs the last bits differ, and a 16-bit format has few.
    """
    for run in others:
        if losses_apart(first, run) > LOSS_APART:
            raise SystemExit(f"Losses of {run['way']} differ by {losses_apart(first, run)}.")
    return max(losses_apart(first, run) for run in others)


def predictions(models, quick):
    """Return claims on predicted against measured peaks and step times."""
    rows, overheads = [], []
    for model, precision, sizes in COMBINATIONS:
        for size in sizes if model in models else ():
            settings = {"model": model, "size": size, "precision": precision}
            planned = [{"name": str(share), "way": "planner", "share": share} for share in SHARES]
            results = train(
                **settings,
                runs=[
                    {"way": "keep"},
                    {"way": "reference"},
                    {"name": "fits", "way": "planner"},
                    *planned,
                ],
                rounds=2 if quick else 5,
            )
            runs = results["runs"]
            kept = runs["keep"]
            check_same(kept, runs["fits"])  # which is the graph as it was
            apart = check_same(runs["reference"], *(runs[str(share)] for share in SHARES))
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
                        "least_time_ratio": plan["step_seconds"] / min(run["seconds"]),
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
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    made = measure.verdict(name, [worst], bound=bound, most=True, samples={}, peers=PEERS)
    inside = sum(abs(ratio - 1) <= bound for ratio in ratios)
    return {
        **made,
        "low": round(min(ratios), 4),
        "high": round(max(ratios), 4),
        "holds": inside == len(ratios),
        "name": f"{name} ({inside} of {len(ratios)} within {bound:.0%}, median "
        f"{statistics.median(ratios):.3f})",
        "samples": rows,
    }


def cost(models, quick):
    """Return claims on the step time of larger volumes under the need of a smaller one."""
    rows = []
    rounds = 2 if quick else 7
    for model in models:
        size, bases = CURVES[model]
        ways = ("planner", "swap", "recompute")
        for base in bases:
            runs = [{"way": way, "base_size": base, "share": 1.0} for way in ways]
            runs = [{"way": "keep"}, {"way": "reference"}, *runs]
            result = train(model=model, size=size, rounds=rounds, runs=runs)["runs"]
            keep, reference = result.pop("keep"), result.pop("reference")
            rows += curve_claims(model, size, base, keep, reference, result, rounds)
        rows += peer_claims(model, size, rounds)
    return rows


def curve_claims(model, size, base, keep, reference, runs, rounds):
    """Return claims on one point of the curve: over all kept, and over each other way that fits.

    Where one of them computed something else, that claim does not hold, and its step is not told.
    """
    times = (size / base) ** rank(model)
    name = f"{model} {size}, {times:.2f} times the voxels"
    planner = runs["planner"]
    apart = {way: losses_apart(reference, run) for way, run in runs.items()}
    allowed = LOSS_APART
    if max(apart.values()) > allowed:
        allowed = max(allowed, OF_NUDGED * apart_if_nudged(model, size, rounds))
    first = {way: abs(run["losses"][0] / reference["losses"][0] - 1) for way, run in runs.items()}
    verdicts = [
        measure.verdict(
            f"{name}: {what}, furthest from those with all kept, sums in order",
            [max(values.values())],
            bound=bound,
            most=True,
            samples=values,
            peers=PEERS,
        )
        for what, values, bound in (
            ("losses", apart, allowed),
            ("first losses, relatively", first, FIRST_LOSS_APART),
        )
    ]
    budget_mib = planner["plan"]["budget_mib"]
    for way, run in runs.items():
        plan = run["plan"]
        over = statistics.median(ratios(run, keep))
        show(
            {
                "model": model,
                "size": size,
                "times": times,
                "way": way,
                "over_kept": over if apart[way] <= allowed else None,
                "budget_mib": budget_mib,
                "planned_mib": plan["peak_mib"],
                "peak_mib": run["peak_mib"],
                "kept_peak_mib": keep["peak_mib"],
                "losses_apart": apart[way],
                "losses_may_be_apart": allowed,
                **{decision: plan[decision] for decision in ("swap", "recompute", "split")},
            }
        )
    if apart["planner"] > allowed:
        return verdicts
    bound = 1.01 if times == 1 else 1.20 if times < 3 else 1.35
    # Beyond 5 times nothing is claimed of the cost: it is only shown.
    if times < 5:
        verdicts.append(step_claim(f"{name}: step of planner / all kept", planner, keep, bound))
    for way, run in runs.items():
        fits = run["peak_mib"] <= budget_mib * NEAR
        if way != "planner" and fits and apart[way] <= allowed:
            verdicts.append(step_claim(f"{name}: step of planner / {way}", planner, run, SAME))
    return verdicts


def apart_if_nudged(model, size, rounds):
    """Return how far losses part where each weight begins a last bit away."""
    ways = ("reference", "nudged")
    runs = train(model=model, size=size, rounds=rounds, runs=[{"way": way} for way in ways])["runs"]
    return losses_apart(*(runs[way] for way in ways))


def peer_claims(model, size, rounds):
    """Return claims on the planner with the peak that a peer without a budget reaches."""
    verdicts = []
    for way in PEER_WAYS:
        settings = {"model": model, "size": size}
        alone = train(**settings, rounds=1, runs=[{"way": way}])["runs"][way]
        runs = [
            {"way": "keep"},
            {"way": "reference"},
            {"way": way},
            {"way": "planner", "budget_mib": alone["peak_mib"] + alone["resident_mib"]},
        ]
        result = train(**settings, rounds=rounds, runs=runs)["runs"]
        keep, peer, planner = result["keep"], result[way], result["planner"]
        check_same(result["reference"], planner)
        apart = losses_apart(keep, peer)
        if apart > LOSS_APART:
            # It computed something else, and what that takes says nothing.
            show({"model": model, "way": way, "losses_apart": apart})
            continue
        over = statistics.median(ratios(peer, keep))
        name = (
            f"{model} {size}, {way} ({peer['peak_mib'] / keep['peak_mib']:.2f} of the peak and "
            f"{over:.2f} of the step with all kept): step of planner in its peak / its step"
        )
        verdicts.append(step_claim(name, planner, peer, SAME))
        show({"name": name, "ratio": verdicts[-1]["ratio"], "peak_mib": planner["peak_mib"]})
    return verdicts


def ratios(run, other):
    """Return the paired ratios of two runs' steps."""
    pairs = zip(run["seconds"], other["seconds"], strict=True)
    return [one / two for one, two in pairs]


def step_claim(name, run, other, bound):
    return measure.verdict(
        name,
        ratios(run, other),
        bound=bound,
        most=True,
        samples={"seconds": run["seconds"], "peak_mib": run["peak_mib"]},
        peers=PEERS,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = {"predictions": predictions, "cost": cost, "growth": growth}
    parser.add_argument("what", choices=modes)
    parser.add_argument("--only", help="one of the models")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a look")
    options = parser.parse_args()
    models = [model for model, *_ in COMBINATIONS] if options.what == "predictions" else list(BASE)
    models = [model for model in dict.fromkeys(models) if options.only in (None, model)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    measure.show(modes[options.what](models, options.quick))


if __name__ == "__main__":
    main()
