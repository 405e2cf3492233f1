"""Synchronous data-parallel training: real gradients as the payload of its loop's all-reduce.

The loop is a graph of one computation and one all-reduce. GPU time is emulated: the real gradient is
computed, then the rank waits until the computation's time is over.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ringlight.containers.worker.checkpoint import Checkpoint
from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.model import (
    Replica,
    fingerprint,
    initial_parameters,
    loss_of,
    training_set,
)
from ringlight.containers.worker.payload import Payload, RankGraph
from ringlight.containers.worker.posted import Posted
from ringlight.containers.worker.reducers import reducer_of, summed_of
from ringlight.containers.worker.rendezvous import Line
from ringlight.containers.worker.ring_of_bits import RingOfBits
from ringlight.containers.worker.run import run
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.transport import Reduce, RunReport
from ringlight.fabric.algorithms import parse_collective
from ringlight.workloads.graph import Kind
from ringlight.workloads.graph_writer import data_parallel_loop


def train(spec: WorkerSpec, directory: Path, events: EventLog) -> None:
    """Train, as a graph. Raises what :func:`run` and :class:`Gradients` raise."""
    # Whole numbers go round a ring.
    algorithm = (
        spec.collective if parse_collective(spec.collective).bits is None else "ring"
    )
    loop = data_parallel_loop(
        spec.world_size, spec.compute_s, spec.gradient_bytes, algorithm
    )
    reducer = reducer_of(spec)
    run(
        spec,
        directory,
        events,
        loop,
        Gradients if reducer is None else reducer.payload(),
    )


class Gradients(Payload):
    """The training of one rank; arguments are those of :class:`Payload`.

    Its methods raise ArithmeticError for a wrong sum, PeerLost, ReduceFailed, ConnectionError (no O-NIC's
    agent), BadCheckpoint, OSError (a checkpoint cannot be written).
    """

    def __init__(
        self,
        spec: WorkerSpec,
        graph: RankGraph,
        posted: Posted | None,
        flows: Flows | None,
    ) -> None:
        super().__init__(spec, graph, posted, flows)
        self._replica = Replica(
            spec.rank,
            spec.world_size,
            spec.gradient_bytes,
            spec.batch,
            spec.seed,
            spec.learning_rate,
            summed_of(spec),
        )
        self._loss = 0.0
        self._report: RunReport | None = None
        self._checkpoint = None
        if spec.checkpoint is not None:
            self._checkpoint = Checkpoint(
                Path(spec.checkpoint), spec.rank, spec.checkpoint_every
            )
            if spec.resume:
                self._replica.parameters = self._checkpoint.read(spec.resume)

    @contextlib.contextmanager
    def over(self, connections: Mapping[Line, socket.socket]) -> Iterator[None]:
        with super().over(connections), contextlib.ExitStack() as stack:
            # Made before the release, so that the first all-reduce takes no longer than others.
            self._reduce = self._reducing(stack)
            yield

    def _reducing(self, stack: contextlib.ExitStack) -> Reduce | None:
        """Return a function that all-reduces vectors by a ring of whole numbers or by a schedule of sums;
        None if the graph has no collective.
        """
        spec = self._spec
        if not (collectives := self._graph.of_kind(Kind.COLLECTIVE)):
            return None
        if (bits := parse_collective(spec.collective).bits) is None:
            return self.transport(collectives[0], self.bounds(collectives[0])).run
        to, into = self.sockets(collectives[0])
        ring = RingOfBits(
            bits,
            spec.rank,
            spec.world_size,
            to,
            len(self._replica.buffer),
            spec.peer_timeout_s,
            into,
            None if self.posted is None else self.posted.add,
        )
        return stack.enter_context(contextlib.closing(ring)).run

    def compute(self, iteration: int) -> bool:
        self._loss = self._replica.compute(iteration)
        return True

    def collective(
        self, iteration: int, k: int
    ) -> tuple[Callable[[], RunReport], Callable[[], int]]:
        def run() -> RunReport:
            assert self._reduce is not None
            self._report = self._reduce(self._replica.buffer)
            return self._report

        return run, lambda: 0

    def end(self, iteration: int) -> dict[str, object]:
        """Update the parameters and return the fields of the iteration's event except times.

        The time of the update is taken from the next iteration's computation.
        """
        self._replica.update(iteration)
        if self._checkpoint is not None:
            self._checkpoint.keep(iteration + 1, self._replica.parameters)
        fields: dict[str, object] = {"loss": self._loss}
        if (report := self._report) is not None and self._spec.onic is not None:
            # Flows of the all-reduce, and how long they waited for light, seconds.
            wait = {
                "longest": report.flow_wait_longest_s,
                "sum": report.flow_wait_sum_s,
            }
            fields |= {"flows": report.flows, "flow_wait_s": wait}
        return fields

    def outcome(self, checked: int) -> dict[str, object]:
        return {
            "parameters_sha256": fingerprint(self._replica.parameters),
            # Not at the start, for which other ranks may wait.
            "loss_first": loss_of(initial_parameters(self._spec.seed), *training_set()),
            "loss_last": self._replica.loss(),
            "accuracy": self._replica.accuracy(),
        }
