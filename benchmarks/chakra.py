"""How long a Chakra trace takes to read, and how much memory, as a whole process.

python -m benchmarks.chakra                     # 1 million operations on 2 ranks
python -m benchmarks.chakra --operations 100000 --ranks 8
python -m benchmarks.chakra --write FOLDER      # only writes the trace
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ringlight.workloads.formats.chakra.schema import CommType, Metadata, Node, NodeType
from ringlight.workloads.formats.chakra.writer import delimited, encoded

READ = """
import resource, sys, time
began = time.perf_counter()
from pathlib import Path
from ringlight.workloads.formats.chakra.reader import read
workload = read(Path(sys.argv[1]))
took = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
print(workload.operations, took, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)
"""


def write(folder: Path, operations: int, ranks: int) -> Path:
    """A trace of so many operations on all ranks together. Ranks send to the next, no two are equal."""
    for rank in range(ranks):
        with (folder / f"trace.{rank}.et").open("wb") as file:
            file.write(delimited(Metadata(version="0.0.4")))
            for number in range(operations // ranks):
                file.write(delimited(_node(rank, ranks, number)))
    return folder / "trace"


def _node(rank: int, ranks: int, number: int) -> Node:
    place = number % 8
    node = Node(id=number, name=f"layer {number // 8 % 96} step {place}")
    node.data_deps.extend(range(max(0, number - 2), number))
    said = [("is_cpu_op", "bool_val", False), ("rf_id", "int64_val", number)]
    if place < 4 or ranks == 1:
        node.type, node.duration_micros = NodeType.COMP, 10 + place
        said += [("num_ops", "int64_val", 1 << 30), ("tensor_size", "uint64_val", 1 << 20)]
    elif place < 6:
        node.type = NodeType.COMM_COLL
        kind = CommType.ALL_REDUCE if place == 4 else CommType.ALL_GATHER
        said += [("comm_type", "int64_val", int(kind)), ("comm_size", "int64_val", 1 << 20)]
    else:
        node.type = NodeType.COMM_SEND if place == 6 else NodeType.COMM_RECV
        ends = (rank, (rank + 1) % ranks) if place == 6 else ((rank - 1) % ranks, rank)
        said += [("comm_src", "int32_val", ends[0]), ("comm_dst", "int32_val", ends[1])]
        said += [("comm_tag", "int32_val", number // 8), ("comm_size", "int64_val", 1 << 20)]
    for name, which, value in said:
        node.attr.append(encoded(name, which, value))
    return node


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--write", type=Path, help="only write the trace into this folder")
    wanted = parser.parse_args()
    if wanted.write:
        wanted.write.mkdir(parents=True, exist_ok=True)
        print(write(wanted.write, wanted.operations, wanted.ranks))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), wanted.operations, wanted.ranks)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        began = time.perf_counter()
        command = [sys.executable, "-c", READ, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall = time.perf_counter() - began
    operations, took, processor, memory = map(float, done.stdout.split())
    print(
        f"{operations:.0f} operations on {wanted.ranks} ranks, {size / 2**20:.0f} MiB: {took:.1f} s reading, "
        f"{wall:.1f} s the process, {processor:.1f} s of a processor, {memory:.2f} GiB at most"
    )


if __name__ == "__main__":
    main()
