"""Flows over directed links: one as it is under way, and what passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class LinkFlow:
    """Bytes on their way. ``left`` of them had yet to pass at ``since_s``; they do at ``rate`` per second,
    which is never more than ``most``.

    A flow may follow another, ``ahead``: it passes ``gap`` bytes more than that until it must wait for it.
    Once it has, it is ``close``, and has at most the rate of the other.
    """

    __slots__ = (
        "ahead",
        "behind",
        "bound",
        "close",
        "done",
        "entered",
        "gap",
        "gap_since_s",
        "left",
        "links",
        "looked",
        "more",
        "most",
        "over",
        "place",
        "proposed",
        "rate",
        "round",
        "shared",
        "since_s",
        "version",
        "waiting",
    )

    def __init__(
        self,
        size: float,
        done: Callable[[], None],
        more: More | None = None,
        most: float = math.inf,
    ) -> None:
        self.links: tuple[int, ...] = ()
        self.left = size
        self.done = done
        self.more = more
        self.most = most
        self.rate = self.proposed = 0.0
        self.since_s = 0.0
        self.ahead: LinkFlow | None = None
        self.behind: LinkFlow | None = None
        self.gap = math.inf
        self.gap_since_s = 0.0
        self.close = False
        #: Counts the times at which it would be close: one that was worked out before the last is void.
        self.waiting = 0
        #: Counts changes of rate: an end that was worked out before the last one is void.
        self.version = 0
        self.entered = self.over = False
        #: The last solution that it is part of, and its place there; -1 if it needs none.
        self.round, self.place = 0, -1
        #: As of which arrangement it was looked at: the links that it shares with others then, and the rate
        #: that all else allows it, except for the flow that it follows.
        self.looked = -1
        self.shared: Sequence[int] = ()
        self.bound = most


#: Called when a flow's last byte has passed; gives the bytes that follow it at once, 0 for none.
More = Callable[[LinkFlow], float]


class Passed(NamedTuple):
    """Bytes that passed some links from ``begin_s`` to ``end_s`` at ``rate`` bytes per second."""

    links: tuple[int, ...]
    begin_s: float
    end_s: float
    rate: float
