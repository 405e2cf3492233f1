"""Flows as a workload: each a message from one worker to another, sent from its start on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ringlight.experiments.record.events import Operations
from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.workloads.graph import Kind, Program, Workload
from ringlight.workloads.graph_writer import Book, Handle, Writer


def gpus_of(flows: Sequence[SizedFlow], gpus: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``gpus`` that send or receive, in their order."""
    active = {name for flow in flows for name in (flow.source, flow.destination)}
    return tuple(gpu for gpu in gpus if gpu in active)


def workload_of(flows: Sequence[SizedFlow], gpus: Sequence[str]) -> Workload:
    """Return a workload of a rank for each GPU, in real seconds and bytes; the tag of a message is the number
    of its flow.

    A rank waits for the starts of its flows one after the other. Flows of a pair pass one connection, in the
    order of their starts.
    """
    book = Book()
    rank = {gpu: number for number, gpu in enumerate(gpus)}
    order = sorted(range(len(flows)), key=lambda number: flows[number].start_s)
    programs = [_program(book, gpu, flows, order, rank) for gpu in gpus]
    peers = [[*range(len(gpus))] for _ in gpus]
    return book.workload(
        "flows", programs, range(len(gpus)), np.empty((len(gpus), 0)), peers
    )


def _program(
    book: Book,
    gpu: str,
    flows: Sequence[SizedFlow],
    order: Iterable[int],
    rank: Mapping[str, int],
) -> Program:
    writer, clock_s = Writer(book), 0.0
    started: Handle | None = None
    for number in order:
        flow = flows[number]
        source, destination = rank[flow.source], rank[flow.destination]
        name = f"flow {number}"
        if flow.destination == gpu:
            writer.receive(
                name, flow.size_bytes, source, number, stream=f"from {source}"
            )
        if flow.source != gpu:
            continue
        if flow.start_s > clock_s:
            wait_s = flow.start_s - clock_s
            started = writer.compute(
                f"start of {name}", seconds=wait_s, stream="starts"
            )
            clock_s = flow.start_s
        writer.send(
            name,
            flow.size_bytes,
            destination,
            number,
            stream=f"to {destination}",
            after=[started],
        )
    return writer.done()


def times_of(
    workload: Workload, records: Iterable[Operations], starts_s: Sequence[float]
) -> FloatArray:
    """Return the seconds of each flow from its start until its receiver has all bytes; NaN if that is not on
    record.

    ``starts_s``: of each flow, after its sender began, in seconds of the records.
    """
    begins, ends = (np.full(len(starts_s), np.nan) for _ in range(2))
    for record in records:
        program = workload.programs[int(workload.program_of[record.rank])]
        for k, times_s in enumerate(record.times_s):
            flow = int(program.tag[k])
            if program.kind[k] == Kind.SEND:
                begins[flow] = record.begin + starts_s[flow]
            elif program.kind[k] == Kind.RECEIVE:
                ends[flow] = record.begin + times_s[1]
    times: FloatArray = ends - begins
    return times
