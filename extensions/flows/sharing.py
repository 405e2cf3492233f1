"""Long flows as a fluid: max-min fair rates over links that each passes with a share of its bytes.

Progressive filling (Bertsekas and Gallager, Data Networks, 6.5.2). A link on which all flows together could
not exceed the capacity is no limit. When a flow comes or goes, only those are shared anew whose rates would be
unfair without it; all others keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

#: Relative difference below which two rates are the same.
SAME = 1e-9
#: Share of its capacity from which a link is full.
FULL = 1 - 1e-6
#: Bytes per second of a flow, and the link that limits it, -1 for its own bound.
Rate = tuple[float, int]


@dataclass(eq=False)
class Fluid:
    """A flow in progress.

    ``forward``: by link, in the order of the way, its share of the flow's bytes. ``shares``: the same, and for
    the links of its acknowledgements their bytes for each byte of the flow. ``left_bytes``: at ``since_s``.

    ``bound`` and ``rate``: largest and present rate, bytes per second. ``narrowest``: the first link that
    limits it alone, ``tightest``: among the others. Its queue stands at its first link, except
    ``moved_bytes`` of it, at ``moved_link``, which grow by ``drift`` bytes per second. ``contended``: the
    shares on contended links, None until they are needed.
    """

    number: int
    forward: dict[int, float]
    shares: Mapping[int, float]
    start_s: float
    left_bytes: float
    window_bytes: float
    bound: float
    narrowest: int
    since_s: float
    rate: float = 0.0
    tightest: int = -1
    moved_bytes: float = 0.0
    drift: float = 0.0
    moved_link: int = -1
    version: int = 0
    contended: dict[int, float] | None = None

    @property
    def shared(self) -> bool:
        """Return whether other flows hold it below its largest rate."""
        return 0 < self.rate < self.bound * FULL

    @property
    def alone(self) -> bool:
        """Return whether it has its largest rate, and others limit it nowhere."""
        return self.tightest == self.narrowest and self.rate >= self.bound * (1 - SAME)

    @cached_property
    def first(self) -> int:
        """Return its first link."""
        return next(iter(self.forward))

    @cached_property
    def last(self) -> int:
        """Return the last link of its way."""
        return next(reversed(self.forward))

    def move(self, link: int, moved_bytes: float) -> None:
        """Let so much of the queue stand at a link."""
        self.moved_link, self.moved_bytes = link, moved_bytes

    def standing(self, link: int, queued_bytes: float, now_s: float) -> float:
        """Return the bytes of its queue that stand at a link."""
        moved = min(queued_bytes, self.moved_at(now_s))
        if link == self.first:
            return queued_bytes - moved
        return moved if link == self.moved_link else 0.0

    def left_at(self, now_s: float) -> float:
        """Return the bytes left at a time."""
        return max(0.0, self.left_bytes - self.rate * (now_s - self.since_s))

    def advance(self, now_s: float) -> None:
        """Let time pass until ``now_s``."""
        self.moved_bytes = self.moved_at(now_s)
        self.left_bytes, self.since_s = self.left_at(now_s), now_s

    def moved_at(self, now_s: float) -> float:
        """Return the bytes of its queue at ``moved_link`` at a time."""
        moved = self.moved_bytes + self.drift * (now_s - self.since_s)
        return min(self.window_bytes, max(0.0, moved))


class Sharing:
    """The flows on each link, and their rates. ``capacity``: bytes per second by link."""

    def __init__(self, capacity: Sequence[float]) -> None:
        self._capacity = capacity
        self._users: list[dict[Fluid, None]] = [{} for _ in capacity]
        #: Bytes per second that the flows of a link would have there without other flows.
        self._potential = [0.0] * len(capacity)
        #: Links on which flows together could exceed the capacity.
        self.contended: set[int] = set()
        #: Bytes per second on each link.
        self.load = [0.0] * len(capacity)
        #: Flows by the link that limits them.
        self.limited: list[dict[Fluid, None]] = [{} for _ in capacity]

    def bound(self, shares: Mapping[int, float]) -> tuple[float, int]:
        """Return the largest rate of a flow in bytes per second, and the first link that limits it."""
        rates = {link: self._capacity[link] / share for link, share in shares.items()}
        least = min(rates.values())
        return least, next(
            link for link, rate in rates.items() if rate <= least * (1 + SAME)
        )

    def add(self, flow: Fluid) -> list[Fluid]:
        """Add a flow. Return all flows whose rates changed, with their new rates; all are advanced."""
        for link in flow.shares:
            self._users[link][flow] = None
        self._commit(flow, 1)
        return self._share([flow], flow.start_s)

    def remove(self, flow: Fluid, now_s: float) -> list[Fluid]:
        """Remove a flow. Return all flows whose rates changed."""
        self._set(flow, 0.0, -1)
        for link in flow.shares:
            del self._users[link][flow]
        self._commit(flow, -1)
        held = dict.fromkeys(
            other
            for link in flow.shares
            for other in self.limited[link]
            if not other.alone
        )
        return self._share(held, now_s)

    def displace(
        self, shares: Mapping[int, float], wire_bytes: float, now_s: float
    ) -> list[Fluid]:
        """Add bytes of other traffic to links. Return the flows that wait for them, as the links are full.

        ``shares``: by link, the share of the bytes. A flow that two links limit equally keeps both busy. Its
        queue moves to where the bytes come in: to the second link, or back to the first.
        """
        delayed: dict[Fluid, float] = {}
        for link, share in shares.items():
            if self.load[link] < self._capacity[link] * FULL:
                continue
            for flow in self._users[link]:
                part = flow.rate * wire_bytes * share / self._capacity[link]
                delayed[flow] = delayed.get(flow, 0.0) + part
                moved = part * flow.forward.get(link, 0.0)
                if not moved:
                    continue
                flow.advance(now_s)
                if link == flow.first:
                    flow.moved_bytes = max(0.0, flow.moved_bytes - moved)
                else:
                    flow.move(link, flow.moved_bytes + moved)
        for flow, more in delayed.items():
            flow.advance(now_s)
            flow.left_bytes += more
            flow.version += 1
        return list(delayed)

    def users(self, link: int) -> Mapping[Fluid, None]:
        """Return the flows that pass a link."""
        return self._users[link]

    def _commit(self, flow: Fluid, sign: int) -> None:
        """Add a flow's largest rate to its links, or with ``sign`` -1 take it away."""
        for link, share in flow.shares.items():
            self._potential[link] += sign * share * flow.bound
            exceeds = self._potential[link] > self._capacity[link] * (1 + SAME)
            if exceeds == (link in self.contended):
                continue
            (self.contended.add if exceeds else self.contended.discard)(link)
            for user in self._users[link]:
                user.contended = None

    def _contended_by(self, flow: Fluid) -> dict[int, float]:
        """Return a flow's shares on contended links, in the order of its way: of equally tight ones the first
        counts.
        """
        if flow.contended is None:
            flow.contended = {
                link: share
                for link, share in flow.shares.items()
                if link in self.contended
            }
        return flow.contended

    def _share(self, flows: Iterable[Fluid], now_s: float) -> list[Fluid]:
        """Give flows new rates, and all others whose rates these change. Return those with other rates.

        All others keep their rates while some are shared anew; those whose rates then are not max-min fair any
        more are shared anew with them, until there are none.
        """
        results: dict[Fluid, Rate] = {}
        more = list(flows)
        while more:
            solved = [*results, *more]
            left = self._left(solved)
            ways = [self._contended_by(flow) for flow in solved]
            rates = fill(ways, left, [flow.bound for flow in solved])
            results = dict(zip(solved, rates, strict=True))
            more = self._unfair(results, left)
        changed = []
        for flow, (rate, link) in results.items():
            tightest = link if link >= 0 else flow.narrowest
            if abs(rate - flow.rate) > SAME * flow.rate or tightest != flow.tightest:
                flow.advance(now_s)
                self._set(flow, rate, tightest)
                flow.version += 1
                changed.append(flow)
        return changed

    def _left(self, flows: Iterable[Fluid]) -> dict[int, float]:
        """Return the bytes per second that all other flows leave on contended links of some."""
        left: dict[int, float] = {}
        for flow in flows:
            for link, share in self._contended_by(flow).items():
                if link not in left:
                    left[link] = self._capacity[link] - self.load[link]
                left[link] += share * flow.rate
        return {link: max(0.0, rate) for link, rate in left.items()}

    def _unfair(
        self, results: Mapping[Fluid, Rate], left: Mapping[int, float]
    ) -> list[Fluid]:
        """Return other flows whose rates are not max-min fair, or have another tightest link, beside new ones.

        A flow's rate is fair if a link is full on which none has more (Bertsekas and Gallager, 6.5.2).
        """
        rest, highest, limit = dict(left), dict.fromkeys(left, 0.0), dict[int, float]()
        for flow, (rate, tightest) in results.items():
            for link, share in self._contended_by(flow).items():
                rest[link] -= share * rate
                highest[link] = max(highest[link], rate)
            if tightest >= 0:
                limit[tightest] = rate
        more: dict[Fluid, None] = {}
        for link, rate in rest.items():
            if rate > self._capacity[link] * SAME:
                unfair = [flow for flow in self.limited[link] if not flow.alone]
            else:
                most = limit.get(link, math.inf) * (1 + SAME)
                top = highest[link] * (1 - SAME)
                unfair = [
                    flow
                    for flow in self._users[link]
                    if flow.rate > most or (flow.rate < top) == (flow.tightest == link)
                ]
            more |= dict.fromkeys(flow for flow in unfair if flow not in results)
        return list(more)

    def _set(self, flow: Fluid, rate: float, tightest: int) -> None:
        for link, share in flow.shares.items():
            self.load[link] += share * (rate - flow.rate)
        if flow.tightest >= 0:
            del self.limited[flow.tightest][flow]
        if tightest >= 0:
            self.limited[tightest][flow] = None
        flow.rate, flow.tightest = rate, tightest
        flow.drift = 0.0
        if flow.shared and tightest in flow.forward:
            # The queue moves to the link that others share, as fast as an earlier link could send more than
            # that link does, and stays there when they have gone.
            flow.drift = flow.bound - rate
            if tightest == flow.first:
                flow.drift = -flow.drift
            else:
                flow.moved_link = tightest


def fill(
    ways: Sequence[Mapping[int, float]],
    capacity: Mapping[int, float] | Sequence[float],
    bounds: Sequence[float],
) -> list[Rate]:
    """Return the max-min fair rate of each flow, and the link that limits it, -1 for its own bound.

    ``ways``: of each flow the share of its bytes by link. ``bounds``: the largest rate of each flow. Of equally
    tight links the first counts.
    """
    result = [(0.0, -1)] * len(ways)
    left = {link: capacity[link] for way in ways for link in way}
    active = list(range(len(ways)))
    while active:
        total = dict.fromkeys(left, 0.0)
        for k in active:
            for link, share in ways[k].items():
                total[link] += share
        level = {link: left[link] / sum_ for link, sum_ in total.items() if sum_ > 0}
        tightest = {
            k: min([level[link] for link in ways[k]], default=math.inf) for k in active
        }
        least = dict.fromkeys(level, math.inf)
        for k in active:
            rate = min(tightest[k], bounds[k])
            for link in ways[k]:
                least[link] = min(least[link], rate)
        full = {
            link for link, rate in level.items() if rate <= least[link] * (1 + SAME)
        }
        staying = []
        for k in active:
            rate, limit = bounds[k], -1
            if tightest[k] * (1 + SAME) < bounds[k]:
                if full.isdisjoint(ways[k]):
                    staying.append(k)
                    continue
                rate, limit = (
                    tightest[k],
                    next(link for link in ways[k] if link in full),
                )
            result[k] = rate, limit
            for link, share in ways[k].items():
                left[link] = max(0.0, left[link] - share * rate)
        active = staying
    return result
