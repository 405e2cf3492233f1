"""Workloads for tests, and what two of them have in common when they are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.workloads.graph import Collective, Kind, Program, Split, Workload
from ringlight.workloads.graph_writer import Book, Writer


def many_kinds() -> Workload:
    """Four ranks in two pairs: every kind of operation, two streams, messages round a ring."""
    book = Book()
    world, pairs = book.group([0, 1, 2, 3]), [book.group([0, 1]), book.group([2, 3])]
    writer = Writer(book)
    load = writer.memory("weights", 1 << 20)
    forward = writer.compute("forward", seconds=1.5e-3, after=[load])
    sent = writer.send("activations", 4096, 0, 7, stream="messages", after=[forward])
    received = writer.receive("activations", 4096, 1, 7, stream="messages")
    tokens = Collective("all-to-all-v", split=Split(3, 1.2))
    there = writer.collective(
        "tokens", tokens, 1 << 16, 0, stream="experts", after=[received]
    )
    backward = writer.compute("backward", flops=2e9, after=[there, sent])
    writer.collective(
        "gradients", Collective("all-reduce", "ring"), 1 << 22, 1, after=[backward]
    )
    writer.collective("parameters", Collective("broadcast", root=2), 1 << 10, 1)
    ring = [[(rank + 1) % 4, (rank - 1) % 4] for rank in range(4)]
    communicators = [[pairs[rank // 2], world] for rank in range(4)]
    return book.workload("many kinds", [writer.done()], [0] * 4, communicators, ring)


def outcome(read: Callable[[], Workload]) -> Workload | None:
    """What was read; None when it was refused, which must be in one line."""
    try:
        return read()
    except ValueError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 600
    return None


def canonical(workload: Workload) -> dict[str, Any]:
    """A workload with every index replaced by what it stands for; equal for equal workloads.

    What an operation comes after has none of its own stream, which has ended anyway.
    """
    return {
        "name": workload.name,
        "ranks": [_rank(workload, rank) for rank in range(workload.ranks)],
    }


def _rank(workload: Workload, rank: int) -> list[tuple[Any, ...]]:
    program = workload.programs[int(workload.program_of[rank])]
    return [_operation(workload, program, rank, k) for k in range(len(program))]


def _operation(
    workload: Workload, program: Program, rank: int, k: int
) -> tuple[Any, ...]:
    kind = Kind(int(program.kind[k]))
    slot = int(program.slot[k])
    with_whom: Any = None
    if kind is Kind.COLLECTIVE:
        group = workload.groups[int(workload.communicators[rank, slot])].tolist()
        with_whom = (workload.collectives[int(program.collective[k])], group)
    elif kind in (Kind.SEND, Kind.RECEIVE):
        with_whom = (int(workload.peers[rank, slot]), int(program.tag[k]))
    after = set(
        program.after[program.after_offsets[k] : program.after_offsets[k + 1]].tolist()
    )
    return (
        kind.name,
        workload.streams[int(program.stream[k])],
        workload.names[int(program.name[k])],
        str(program.seconds[k]),
        float(program.flops[k]),
        int(program.bytes[k]),
        with_whom,
        sorted(j for j in after if program.stream[j] != program.stream[k]),
    )


def put(files: WorkloadFiles, digest: str, data: bytes) -> dict[str, Any]:
    """Has ``files`` keep what came as a body of ``data``, and called itself ``digest``."""
    files.directory.mkdir(exist_ok=True)
    part = files.directory / ".part-of-a-test"
    part.write_bytes(data)
    try:
        return files.put(digest, part, hashlib.sha256(data).hexdigest())
    finally:
        part.unlink(missing_ok=True)
