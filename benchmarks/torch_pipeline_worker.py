"""One process of a U-Net in two stages of torch.distributed.pipelining; see pipeline_peers.py.

    python benchmarks/torch_pipeline_worker.py RANK PROCESSES PORT SCHEDULE CUT STEPS

CUT is the number of blocks of the first stage. Prints the losses and the median seconds of a step
as JSON; a single process also the seconds of each block, forward and back.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from pipeline_sizes import BATCH, CLASSES, FILTERS, LEVELS, MICRO_BATCHES, SIZE, WARM_UP
from torch import nn


def convolutions(before, filters):
    """Return what a level of `unet` does: two convolutions, each with a normalization."""
    layers = []
    for channels in (before, filters):
        layers += [
            nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            nn.InstanceNorm2d(filters, affine=True),
            nn.LeakyReLU(0.01),
        ]
    return nn.Sequential(*layers)


class Down(nn.Module):
    """A level of the encoder: adds its output to what is kept for the decoder."""

    def __init__(self, before, filters, *, pools):
        super().__init__()
        self.pool = nn.MaxPool2d(2) if pools else nn.Identity()
        self.convolutions = convolutions(before, filters)

    def forward(self, *levels):
        return *levels, self.convolutions(self.pool(levels[-1]))


class Up(nn.Module):
    """A level of the decoder: takes the last two, and gives one."""

    def __init__(self, before, filters):
        super().__init__()
        self.up = nn.ConvTranspose2d(before, filters, 2, 2)
        self.convolutions = convolutions(2 * filters, filters)

    def forward(self, *levels):
        *others, skip, last = levels
        return *others, self.convolutions(torch.cat([skip, self.up(last)], 1))


class First(Down):
    """The first level of the encoder, which alone reads the image and does not keep it."""

    def forward(self, image):
        return (self.convolutions(image),)


class Last(nn.Module):
    """The convolution to the classes."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(FILTERS, CLASSES, 1)

    def forward(self, level):
        return self.convolution(level)


class Contiguous(torch.autograd.Function):
    """Lays a tensor and its gradient out in order: Gloo sends nothing else."""

    @staticmethod
    def forward(context, tensor):
        return tensor.contiguous()

    @staticmethod
    def backward(context, gradient):
        return gradient.contiguous()


class Blocks(nn.Module):
    """Blocks in a row."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, *levels):
        levels = tuple(map(Contiguous.apply, levels))
        for block in self.blocks:
            levels = block(*levels)
            levels = levels if isinstance(levels, tuple) else (levels,)
        levels = tuple(map(Contiguous.apply, levels))
        return levels if len(levels) > 1 else levels[0]


def all_blocks():
    widths = [FILTERS * 2**level for level in range(LEVELS + 1)]
    blocks = [First(1, FILTERS, pools=False)]
    blocks += [Down(widths[at], widths[at + 1], pools=True) for at in range(LEVELS)]
    blocks += [Up(widths[at + 1], widths[at]) for at in reversed(range(LEVELS))]
    return [*blocks, Last()]


def block_seconds(blocks, image):
    """Return how long each block takes, forward and back."""
    taken, levels = [], (image,)
    for block in blocks:
        given = [level.detach().requires_grad_() for level in levels]
        seconds = []
        for _ in range(3):
            since = time.perf_counter()
            made = block(*given)
            made = made if isinstance(made, tuple) else (made,)
            torch.autograd.backward(made, [torch.ones_like(level) for level in made])
            seconds.append(time.perf_counter() - since)
        taken.append(min(seconds))
        levels = made
    return taken


def main():
    rank, processes, port, schedule, cut, steps = sys.argv[1:]
    rank, processes, cut, steps = int(rank), int(processes), int(cut), int(steps)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    blocks, image = all_blocks(), torch.randn(BATCH, 1, SIZE, SIZE)
    truth = torch.randint(CLASSES, (BATCH, SIZE, SIZE))
    loss_of = nn.CrossEntropyLoss()
    facts = {}
    if processes == 1:
        facts["blocks"] = block_seconds(blocks, image[: BATCH // MICRO_BATCHES])
        model, runner = Blocks(blocks), None
        model.zero_grad()
    else:
        from torch.distributed import pipelining

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        dist.init_process_group("gloo", rank=rank, world_size=processes)
        model = Blocks(blocks[:cut] if rank == 0 else blocks[cut:])
        stage = pipelining.PipelineStage(model, rank, processes, torch.device("cpu"))
        runner = getattr(pipelining, schedule)(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds, losses = [], []
    for _ in range(steps):
        since = time.perf_counter()
        optimizer.zero_grad()
        parts = []
        if runner is None:
            parts.append(loss_of(model(image), truth))
            parts[0].backward()
        elif rank == 0:
            runner.step(image)
        else:
            runner.step(target=truth, losses=parts)
        optimizer.step()
        seconds.append(time.perf_counter() - since)
        losses += [float(torch.stack(parts).detach().mean())] if parts else []
    if rank == processes - 1:
        print(
            json.dumps({**facts, "losses": losses, "seconds": statistics.median(seconds[WARM_UP:])})
        )
    if processes > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
