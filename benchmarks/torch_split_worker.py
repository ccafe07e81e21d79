"""One process of the chain of convolutions in PyTorch, split by a peer; see spatial_peers.py.

    python benchmarks/torch_split_worker.py distconv|shardtensor RANK PROCESSES PORT SIZE STEPS

Prints the losses and the median seconds of a step as JSON.
"""

import importlib
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


def distconv(model, image, processes):
    """Return both on LBANN's DistConv, and what gives a process's part of an output."""
    from distconv import DCTensor, DistConvDDP, ParallelStrategy
    from distconv.distconv import _ToTensor

    strategy = ParallelStrategy(num_shards=(processes,), shard_dim=(2,), device_type="cpu")
    model = DistConvDDP(model, parallel_strategy=strategy)
    return model, DCTensor.distribute(image, strategy), _ToTensor.apply


def shardtensor(model, image, processes):
    """Return the same on PhysicsNeMo's ShardTensor."""
    from physicsnemo.distributed import DistributedManager
    from physicsnemo.domain_parallel import ShardTensor, scatter_tensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_module

    # Its own start is for GPUs. Without CUDA it leaves out the rules of convolutions, and results
    # are wrong: importing their modules brings them. It also demands a device with a number.
    for rules in ("custom_ops", "shard_utils.conv_patches"):
        importlib.import_module(f"physicsnemo.domain_parallel.{rules}")
    started, dist.init_process_group = dist.init_process_group, lambda *_, **__: None
    DistributedManager.initialize()
    dist.init_process_group = started
    mesh = init_device_mesh("cpu", (processes,), mesh_dim_names=("domain",))
    model = distribute_module(model, device_mesh=mesh)
    shape, kind = image.shape, image.dtype
    image = scatter_tensor(image, 0, mesh, (Shard(2),), global_shape=shape, dtype=kind)
    return model, image, ShardTensor.to_local


def main():
    rank, processes, port, size, steps = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, image = network(), torch.randn(1, 1, size, size, size)
    truth = torch.randint(CLASSES, (1, size, size, size))
    own = truth.chunk(processes, dim=1)[rank]

    def local(output):
        return output

    if processes > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        dist.init_process_group("gloo", rank=rank, world_size=processes)
        model, image, local = PEERS[sys.argv[1]](model, image, processes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(steps):
        since = time.perf_counter()
        optimizer.zero_grad()
        # Both add up the gradients of the parts.
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
    if processes > 1 and sys.argv[1] == "distconv":  # ShardTensor does so itself.
        dist.destroy_process_group()


PEERS = {"distconv": distconv, "shardtensor": shardtensor}

if __name__ == "__main__":
    main()
