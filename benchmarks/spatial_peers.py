"""What sharing a sample over two devices brings, against two libraries for PyTorch.

The peers are LBANN's DistConv and the ShardTensor of NVIDIA's PhysicsNeMo, on gloo. A chain of
convolutions in 3D, because DistConv splits nothing else; a core for each device. Runs take turns:
one device and two, on PyTorch with each peer and on tfunet with each of its backends.
Compared are the steps of two devices, and efficiencies: half of the time of one device over that of
two, of the same library. Losses on two devices must be those on one before any time counts.

    python benchmarks/spatial_peers.py [--quick]

It needs tfunet, torch and a peer or both in one environment: as in requirements-pipeline.txt, then

    peers/bin/pip install --no-deps "distconv @ git+https://github.com/LBANN/DistConv@55ac373"
    peers/bin/pip install nvidia-physicsnemo==2.2.2

PyTorch's own DTensor cannot be compared. Version 2.13 has rules for a convolution of a tensor that
is cut in space, but its result claims to be whole on each device, and holds half of the columns.
"""

import importlib.metadata
import itertools
import os
import tempfile
from pathlib import Path

import measure
from conv_sizes import WARM_UP
from peers import on_torch
from runs import BACKENDS, Runs, check_losses, seconds, timed

HERE = Path(__file__).parent
SIZE, ROUNDS, STEPS = 64, 5, 8
# Peers, and the packages that have them.
PEERS = {"distconv": "distconv", "shardtensor": "nvidia-physicsnemo"}


def settings(steps):
    sizes = {"data_options": {"num_cases": 5, "size": SIZE}, "patch": [SIZE] * 3}
    model = f"{HERE / 'conv_chain.py'}:build"
    return timed(steps, model=model, data="tumours", replica_batch=1, loss="crossentropy", **sizes)


def torch_run(peer, processes, cores):
    """Return what the first process prints."""
    return on_torch("torch_split_worker.py", [peer], processes, [SIZE, STEPS], cores)[0]


def compare(runs, peers, num_rounds):
    """Return the seconds of a step of each way, in rounds."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    rounds = []
    for _ in range(num_rounds):
        whole = torch_run(peers[0], 1, cores)
        row = {"torch 1": whole["seconds"]}
        for peer in peers:
            parts = torch_run(peer, 2, cores)
            check_losses(peer, parts["losses"], whole["losses"])
            row[peer] = parts["seconds"]
        one = runs.result(runs.start(settings(STEPS + WARM_UP), backend="single", core=cores[0]))
        row["tfunet 1"] = seconds(one)
        for backend in BACKENDS:
            started = runs.start(settings(STEPS + WARM_UP), backend=backend, split=[2, 1, 1])
            two = runs.result(started)
            check_losses(backend, [two["loss"]], [one["loss"]])
            row[backend] = seconds(two)
        rounds.append(row)
    return rounds


def main():
    quick = measure.quick_option(__doc__)
    installed = {package.name for package in importlib.metadata.distributions()}
    peers = [peer for peer, package in PEERS.items() if package in installed]
    if not peers:
        raise SystemExit("No peer is installed: see the top of this file.")
    with tempfile.TemporaryDirectory() as folder:
        rounds = compare(Runs(Path(folder)), peers, 1 if quick else ROUNDS)
    efficiencies = {
        **{peer: [row["torch 1"] / row[peer] / 2 for row in rounds] for peer in peers},
        **{way: [row["tfunet 1"] / row[way] / 2 for row in rounds] for way in BACKENDS},
    }
    claims = []
    for backend, peer in itertools.product(BACKENDS, peers):
        both = zip(efficiencies[backend], efficiencies[peer], strict=True)
        ratios = {
            f"efficiency, that of {peer} as 1": [ours / theirs for ours, theirs in both],
            f"speed, that of {peer} as 1": [row[peer] / row[backend] for row in rounds],
        }
        claims += [
            measure.verdict(
                f"chain of convolutions, {SIZE} cubed, on two devices of {backend}: {name}",
                values,
                bound=1.0,
                most=False,
                samples={"seconds": rounds, "efficiencies": efficiencies},
                peers=["tensorflow", "torch", PEERS[peer]],
            )
            for name, values in ratios.items()
        ]
    measure.show(claims)


if __name__ == "__main__":
    main()
