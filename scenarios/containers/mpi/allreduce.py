# ruff: noqa: T201
"""An all-reduce of whole numbers by Open MPI, checked: `allreduce.py ELEMENTS`."""

import sys
import time

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
mine = np.arange(int(sys.argv[1]), dtype=np.float64) + rank
total = np.empty_like(mine)
world.Barrier()
began = time.monotonic()
world.Allreduce(mine, total, op=MPI.SUM)
took = time.monotonic() - began
wanted = np.arange(len(mine), dtype=np.float64) * size + size * (size - 1) // 2
if not np.array_equal(total, wanted):
    sys.exit(f"rank {rank}: a wrong sum")
print(
    f"rank {rank} of {size} on {MPI.Get_processor_name()}: {mine.nbytes} bytes in {took:.3f} s, exact",
    flush=True,
)
