"""A workload into the files of a trace."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringlight.extensions.chakra.schema import (
    KINDS,
    MICRO,
    TYPES,
    Attribute,
    Metadata,
    Node,
    NodeType,
)
from ringlight.workloads.formats.files import write_bytes
from ringlight.workloads.graph import Collective, Kind, Program, Workload

VERSION = "0.0.4"


def write(workload: Workload, path: Path) -> list[Path]:
    """Write PATH.RANK.et for each rank, and PATH.comm_group.json unless the world is the only group.

    Return the files. What Chakra has no field for (exact seconds, the algorithm, the stream) is in attributes
    of our own, so that ``reader.read`` gives the same again; other programs skip them. Raises ValueError;
    then it leaves none of the files.
    """
    written: list[Path] = []
    try:
        for file, data in _files(workload, path):
            write_bytes(file, data)
            written.append(file)
    except ValueError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def _files(workload: Workload, path: Path) -> Iterator[tuple[Path, bytes]]:
    names = {number: str(number + 1) for number in range(len(workload.groups))}
    if len(names) == 1 and workload.groups[0].tolist() == list(range(workload.ranks)):
        names[0] = ""
    for rank in range(workload.ranks):
        parts = [delimited(Metadata(version=VERSION))]
        parts += [delimited(node) for node in _nodes(workload, rank, names)]
        yield path.with_name(f"{path.name}.{rank}.et"), b"".join(parts)
    stated = {
        names[number]: group.tolist()
        for number, group in enumerate(workload.groups)
        if names[number]
    }
    if stated:
        yield (
            path.with_name(f"{path.name}.comm_group.json"),
            json.dumps(stated).encode() + b"\n",
        )


def delimited(message: Any) -> bytes:
    """Return a message after its length, as it is written in a file."""
    data: bytes = message.SerializeToString()
    size, prefix = len(data), bytearray()
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    return bytes((*prefix, size)) + data


def _nodes(workload: Workload, rank: int, names: Mapping[int, str]) -> Iterator[Any]:
    program = workload.programs[int(workload.program_of[rank])]
    last: dict[int, int] = {}
    for k in range(len(program)):
        stream = int(program.stream[k])
        after = set(
            program.after[
                program.after_offsets[k] : program.after_offsets[k + 1]
            ].tolist()
        )
        node = Node(id=k, name=workload.names[int(program.name[k])])
        # Chakra has no streams: that one operation runs at a time on each is a dependency there.
        node.data_deps.extend(
            sorted(after | ({last[stream]} if stream in last else set()))
        )
        last[stream] = k
        attributes = [
            ("is_cpu_op", "bool_val", False),
            ("stream", "string_val", workload.streams[stream]),
        ]
        attributes += _what(workload, program, rank, k, node, names)
        for name, which, value in attributes:
            node.attr.append(encoded(name, which, value))
        yield node


def encoded(name: str, which: str, value: Any) -> bytes:
    """Return an attribute; ``which``: the field of its value.

    Raises ValueError when that field does not take the value.
    """
    attribute = Attribute(name=name)
    try:
        if which.endswith("_list"):
            getattr(attribute, which).values.extend(value)
        else:
            setattr(attribute, which, value)
    except ValueError:
        raise ValueError(f"{name} {value!r:.40} does not fit a Chakra trace") from None
    data: bytes = attribute.SerializeToString()
    return data


def _what(
    workload: Workload,
    program: Program,
    rank: int,
    k: int,
    node: Any,
    names: Mapping[int, str],
) -> Iterable[tuple[str, str, Any]]:
    """Set a node's type. Return its attributes."""
    kind, size, slot = (
        Kind(int(program.kind[k])),
        int(program.bytes[k]),
        int(program.slot[k]),
    )
    if kind is Kind.COMPUTE:
        node.type = NodeType.COMP
        return _computation(float(program.seconds[k]), float(program.flops[k]), node)
    if kind is Kind.MEMORY:
        node.type = NodeType.MEM_LOAD
        seconds = float(program.seconds[k])
        exact = [] if math.isnan(seconds) else [("seconds", "double_val", seconds)]
        return [("tensor_size", "uint64_val", size), *exact]
    if kind is Kind.COLLECTIVE:
        node.type = NodeType.COMM_COLL
        group = int(workload.communicators[rank, slot])
        what = workload.collectives[int(program.collective[k])]
        attributes: list[tuple[str, str, Any]] = []
        if names[group]:
            attributes.append(("pg_name", "string_val", names[group]))
        # Groups have names in a trace, and not what else the same ranks have besides.
        if number := workload.communicators[rank, :slot].tolist().count(group):
            attributes.append(("communicator", "int32_val", number))
        return attributes + _communication(what, size, len(workload.groups[group]))
    node.type = NodeType.COMM_SEND if kind is Kind.SEND else NodeType.COMM_RECV
    peer = int(workload.peers[rank, slot])
    ends = (rank, peer) if kind is Kind.SEND else (peer, rank)
    return [
        ("comm_src", "int32_val", ends[0]),
        ("comm_dst", "int32_val", ends[1]),
        ("comm_tag", "int32_val", int(program.tag[k])),
        ("comm_size", "int64_val", size),
    ]


def _computation(seconds: float, flops: float, node: Any) -> list[tuple[str, str, Any]]:
    attributes: list[tuple[str, str, Any]] = []
    if not math.isnan(seconds):
        node.duration_micros = round(seconds / MICRO)
        if not node.duration_micros or node.duration_micros * MICRO != seconds:
            attributes.append(("seconds", "double_val", seconds))
    if flops or math.isnan(seconds):
        attributes.append(("num_ops", "int64_val", min(round(flops), (1 << 63) - 1)))
        if float(attributes[-1][2]) != flops:
            attributes.append(("flops", "double_val", flops))
    return attributes


def _communication(
    what: Collective, size: int, ranks: int
) -> list[tuple[str, str, Any]]:
    if what.kind not in TYPES:
        raise ValueError(f"a Chakra trace has no collective {what.kind}")
    if what.own is not None:
        raise ValueError(
            f"a Chakra trace has no place for the schedule {what.own.name}"
        )
    part = -(-size // ranks) if what.kind == "all-gather" else size
    attributes: list[tuple[str, str, Any]] = [
        ("comm_type", "int64_val", int(TYPES[what.kind])),
        ("comm_size", "int64_val", part),
    ]
    if what.kind == "all-gather" and part * ranks != size:
        attributes.append(("size", "int64_val", size))
    if what.kind != KINDS[TYPES[what.kind]]:
        attributes.append(("kind", "string_val", what.kind))
    if what.algorithm:
        attributes.append(("algorithm", "string_val", what.algorithm))
    if what.root:
        attributes.append(("root", "int32_val", what.root))
    if what.split is not None:
        attributes.append(("split", "string_val", json.dumps(asdict(what.split))))
    if what.sizes is not None:
        attributes.append(
            ("sizes", "int64_list", [size for row in what.sizes for size in row])
        )
    return attributes
