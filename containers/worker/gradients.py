"""Synchronous data-parallel training: real gradients as the payload of its loop's all-reduce.

The loop is a graph of one computation and one all-reduce. GPU time is emulated: the real gradient is
computed, then the rank waits until the computation's time is over.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ringlight.containers.worker.averaged import summed_of
from ringlight.containers.worker.checkpoint import Checkpoint
from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.model import Replica, fingerprint
from ringlight.containers.worker.optinc import reducing_at
from ringlight.containers.worker.payload import Payload, RankGraph
from ringlight.containers.worker.posted import Posted
from ringlight.containers.worker.rendezvous import Line, Lines
from ringlight.containers.worker.ring_of_bits import RingOfBits
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.transport import Reduce, RunReport, Transport, partners
from ringlight.fabric.collectives import all_reduce
from ringlight.fabric.schedules import parse_collective


class Gradients(Payload):
    """The training of one rank. ``flows``: its O-NIC, where it asks for light.

    Its methods raise ArithmeticError for a wrong sum, PeerLost, AveragingFailed, ConnectionError (no O-NIC's
    agent), BadCheckpoint, OSError (a checkpoint cannot be written).
    """

    def __init__(
        self, spec: WorkerSpec, graph: RankGraph, posted: Posted | None, flows: Flows | None
    ) -> None:
        super().__init__(spec, graph, posted)
        self._flows = flows
        self._bits = parse_collective(spec.collective).bits
        self._schedule = None
        if spec.averager is None:
            self._schedule = all_reduce("ring" if self._bits else spec.collective, spec.world_size)
        self._replica = Replica(
            spec.rank,
            spec.world_size,
            spec.gradient_bytes,
            spec.batch,
            spec.seed,
            spec.learning_rate,
            summed_of(spec),
        )
        self._loss_first, self._loss = self._replica.loss(), 0.0
        self._report: RunReport | None = None
        self._checkpoint = None
        if spec.checkpoint is not None:
            self._checkpoint = Checkpoint(Path(spec.checkpoint), spec.rank, spec.checkpoint_every)
            if spec.resume:
                self._replica.parameters = self._checkpoint.read(spec.resume)

    @property
    def _ways(self) -> Lines:
        """Averagers need a connection to every other rank, on which the ranks tell their scales."""
        others = set(range(self._spec.world_size)) - {self._spec.rank}
        to, from_ = (others, others) if self._schedule is None else partners(self._schedule, self._spec.rank)
        return Lines.of(self._spec, to, from_)

    def lines(self) -> dict[Line, bool]:
        return self._ways.sending()

    @contextlib.contextmanager
    def over(self, connections: Mapping[Line, socket.socket]) -> Iterator[None]:
        to, into = ({peer: connections[line] for peer, line in way.items()} for way in self._ways)
        with self._reducing(to, into) as self._reduce:
            yield

    def _reducing(
        self, to: Mapping[int, socket.socket], into: Mapping[int, socket.socket]
    ) -> contextlib.AbstractContextManager[Reduce]:
        """What all-reduces vectors: averagers, a ring of whole numbers, or a schedule of sums."""
        spec, posted = self._spec, self._posted
        if spec.averager is not None:
            return reducing_at(spec.averager, spec, to)
        length, timeout_s = len(self._replica.buffer), spec.peer_timeout_s
        begins = None if posted is None else posted.add
        if self._bits is not None:
            return _by(
                RingOfBits(self._bits, spec.rank, spec.world_size, to, length, timeout_s, into, begins)
            )
        assert self._schedule is not None
        return _by(
            Transport(
                self._schedule,
                spec.rank,
                to,
                length,
                timeout_s,
                self._flows,
                spec.peers,
                into=into,
                on_begin=begins,
            )
        )

    def compute(self, iteration: int) -> bool:
        self._loss = self._replica.compute(iteration)
        return True

    def collective(self, iteration: int, k: int) -> tuple[Callable[[], RunReport], Callable[[], int]]:
        def run() -> RunReport:
            self._report = self._reduce(self._replica.buffer)
            return self._report

        return run, lambda: 0

    def end(self, iteration: int) -> dict[str, object]:
        """Update the parameters; its time is taken from the next iteration's computation."""
        self._replica.update(iteration)
        if self._checkpoint is not None:
            self._checkpoint.keep(iteration + 1, self._replica.parameters)
        said: dict[str, object] = {"loss": self._loss}
        if (report := self._report) is not None and self._spec.onic is not None:
            # Flows of the all-reduce, and how long they waited for light, seconds.
            wait = {"longest": report.flow_wait_longest_s, "sum": report.flow_wait_sum_s}
            said |= {"flows": report.flows, "flow_wait_s": wait}
        return said

    def outcome(self, checked: int) -> dict[str, object]:
        return {
            "parameters_sha256": fingerprint(self._replica.parameters),
            "loss_first": self._loss_first,
            "loss_last": self._replica.loss(),
            "accuracy": self._replica.accuracy(),
        }


@contextlib.contextmanager
def _by(transport: Transport | RingOfBits) -> Iterator[Reduce]:
    with contextlib.closing(transport):
        yield transport.run
