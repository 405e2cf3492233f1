"""Gradients that are reduced in buckets while the backward pass goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringlight.extensions.models.settings import Training
from ringlight.workloads.graph import Collective
from ringlight.workloads.graph_writer import Handle, Writer


@dataclass
class Buckets:
    """Gradients of one purpose, as they get ready, on a stream of their own.

    A bucket is closed by the layer with which it has as many bytes as a bucket may have or more, as PyTorch's
    DistributedDataParallel closes it with a tensor. ``ranks`` of its group: with one nothing is reduced.
    """

    writer: Writer
    training: Training
    purpose: str
    stream: str
    slot: int
    ranks: int
    parameters: list[int] = field(
        default_factory=list
    )  # of each bucket of the last pass
    last: Handle | None = None
    _pending: int = 0

    def begin(self) -> None:
        """Begin a new pass."""
        self.parameters, self._pending = [], 0

    def add(self, parameters: int, ready: Handle) -> None:
        """Add gradients of so many parameters that are ready with ``ready``.

        Close the bucket if it is full.
        """
        self._pending += parameters
        limit = (
            self.training.bucket_bytes
            if self.parameters
            else self.training.first_bucket_bytes
        )
        if parameters and self._pending * self.training.gradient_bytes >= limit:
            self.close(ready)

    def close(self, ready: Handle) -> None:
        """Close the bucket: reduce its gradients over the ranks, if there are any."""
        if not self._pending:
            return
        if self.ranks > 1:
            kind = "reduce-scatter" if self.training.zero else "all-reduce"
            self.last = self.writer.collective(
                f"{self.purpose} gradients",
                Collective(kind, self.training.algorithms.get(kind, "")),
                self._pending * self.training.gradient_bytes,
                self.slot,
                stream=self.stream,
                after=[ready],
            )
        self.parameters.append(self._pending)
        self._pending = 0
