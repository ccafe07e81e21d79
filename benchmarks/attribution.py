"""Whether the split of lost efficiency finds delays of known size, in the right part.

Every distributed backend trains the same U-Net on two replicas with one core each: as it is, and
with a delay in its input, in its average of gradients and on its last process, in a random order
within a round. What a part is longer than in the run without delays, over what was planted in it,
is the claim. (That the parts sum to what is lost holds by construction: each is one measured time
less the next.)

    python benchmarks/attribution.py [--quick]
"""

import random
import tempfile
from pathlib import Path

import measure

from tfunet.bench.analysis.lost_efficiency import lost
from tfunet.bench.launch.launch_run import launch
from tfunet.bench.records.sweep_record import read_sweep
from tfunet.config.run import RunConfig

ROUNDS = 3
SETTINGS = {
    "model_options": {"filters": 8, "levels": 2},
    "data": "cells",
    "data_options": {"num_cases": 40, "size": 64},
    "replica_batch": 4,
    "steps": 40,
    "evaluate_every": 10_000,
    "cores_per_replica": 1,
    "time_parts": True,
}
# mirrored has all replicas in one process: it has no stragglers that could be told apart.
BACKENDS = {"mirrored": 1, "multiworker": 2, "horovod": 2}
PARTS = {
    "input": {"input_seconds": 0.1},
    "communication": {"average_seconds": 0.15},
    "stragglers": {"straggler_seconds": 0.2},
}
SECONDS = {"input": 0.1, "communication": 0.15, "stragglers": 0.2}
TOLERANCE = 0.1


def runs():
    """Return (backend, parts with a delay) of every run of a round but that of one replica."""
    rows = []
    for backend in BACKENDS:
        parts = tuple(part for part in PARTS if backend != "mirrored" or part != "stragglers")
        rows += [(backend, ()), (backend, parts)]
    return rows


def train(backend, delayed, folder, cache):
    """Return the result of a run."""
    options = {"backend": backend}
    for part in delayed:
        options |= PARTS[part]
    config = RunConfig(
        **SETTINGS,
        backend=f"{Path(__file__).with_name('delayed.py')}:Delayed",
        backend_options=options,
        num_replicas=1 if backend == "single" else 2,
        processes=BACKENDS.get(backend, 1),
        cache_dir=cache,
    )
    outcome = launch(config, folder)
    if outcome.exit_code:
        raise SystemExit(f"{backend} with {delayed} ended: {outcome.reason}")
    return read_sweep(folder).trials[0].result


def main():
    quick = measure.quick_option(__doc__)
    by_way, samples = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1 if quick else ROUNDS):
            root = Path(folder) / str(number)
            cache = str(Path(folder) / "cache")
            single = train("single", (), root / "single", cache)
            order = runs()
            random.Random(number).shuffle(order)
            results = {way: train(*way, root / "-".join((way[0], *way[1])), cache) for way in order}
            for (backend, delayed), result in results.items():
                parts = lost(result, single, "weak")
                step = result.median_step_seconds
                undelayed = results[backend, ()]
                plain = lost(undelayed, single, "weak")
                row = {"backend": backend, "delayed": delayed, "step_seconds": step}
                for part in delayed:
                    seconds = getattr(parts, part) * step
                    seconds -= getattr(plain, part) * undelayed.median_step_seconds
                    share = seconds / SECONDS[part]
                    row[part] = share
                    by_way.setdefault((backend, part), []).append(share)
                samples.append(row)
                print(row, flush=True)
    claims = []
    for (backend, part), shares in by_way.items():
        claims.append(
            measure.verdict(
                f"{part}, {backend}: what was found differs from what was planted by the share",
                [abs(share - 1) for share in shares],
                bound=TOLERANCE,
                most=True,
                samples={"rows": [] if claims else samples},
                peers=["tensorflow"],
            )
        )
    measure.show(claims)


if __name__ == "__main__":
    main()
