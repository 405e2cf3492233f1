"""Keep how far each transfer of a collective has come at one rank, and what it may do next."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes received, added and sent on at a time: large, because each receive costs an acknowledgement.
SEGMENT_BYTES = 2 * 1024 * 1024
#: A short chunk is cut into this many segments, so that a rank can send on while it still receives.
SEGMENTS_PER_CHUNK = 8


class Receive:
    """A transfer into this rank, at byte offsets of the vector; or a peer's READY (``is_word``), at 0."""

    __slots__ = (
        "applied",
        "before",
        "end",
        "is_word",
        "item",
        "previous",
        "reduce",
        "segment",
        "start",
    )

    def __init__(
        self,
        start: int,
        end: int,
        reduce: bool,
        previous: Receive | None,
        item: int = 1,
        is_word: bool = False,
    ) -> None:
        self.start, self.end, self.reduce, self.previous = start, end, reduce, previous
        self.item, self.is_word = item, is_word
        self.applied = start
        share = -(-(end - start) // (SEGMENTS_PER_CHUNK * item)) * item
        self.segment = min(SEGMENT_BYTES // item * item, share)
        #: Sends that must take their bytes before this receive changes them.
        self.before: list[Send] = []

    def ready(self) -> int:
        """Return the byte offset up to which a later send of the chunk may go now: the end of a segment."""
        if self.applied == self.end:
            return self.end
        return self.applied - (self.applied - self.start) % self.segment

    def limit(self) -> int:
        """Return the byte offset up to which the next receive may go.

        That is one segment further, and not beyond an earlier receive of the chunk. The limit lies before
        bytes that an earlier send has still to send, if that leaves anything to receive.
        """
        if self.is_word:
            return self.end
        begin = self.applied
        limit = self.end if self.previous is None else self.previous.applied
        # Whole items only; a ``replace`` may have stopped inside one.
        limit = min(limit - limit % self.item, begin - begin % self.item + self.segment)
        for send in self.before:
            free = max(send.sent, send.aside_end)
            free -= free % self.item
            if begin < free < limit:
                limit = free
        return limit


class Send:
    """A transfer out of this rank, at byte offsets of the vector; or READY (``is_word``), at 0.

    ``after``: the last earlier receive into its chunk. ``awaits``: receives that end before it begins.
    """

    __slots__ = (
        "after",
        "aside",
        "aside_end",
        "awaits",
        "end",
        "is_word",
        "lent",
        "sent",
        "start",
    )

    def __init__(
        self,
        start: int,
        end: int,
        after: Receive | None,
        awaits: tuple[Receive, ...],
        lent: bool = False,
        is_word: bool = False,
    ) -> None:
        self.start, self.end, self.after, self.awaits, self.lent = (
            start,
            end,
            after,
            awaits,
            lent,
        )
        self.is_word = is_word
        self.sent = self.aside_end = start
        self.aside: memoryview | None = None

    def keep(self, data: memoryview, until: int) -> None:
        """Copy what is unsent before ``until`` aside, because a receive is about to overwrite it."""
        begin = max(self.sent, self.aside_end)
        if until > begin:
            if self.aside is None:
                self.aside = memoryview(bytearray(self.end - self.start))
            self.aside[begin - self.start : until - self.start] = data[begin:until]
            self.aside_end = until


@dataclass(frozen=True)
class Burst:
    """The sends of ``step`` to one peer, up to index ``end``: ready when ``needs`` have been applied."""

    step: int
    end: int
    needs: tuple[Receive, ...]
