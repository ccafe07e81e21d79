"""One process of the chain of convolutions on LBANN's DistConv for PyTorch; see spatial_peers.py.

    python benchmarks/distconv_worker.py RANK PROCESSES PORT SIZE STEPS

Prints the losses and the median seconds of a step as JSON.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from conv_sizes import CHANNELS, CLASSES, KERNEL, LAYERS, WARM_UP


def network():
    layers, channels = [], 1
    for _ in range(LAYERS):
        layers.append(torch.nn.Conv3d(channels, CHANNELS, KERNEL, padding=KERNEL // 2))
        layers.append(torch.nn.ReLU())
        channels = CHANNELS
    return torch.nn.Sequential(*layers, torch.nn.Conv3d(channels, CLASSES, 1))


def main():
    rank, processes, port, size, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, image = network(), torch.randn(1, 1, size, size, size)
    truth = torch.randint(CLASSES, (1, size, size, size))
    own = truth.chunk(processes, dim=1)[rank]

    def local(output):
        return output

    if processes > 1:
        from distconv import DCTensor, DistConvDDP, ParallelStrategy
        from distconv.distconv import _ToTensor

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=processes)
        strategy = ParallelStrategy(num_shards=(processes,), shard_dim=(2,), device_type="cpu")
        model = DistConvDDP(model, parallel_strategy=strategy)
        image = DCTensor.distribute(image, strategy)
        local = _ToTensor.apply
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(steps):
        since = time.perf_counter()
        optimizer.zero_grad()
        # DistConv adds up the gradients of the parts.
        loss = torch.nn.functional.cross_entropy(local(model(image)), own) / processes
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if processes > 1:
            dist.all_reduce(total)
        losses.append(float(total))
        seconds.append(time.perf_counter() - since)
    if rank == 0:
        print(json.dumps({"losses": losses, "seconds": statistics.median(seconds[WARM_UP:])}))
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
