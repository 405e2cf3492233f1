"""How long a Chakra trace takes to read, and how much memory, as a whole process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import apart
from ringlight.extensions.chakra.schema import CommType, Metadata, Node, NodeType
from ringlight.extensions.chakra.writer import delimited, encoded


def chakra(operations: int = 1_000_000, ranks: int = 2) -> dict[str, Any]:
    """A trace of so many operations on all ranks together."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), operations, ranks)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        return {"ranks": ranks, "mib": size / 2**20, **apart(read, path)}


PARTS = (chakra,)


def read(path: Path) -> dict[str, Any]:
    """Operations of a trace, and the seconds to read it, imports included."""
    began = time.perf_counter()
    from ringlight.extensions.chakra.reader import read as workload_of

    return {
        "operations": workload_of(path).operations,
        "reading_s": time.perf_counter() - began,
    }


def written(folder: Path, operations: int, ranks: int) -> Path:
    """A trace without two equal ranks; each sends to the next."""
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
        said += [
            ("num_ops", "int64_val", 1 << 30),
            ("tensor_size", "uint64_val", 1 << 20),
        ]
    elif place < 6:
        node.type = NodeType.COMM_COLL
        kind = CommType.ALL_REDUCE if place == 4 else CommType.ALL_GATHER
        said += [
            ("comm_type", "int64_val", int(kind)),
            ("comm_size", "int64_val", 1 << 20),
        ]
    else:
        node.type = NodeType.COMM_SEND if place == 6 else NodeType.COMM_RECV
        ends = (rank, (rank + 1) % ranks) if place == 6 else ((rank - 1) % ranks, rank)
        said += [("comm_src", "int32_val", ends[0]), ("comm_dst", "int32_val", ends[1])]
        said += [
            ("comm_tag", "int32_val", number // 8),
            ("comm_size", "int64_val", 1 << 20),
        ]
    for name, which, value in said:
        node.attr.append(encoded(name, which, value))
    return node
