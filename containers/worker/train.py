"""Synchronous data-parallel training: the worker's main job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from ringlight.containers.worker.averaged import summed_of
from ringlight.containers.worker.beacon import Beacons
from ringlight.containers.worker.checkpoint import Checkpoint
from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.model import Replica, fingerprint
from ringlight.containers.worker.nics import carried
from ringlight.containers.worker.optinc import reducing_at
from ringlight.containers.worker.posted import FILE, Posted, told
from ringlight.containers.worker.release import wait_for_release
from ringlight.containers.worker.rendezvous import Lines, connect_all, describe, listen, onic, part
from ringlight.containers.worker.ring_of_bits import RingOfBits
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.transport import Reduce, RunReport, Transport, partners, retransmits
from ringlight.fabric.collectives import all_reduce
from ringlight.fabric.schedules import parse_collective


def train(spec: WorkerSpec, directory: Path, events: EventLog) -> None:
    """Connect, wait for the release, train, and write the events.

    GPU time is emulated: the real gradient is computed, then the rank sleeps until ``compute_s`` after
    the iteration began. Raises PeerLost, AveragingFailed, NoConnection, ArithmeticError (a wrong sum),
    TimeoutError (never released), ConnectionError (no O-NIC's agent), BadCheckpoint, OSError (a checkpoint
    cannot be written).
    """
    with onic(spec) as flows:
        _train(spec, directory, events, flows)


def _train(spec: WorkerSpec, directory: Path, events: EventLog, flows: Flows | None) -> None:
    averager = spec.averager
    bits = parse_collective(spec.collective).bits
    schedule = None
    if averager is None:
        schedule = all_reduce("ring" if bits is not None else spec.collective, spec.world_size)
    replica = Replica(
        spec.rank,
        spec.world_size,
        spec.gradient_bytes,
        spec.batch,
        spec.seed,
        spec.learning_rate,
        summed_of(spec),
    )
    loss_first = replica.loss()
    checkpoint = None
    if spec.checkpoint is not None:
        checkpoint = Checkpoint(Path(spec.checkpoint), spec.rank, spec.checkpoint_every)
        if spec.resume:
            replica.parameters = checkpoint.read(spec.resume)
    posted = Posted(directory / FILE, spec.world_size) if spec.posted else None
    deadline = time.monotonic() + spec.connect_timeout_s
    others = set(range(spec.world_size)) - {spec.rank}
    lines = Lines.of(spec, *(partners(schedule, spec.rank) if schedule is not None else (others, others)))
    with listen(spec, deadline) as listener:
        wired = connect_all(spec, lines.sending(), listener)
    connections = [(line.peer, connection) for line, connection in wired.items()]
    to = {peer: wired[line] for peer, line in lines.out.items()}
    reducing: contextlib.AbstractContextManager[Reduce]
    if averager is not None:
        reducing = reducing_at(averager, spec, to)
    else:
        assert schedule is not None
        length, into = len(replica.buffer), {peer: wired[line] for peer, line in lines.into.items()}
        begins = None if posted is None else posted.add
        if bits is not None:
            reducing = _by(
                RingOfBits(bits, spec.rank, spec.world_size, to, length, spec.peer_timeout_s, into, begins)
            )
        else:
            reducing = _by(
                Transport(
                    schedule,
                    spec.rank,
                    to,
                    length,
                    spec.peer_timeout_s,
                    flows,
                    spec.peers,
                    into=into,
                    on_begin=begins,
                )
            )
    with reducing as reduce, Beacons(spec) as beacons:
        events.write("ready", local=spec.address, connections=describe(connections))
        started = wait_for_release(directory / "go", connections, spec.go_timeout_s)
        events.write("started", at=started)
        wire = carried()
        sent, received, lent = _iterate(spec, replica, reduce, events, started, checkpoint)
        wire = {
            name: [after - before for after, before in zip(now, wire[name], strict=True)]
            for name, now in carried().items()
        }
        loss_last = replica.loss()
        held = describe(connections)
        part(connections, spec.peer_timeout_s)
    events.write(
        "done",
        parameters_sha256=fingerprint(replica.parameters),
        loss_first=loss_first,
        loss_last=loss_last,
        accuracy=replica.accuracy(),
        bytes_sent=sent,
        bytes_received=received,
        bytes_lent=lent,
        connections=held,
        wire_bytes=wire,
        retransmits=sum(retransmits(connection) for _, connection in connections),
        max_beacon_gap_s=beacons.max_gap_s,
        beacon_gaps=beacons.gaps,
        **told(posted),
    )
    for _, connection in connections:
        connection.close()


@contextlib.contextmanager
def _by(transport: Transport | RingOfBits) -> Iterator[Reduce]:
    with contextlib.closing(transport):
        yield transport.run


def _iterate(
    spec: WorkerSpec,
    replica: Replica,
    reduce: Reduce,
    events: EventLog,
    started: float,
    checkpoint: Checkpoint | None,
) -> tuple[int, int, int]:
    """Bytes sent, received and lent."""
    sent = received = lent = 0
    compute_start = started
    for iteration in range(spec.resume, spec.iterations):
        loss = replica.compute(iteration)
        compute_due = compute_start + spec.compute_s
        while (left := compute_due - time.monotonic()) > 0:
            time.sleep(left)
        compute_end = time.monotonic()
        report = reduce(replica.buffer)
        allreduce_end = time.monotonic()
        # What follows takes its time from the next iteration's emulated compute.
        replica.update(iteration)
        if checkpoint is not None:
            checkpoint.keep(iteration + 1, replica.parameters)
        sent += report.bytes_sent
        received += report.bytes_received
        lent += report.bytes_lent
        events.write(
            "iteration",
            i=iteration,
            compute_start=compute_start,
            compute_end=compute_end,
            allreduce_end=allreduce_end,
            lateness_s=compute_end - compute_due,
            max_stall_s=report.max_stall_s,
            stalls=report.stalls,
            loss=loss,
            **_flow_figures(report) if spec.onic is not None else {},
        )
        compute_start = allreduce_end
    return sent, received, lent


def _flow_figures(report: RunReport) -> dict[str, object]:
    """Flows of one all-reduce and how long they waited for light (seconds), as in the iteration's event."""
    wait = {"longest": report.flow_wait_longest_s, "sum": report.flow_wait_sum_s}
    return {"flows": report.flows, "flow_wait_s": wait}
