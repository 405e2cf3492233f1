"""Track which steps are known to come before which, when thread blocks run at the same time.

Two steps of a file are in order when one thread block takes both, one waits for the other, one receives what
the other sends, or others between them are in order so. Two steps that are not in order, and use one chunk of
a buffer that at least one of them changes, are a race: the file does not define the result.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class Order:
    """Steps in an order in which they can be taken. A past is a set of steps, bit k the k-th one."""

    _now: int = 0
    _past: int = 0
    _line: int = 0
    _written: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _read: dict[Hashable, list[tuple[int, int]]] = field(default_factory=dict)

    def begin(self, line: int, past: int) -> None:
        """Begin the next step, in ``line`` of the file, which has all of ``past`` behind it."""
        self._line, self._past = line, past

    def end(self) -> int:
        """Return the past of the steps that come after this step."""
        past = self._past | 1 << self._now
        self._now += 1
        return past

    def reads(self, cell: Hashable) -> int | None:
        """Record a read of ``cell``.

        Return the line of a step that may change it before this reads it, or after; else None.
        """
        self._read.setdefault(cell, []).append((self._now, self._line))
        return self._not_before([self._written[cell]] if cell in self._written else [])

    def writes(self, cell: Hashable) -> int | None:
        """Record a write of ``cell``.

        Return the line of a step that may use the cell before this changes it, or after; else None.
        """
        uses = self._read.pop(cell, [])
        if cell in self._written:
            uses.append(self._written[cell])
        self._written[cell] = (self._now, self._line)
        return self._not_before(uses)

    def _not_before(self, uses: list[tuple[int, int]]) -> int | None:
        lines = (
            line
            for step, line in uses
            if step != self._now and not self._past >> step & 1
        )
        return next(lines, None)
