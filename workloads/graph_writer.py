"""A workload being written: programs, operation by operation, and the names and groups that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import frozen
from ringlight.workloads.graph import Collective, Kind, Program, Workload
from ringlight.workloads.graph_checks import check


class Handle(NamedTuple):
    """An operation of a program under construction."""

    number: int


#: The columns of a :class:`Program` up to its tag, of one operation.
_Row = tuple[int, int, int, float, float, int, int, int, int]
# Millions of them are written, and numpy takes three times as long for members of an enumeration.
_COMPUTE, _MEMORY, _COLLECTIVE = (
    int(Kind.COMPUTE),
    int(Kind.MEMORY),
    int(Kind.COLLECTIVE),
)
_SEND, _RECEIVE = int(Kind.SEND), int(Kind.RECEIVE)


@dataclass
class Writer:
    """A program under construction; every method returns the operation that it added."""

    book: Book
    rows: list[_Row] = field(default_factory=list)
    edges: list[tuple[int, ...]] = field(default_factory=list)

    def compute(
        self,
        name: str,
        *,
        seconds: float | None = None,
        flops: float = 0.0,
        stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:
        """Add a computation of ``seconds``, or of so many ``flops``. Return the operation."""
        known = np.nan if seconds is None else seconds
        return self._add(
            (_COMPUTE, *self._named(stream, name), known, flops, 0, -1, -1, 0), after
        )

    def memory(
        self,
        name: str,
        size: int,
        *,
        stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:
        """Add an operation that reads or writes ``size`` bytes of memory. Return the operation."""
        return self._add(
            (_MEMORY, *self._named(stream, name), np.nan, 0.0, size, -1, -1, 0), after
        )

    def collective(
        self,
        name: str,
        what: Collective,
        size: int,
        slot: int,
        *,
        stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:
        """Add ``what`` over ``size`` bytes with the group in communicator slot ``slot``.

        Return the operation.
        """
        which = self.book.collective(what)
        row = (
            _COLLECTIVE,
            *self._named(stream, name),
            np.nan,
            0.0,
            size,
            which,
            slot,
            0,
        )
        return self._add(row, after)

    def send(
        self,
        name: str,
        size: int,
        slot: int,
        tag: int = 0,
        *,
        stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:
        """Add a send of ``size`` bytes to the rank in peer slot ``slot``. Return the operation."""
        return self._add(
            (_SEND, *self._named(stream, name), np.nan, 0.0, size, -1, slot, tag), after
        )

    def receive(
        self,
        name: str,
        size: int,
        slot: int,
        tag: int = 0,
        *,
        stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:
        """Add a receive of ``size`` bytes from the rank in peer slot ``slot``. Return the operation."""
        return self._add(
            (_RECEIVE, *self._named(stream, name), np.nan, 0.0, size, -1, slot, tag),
            after,
        )

    def _named(self, stream: str, name: str) -> tuple[int, int]:
        return self.book.stream(stream), self.book.name(name)

    def _add(self, row: _Row, after: Iterable[Handle | None]) -> Handle:
        self.rows.append(row)
        self.edges.append(
            tuple({handle.number: None for handle in after if handle is not None})
            if after
            else ()
        )
        return Handle(len(self.rows) - 1)

    def done(self) -> Program:
        """Return the program as arrays."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * 9
        kind, stream, name, seconds, flops, size, collective, slot, tag = columns
        offsets = np.cumsum([0, *map(len, self.edges)])
        after = [edge for edges in self.edges for edge in edges]
        return Program(
            np.array(kind, dtype=np.int8),
            frozen(stream),
            frozen(name),
            np.array(seconds, dtype=np.float64),
            np.array(flops, dtype=np.float64),
            frozen(size),
            frozen(collective),
            frozen(slot),
            frozen(tag),
            frozen(offsets),
            frozen(after),
        )


class Book:
    """Names, streams, collectives and groups that the programs of one workload share while they are
    written.
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._collectives: dict[Collective, int] = {}
        self._groups: dict[tuple[int, ...], int] = {}

    def name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def stream(self, name: str) -> int:
        return self._streams.setdefault(name, len(self._streams))

    def collective(self, what: Collective) -> int:
        return self._collectives.setdefault(what, len(self._collectives))

    def group(self, ranks: Sequence[int]) -> int:
        """Return the number of the group of these ranks, in this order."""
        return self._groups.setdefault(tuple(ranks), len(self._groups))

    def workload(
        self,
        name: str,
        programs: Sequence[Program],
        program_of: npt.ArrayLike,
        communicators: npt.ArrayLike,
        peers: npt.ArrayLike,
    ) -> Workload:
        """Return the workload that was written, checked. Raises ValueError if :func:`check` does."""
        of = frozen(program_of)
        return check(
            Workload(
                name,
                len(of),
                tuple(programs),
                of,
                tuple(frozen(g) for g in self._groups),
                frozen(np.reshape(communicators, (len(of), -1))),
                frozen(np.reshape(peers, (len(of), -1))),
                tuple(self._collectives),
                tuple(self._names),
                tuple(self._streams) or ("main",),
            )
        )


def data_parallel_loop(
    ranks: int, compute_s: float, gradient_bytes: int, algorithm: str = ""
) -> Workload:
    """Return a workload: ranks compute for ``compute_s`` seconds, then all-reduce ``gradient_bytes``."""
    book = Book()
    writer = Writer(book)
    done = writer.compute("iteration", seconds=compute_s)
    groups = np.full((ranks, 1), -1)
    if ranks > 1:
        writer.collective(
            "dp gradients",
            Collective("all-reduce", algorithm),
            gradient_bytes,
            0,
            after=[done],
        )
        groups[:] = book.group(range(ranks))
    none = np.empty((ranks, 0))
    return book.workload(
        "data-parallel loop", [writer.done()], np.zeros(ranks), groups, none
    )
