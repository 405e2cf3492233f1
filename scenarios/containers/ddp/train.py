# ruff: noqa: T201
"""PyTorch's own DistributedDataParallel over gloo; nothing in it knows of Ringlight.

A small network learns a function of random numbers. Each step prints the mean loss of all ranks, every digit
of it: so two runs can be compared step by step.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--width", type=int, default=256)
arguments = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(7)
width = arguments.width
model = DistributedDataParallel(
    nn.Sequential(
        nn.Linear(32, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 1),
    )
)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(100 + rank)
for step in range(arguments.steps):
    x = torch.randn(64, 32, generator=data)
    y = torch.sin(x.sum(dim=1, keepdim=True))
    loss = nn.functional.mse_loss(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        # The same clock as that of the run's events.
        print(
            f"step {step} loss {(shown / size).item()!r} at {time.monotonic():.3f} s",
            flush=True,
        )
dist.destroy_process_group()
