"""How much larger a volume, or a batch, trains in a capped arena with large-model support.

TensorFlow's allocator is capped at the least in which a volume of n^3 trains without support. The
largest volume that trains with it, over n^3: without splitting, over the bound that the largest op
sets, of all whose sides the network can halve and are at most twice each other; with splitting, of
those with sides as near to each other as can be. And the largest batch of that size.

    python benchmarks/swap.py growth
"""

import itertools
import math

import measure
from swap_runs import PEERS, rank, show, train

# The n of each model.
BASE = {"unet3d": 48, "isensee": 48, "unet2d": 256}
# TFLMS v2's figures for a 3D U-Net and for the batch of a ResNet-50 (ISMM 2019), and where the
# search ends.
TFLMS_GROWTH, TFLMS_BATCH, MOST_GROWTH = 5.6, 4.9, 14
# What the sides of an image are multiples of.
UNIT = {"unet3d": 8, "isensee": 16, "unet2d": 16}


def growth(models, quick):
    """Return claims on the largest volume and batch that train in a capped arena."""
    rows = []
    for model in models:
        base = BASE[model]
        cap_mib = least_cap(model, base)
        floor = train(model=model, size=base, rounds=1, runs=[{"way": "whole"}])
        plan = floor["runs"]["whole"]["plan"]
        resident = floor["runs"]["whole"]["resident_mib"]
        bound = (cap_mib - resident) / plan["floor_mib"]
        ways = (
            ("whole", "size", "voxels, without splitting", 0.9),
            ("planner", "size", "voxels, with splitting", TFLMS_GROWTH),
            ("planner", "batch", "images of a batch", TFLMS_BATCH),
        )
        for way, key, what, least in ways:
            sizes = list(ladder(model, base))
            if way == "whole":
                sizes = all_sizes(model, base, bound)
            largest, tried = largest_that_fits(
                model, cap_mib, way, key, sizes, 2 if quick else None
            )
            times = largest if key == "batch" else voxels(largest) / base ** rank(model)
            name = f"{model}: {times:.2f} times the {what}: {largest} in {cap_mib} MiB"
            if way == "whole":
                name += f", over the {bound:.2f} that the largest op lets it be"
            rows.append(
                measure.verdict(
                    name,
                    [times / bound if way == "whole" else times],
                    bound=least,
                    most=False,
                    samples={"tried": tried, "times": times, "bound": bound},
                    peers=PEERS,
                )
            )
            print(name, flush=True)
    return rows


def largest_that_fits(model, cap_mib, way, key, sizes, most_tries):
    """Return the largest size or batch, found by halving, and which were tried."""
    settings, given = sizes, {}
    if key == "batch":
        settings, given = list(range(1, MOST_GROWTH + 2)), {"size": BASE[model]}
    tried = {}
    low, high = 0, len(settings)
    while high - low > 1 and len(tried) != most_tries:
        middle = (low + high) // 2
        value = settings[middle]
        record = in_arena(cap_mib, way, model=model, **given, **{key: value})
        room = record.get("finds_room")
        tried[str(value)] = {"fits": record["fits"], "foretold": room}
        show({"model": model, "way": way, key: value, **tried[str(value)]})
        low, high = (middle, high) if record["fits"] else (low, middle)
    return settings[low], tried


def ladder(model, base):
    """Return sizes from n^3 on, each the last one with one side longer by what it is divided by."""
    sides = [base] * rank(model)
    while True:
        yield list(sides)
        shortest = min(range(len(sides)), key=lambda at: (sides[at], at))
        sides[shortest] += UNIT[model]
        if math.prod(sides) > (MOST_GROWTH + 1) * base ** len(sides):
            return


def all_sizes(model, base, bound):
    """Return sizes up to a bound on their voxels over n^3, the one with the least sides of those
    with as many voxels, no side more than twice another."""
    sides = range(UNIT[model], 4 * base, UNIT[model])
    by_size = {}
    for size in itertools.combinations_with_replacement(sides, rank(model)):
        is_even = size[-1] <= 2 * size[0]
        if is_even and 1 <= voxels(size) / base ** rank(model) <= bound:
            same = by_size.setdefault(voxels(size), size)
            by_size[voxels(size)] = min(same, size, key=sum)
    return [list(by_size[size])[::-1] for size in sorted(by_size)]


def voxels(size):
    return math.prod(size)


def in_arena(cap_mib, way, **settings):
    """Return whether steps go through in a capped arena, with support as it is by default."""
    result = train(cap_mib, rounds=2, capped=True, runs=[{"way": way}], **settings)
    return {"fits": False} if result is None else result


def least_cap(model, size):
    """Return the MiB of the smallest arena, to 5 %, in which a size trains without support."""
    cap_mib = train(2**15, model=model, size=size, rounds=2, capped=True, runs=[{"way": "keep"}])
    cap_mib = math.ceil(cap_mib["arena_peak_mib"])
    while not in_arena(cap_mib, "keep", model=model, size=size)["fits"]:
        cap_mib = math.ceil(cap_mib * 1.05)
    return cap_mib
