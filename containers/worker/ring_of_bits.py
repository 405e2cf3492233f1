"""A ring all-reduce of gradients as whole numbers of B bits: the collectives ``ring-bits-B``.

What all ranks end with is, bit by bit, the exact mean of the quantised gradients. The blocks' scales are
agreed on by an all-reduce of the largest; then codes are added on their way round, in the bits that their
sums need, and the codes of the mean go round in B bits (``fabric.schedules.ring_of_bits``).

A chunk is quantised when the first of its sums comes, and means are turned back as they come, so that both
are done while the connection sends what it has.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.elements import Elements
from ringlight.containers.worker.transport import RunReport, Transport
from ringlight.fabric.collectives import Schedule, all_reduce, chunk_bounds, schedule_of
from ringlight.fabric.gathers import ring_all_gather, ring_reduce_scatter
from ringlight.fabric.whole_numbers import sums
from ringlight.fabric.whole_numbers.blocks import (
    BLOCK,
    block_count,
    dequantise,
    exponents,
    quantise,
    raised,
)
from ringlight.fabric.whole_numbers.sums import (
    GROUP,
    Words,
    group_count,
    pack,
    sum_bits,
    unpack,
)

_WORD = np.dtype("<u8")
#: Groups of means that are turned back at once.
_AT_ONCE = 1024


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
        #: Groups of each rank's part, from and to.
        self._parts = chunk_bounds(group_count(length), ranks)
        self._run: _RingRun | None = None

        def over(
            schedule: Schedule, elements: Elements, size: int, words: int = 0
        ) -> Transport:
            bounds = [0, *(words * end for _, end in self._parts)] if words else None
            return Transport(
                schedule,
                rank,
                connections,
                size,
                peer_timeout_s,
                bounds=bounds,
                into=into,
                on_begin=on_begin,
                elements=elements,
            )

        groups = self._parts[-1][1]
        scales = Elements(np.dtype("<i2"), _larger)
        self._scales = over(all_reduce("ring", ranks), scales, block_count(length))
        scatter = schedule_of(ring_reduce_scatter(ranks))
        width = self._width
        self._sums = over(
            scatter, Elements(_WORD, self._add, width), groups * width, width
        )
        gather = schedule_of(ring_all_gather(ranks))
        # what comes is not only put there
        gather = replace(
            gather, transfers=tuple(replace(t, op="reduce") for t in gather.transfers)
        )
        self._means = over(
            gather, Elements(_WORD, self._take, bits), groups * bits, bits
        )

    def run(self, vector: npt.NDArray[np.float32]) -> RunReport:
        """Replace this rank's vector by ``ranks`` times the mean of all ranks' vectors. Return what the run
        moved.

        The result has the same bits on all ranks. Raises ArithmeticError for a value that is not finite, and
        the exceptions of :meth:`Transport.run`.
        """
        try:
            shared = exponents(vector).astype("<i2")
        except ValueError as error:
            raise ArithmeticError(f"rank {self._rank}: {error}") from error
        reports = [self._scales.run(shared)]
        n, rank, bits, width = self._ranks, self._rank, self._bits, self._width
        self._run = now = _RingRun(vector, shared, bits, rank, n)
        groups = self._parts[-1][1]

        now.parts = iter([self._parts[(rank - 2 - step) % n] for step in range(n - 1)])
        now.words = np.empty(groups * width, _WORD)
        now.prepare(self._parts[(rank - 1) % n], width)
        reports.append(self._sums.run(now.words))

        first, end = self._parts[rank]
        own = unpack(
            now.words[first * width : end * width], width, (end - first) * GROUP
        )
        now.parts = iter([self._parts[(rank - 1 - step) % n] for step in range(n - 1)])
        now.words = np.empty(groups * bits, _WORD)
        now.words[first * bits : end * bits] = pack(sums.mean(own, bits, n), bits)
        reports.append(self._means.run(now.words))
        now.turn_back(first, end)
        self._run = None
        return RunReport(
            sum(report.bytes_sent for report in reports),
            sum(report.bytes_received for report in reports),
            sum(report.bytes_lent for report in reports),
            max(report.max_stall_s for report in reports),
            tuple(stall for report in reports for stall in report.stalls),
        )

    def close(self) -> None:
        """Free all resources except the connections."""
        for transport in (self._scales, self._sums, self._means):
            transport.close()

    def _add(self, into: Words, what: Words) -> None:
        """Add arrived sums to this rank's codes. They arrive part by part and in order."""
        assert self._run is not None
        if not self._run.left:
            self._run.prepare(self._run.next_part(), self._width)
        sums.add(into, what)
        self._run.left -= into.size // self._width

    def _take(self, into: Words, what: Words) -> None:
        """Store arrived means. They arrive part by part and in order."""
        now = self._run
        assert now is not None
        if not now.left:
            now.done, _ = now.next_part()
            now.come = now.done
        into[:] = what
        came = into.size // self._bits
        now.left -= came
        now.come += came
        if not now.left or now.come - now.done >= _AT_ONCE:
            now.turn_back(now.done, now.come)
            now.done = now.come


class _RingRun:
    """State of one all-reduce. ``parts``: parts still to come, in groups. ``left``: groups missing of the
    present part.

    ``done``, ``come``: groups up to which means are turned back, and have arrived.
    """

    def __init__(
        self,
        vector: npt.NDArray[np.float32],
        shared: npt.NDArray[np.int16],
        bits: int,
        rank: int,
        ranks: int,
    ) -> None:
        self._vector, self._shared, self._bits = vector, shared, bits
        self._rank, self._ranks = rank, ranks
        self.words: Words = np.empty(0, _WORD)
        self.parts: Iterator[tuple[int, int]] = iter(())
        self.left = self.done = self.come = 0

    def next_part(self) -> tuple[int, int]:
        """Begin with the next part that is not empty and return its first group and its end, since nothing
        comes of an empty part.
        """
        part = next((first, end) for first, end in self.parts if first < end)
        self.left = part[1] - part[0]
        return part

    def prepare(self, part: tuple[int, int], width: int) -> None:
        """Quantise this rank's values of a part into its words."""
        first, end = part
        start, values, blocks = self._blocks(first, end)
        more = raised(self._rank, self._ranks)
        codes = quantise(
            self._vector[values], self._shared[blocks], self._bits, more=more
        )
        self.words[first * width : end * width] = pack(codes[start:], width)

    def turn_back(self, first: int, end: int) -> None:
        """Convert the means from group ``first`` to before ``end`` to values."""
        start, values, blocks = self._blocks(first, end)
        groups = values.start // GROUP
        words = self.words[groups * self._bits : end * self._bits]
        # what is before ``first`` only fills the block, and may not be there yet
        means = unpack(words, self._bits, values.stop - values.start)
        mean = dequantise(means, self._shared[blocks], self._bits)[start:]
        np.multiply(mean, np.float32(self._ranks), out=self._vector[values][start:])

    def _blocks(self, first: int, end: int) -> tuple[int, slice, slice]:
        """Return how many values come before group ``first``, and the slices of the values and of the blocks.

        The slices are of the whole blocks that have some of the groups from ``first`` to before ``end``.
        """
        values = slice(
            first * GROUP // BLOCK * BLOCK, min(end * GROUP, len(self._vector))
        )
        return (
            first * GROUP - values.start,
            values,
            slice(values.start // BLOCK, -(-values.stop // BLOCK)),
        )
