"""A ring all-reduce of gradients as whole numbers of B bits: the collectives ``ring-bits-B``.

What all ranks end with is, bit by bit, what OptINC's exact unit gives for the same gradients. The blocks'
scales are agreed on by an all-reduce of the largest; then codes are added on their way round, in the bits
that their sums need, and the codes of the mean go round in B bits (``fabric.schedules.ring_of_bits``).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from containers.worker.transport import Elements, RunReport, Transport
from fabric.collectives import all_reduce, chunk_bounds, schedule_of
from fabric.gathers import ring_all_gather, ring_reduce_scatter
from fabric.optinc import sums
from fabric.optinc.blocks import block_count, dequantise, exponents, quantise
from fabric.optinc.sums import GROUP, group_count, pack, sum_bits, unpack

_WORD = np.dtype("<u8")


def _larger(into: npt.NDArray[np.int16], what: npt.NDArray[np.int16]) -> None:
    np.maximum(into, what, out=into)


class RingOfBits:
    """Runs it again and again over the connections of a ring. Arguments are those of :class:`Transport`.

    ``ranks``: at least 2, the connections those to the next rank and ``into`` those from the one before.
    """

    def __init__(
        self,
        bits: int,
        rank: int,
        ranks: int,
        connections: Mapping[int, socket.socket],
        length: int,
        peer_timeout_s: float = 15.0,
        into: Mapping[int, socket.socket] | None = None,
        on_begin: Callable[[int, int], None] | None = None,
    ) -> None:
        self._bits, self._rank, self._ranks, self._length = bits, rank, ranks, length
        self._width = sum_bits(bits, ranks)
        groups = group_count(length)
        self._bounds = [0, *(end for _, end in chunk_bounds(groups, ranks))]

        def round_of(kind: str, elements: Elements, size: int, words: int = 0) -> Transport:
            schedule = {
                "scales": all_reduce("ring", ranks),
                "sums": schedule_of(ring_reduce_scatter(ranks)),
                "means": schedule_of(ring_all_gather(ranks)),
            }[kind]
            bounds = [words * bound for bound in self._bounds] if words else None
            return Transport(
                schedule, rank, connections, size, peer_timeout_s,
                bounds=bounds, into=into, on_begin=on_begin, elements=elements,
            )  # fmt: skip

        self._scales = round_of("scales", Elements(np.dtype("<i2"), _larger), block_count(length))
        whole = Elements(_WORD, sums.add, self._width)
        self._sums = round_of("sums", whole, groups * self._width, self._width)
        self._means = round_of("means", Elements(_WORD, sums.add), groups * bits, bits)

    def run(self, vector: npt.NDArray[np.float32]) -> RunReport:
        """Put ``ranks`` times the mean of all ranks' vectors in place of this rank's, the same on all.

        Raises ArithmeticError for a value that is not finite, else as :meth:`Transport.run`.
        """
        try:
            shared = exponents(vector).astype("<i2")
        except ValueError as error:
            raise ArithmeticError(f"rank {self._rank}: {error}") from error
        reports = [self._scales.run(shared)]
        total = pack(quantise(vector, shared, self._bits), self._width)
        reports.append(self._sums.run(total))
        means = np.empty(self._bounds[-1] * self._bits, _WORD)
        first, end = self._bounds[self._rank : self._rank + 2]
        own = unpack(total[first * self._width : end * self._width], self._width, (end - first) * GROUP)
        means[first * self._bits : end * self._bits] = pack(
            sums.mean(own, self._bits, self._ranks), self._bits
        )
        reports.append(self._means.run(means))
        vector[:] = dequantise(unpack(means, self._bits, self._length), shared, self._bits, self._ranks)
        vector *= np.float32(self._ranks)
        return RunReport(
            sum(report.bytes_sent for report in reports),
            sum(report.bytes_received for report in reports),
            sum(report.bytes_lent for report in reports),
            max(report.max_stall_s for report in reports),
            tuple(stall for report in reports for stall in report.stalls),
        )

    def close(self) -> None:
        """Give back what it had beside the connections."""
        for transport in (self._scales, self._sums, self._means):
            transport.close()
