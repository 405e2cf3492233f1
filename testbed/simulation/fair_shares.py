"""Rates of flows that share directed links, max-min fair: found anew only for those that a change reaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringlight.testbed.simulation.arrays import SAME
from ringlight.testbed.simulation.link_flows import LinkFlow
from ringlight.testbed.simulation.maxmin import Limits, rates_of_few, rates_of_many

#: Flows up to which plain loops find rates sooner than numpy.
FEW = 64
#: Solutions after which a change that still reaches further is taken to concern all flows.
MOST_TRIES = 3
#: A link is full from this share of its capacity on: rounding must not make it look as if it were not.
FULL = 1 - 1e-9


class FairShares:
    """The rates of flows, by the ``capacity`` of each link, bytes per second, and its ``users``.

    Rates are max-min fair if each flow has a bottleneck: a full link on which no flow has more (Bertsekas
    and Gallager, 6.5.2). So flows on links that changed are given new rates in what others leave; where
    one of them, or one that it meets, is without a bottleneck then, its links count as changed, too.
    """

    def __init__(
        self, capacity: list[float], users: list[dict[LinkFlow, None]]
    ) -> None:
        self._capacity, self._users = capacity, users
        self._round = 0
        #: Counts flows that come or go, and changes of capacities and limits.
        self.arranged = 0

    def propose(self, touched: Sequence[int]) -> list[LinkFlow]:
        """Propose new rates for all flows that the changes of these links concern. Return these flows."""
        queue = list(touched)
        self._round += 1
        seen: set[int] = set()
        flows: list[LinkFlow] = []
        tries = 0
        while queue:
            tries += 1
            if tries > MOST_TRIES:
                queue = [
                    link
                    for link, users in enumerate(self._users)
                    if users and link not in seen
                ]
            seen.update(queue)
            for link in queue:
                for flow in self._users[link]:
                    if flow.round != self._round:
                        flow.round = self._round
                        flows.append(flow)
            self._propose_beside(flows, seen)
            queue = self._unsettled(flows, seen) if tries <= MOST_TRIES else []
        return flows

    def _look(self, flow: LinkFlow) -> None:
        """Find out which of its links a flow shares now, and its rate if these were no limit."""
        if flow.looked == self.arranged:
            return
        flow.looked = self.arranged
        bound, shared = flow.most, []
        for link in flow.links:
            capacity = self._capacity[link]
            if len(self._users[link]) > 1:
                shared.append(link)
                if capacity > 0:
                    continue
            bound = min(bound, capacity)
        flow.shared, flow.bound = shared, bound

    def _propose_beside(self, flows: list[LinkFlow], seen: set[int]) -> None:
        """Propose rates of these flows while all other flows, of which there are none on links in ``seen``,
        keep theirs.
        """
        users, capacity, number = self._users, self._capacity, self._round
        together: list[LinkFlow] = []
        left: dict[int, float] = {}
        for flow in flows:
            self._look(flow)
            # Flows that stand still or share nothing need no common solution.
            flow.proposed, flow.place = flow.bound, -1
            meets = (
                flow.shared
                or flow.close
                or (flow.behind is not None and flow.behind.close)
            )
            if flow.bound <= 0 or not meets:
                continue
            flow.place = len(together)
            together.append(flow)
            for link in flow.shared:
                if link not in left:
                    left[link] = capacity[link]
                    if link not in seen:
                        kept = sum(
                            [
                                other.rate
                                for other in users[link]
                                if other.round != number
                            ]
                        )
                        left[link] = max(left[link] - kept, 0.0)
        if not together:
            return
        limits = self._limits(together)
        if len(together) <= FEW:
            rates = rates_of_few([flow.shared for flow in together], left, limits)
        else:
            place = {link: number for number, link in enumerate(left)}
            links = np.array(
                [place[link] for flow in together for link in flow.shared],
                dtype=np.int64,
            )
            offsets = np.cumsum([0, *(len(flow.shared) for flow in together)])
            rates = rates_of_many(
                offsets, links, np.array(list(left.values())), limits
            ).tolist()
        for flow, rate in zip(together, rates, strict=True):
            flow.proposed = rate

    def _limits(self, flows: list[LinkFlow]) -> Limits:
        """Return the limits of the rates of these flows in addition to the links that they share."""
        most = [flow.bound for flow in flows]
        if not any(flow.close for flow in flows):
            return Limits(most)
        after = [-1] * len(flows)
        for number, flow in enumerate(flows):
            if flow.close and (ahead := flow.ahead) is not None:
                if ahead.round == self._round and ahead.place >= 0:
                    after[number] = ahead.place
                else:
                    most[number] = min(most[number], self._rate(ahead))
        return Limits(most, after)

    def _rate(self, flow: LinkFlow) -> float:
        """Return the rate that is proposed for a flow, or that it has."""
        return flow.proposed if flow.round == self._round else flow.rate

    def _unsettled(self, flows: list[LinkFlow], seen: set[int]) -> list[int]:
        """Return the links outside ``seen`` of flows that have no bottleneck at the proposed rates, and of
        flows that they meet.
        """
        number = self._round
        known: dict[int, tuple[bool, float]] = {}

        def state(link: int) -> tuple[bool, float]:
            """Return whether a link is full, and the largest rate of a flow on it in bytes per second."""
            if (entry := known.get(link)) is None:
                rates = [
                    user.proposed if user.round == number else user.rate
                    for user in self._users[link]
                ]
                entry = known[link] = (
                    sum(rates) >= self._capacity[link] * FULL,
                    max(rates),
                )
            return entry

        def settled(flow: LinkFlow, rate: float) -> bool:
            self._look(flow)
            if rate >= flow.bound * FULL:
                return True
            if (
                flow.close
                and flow.ahead is not None
                and rate >= self._rate(flow.ahead) * FULL
            ):
                return True
            for link in flow.shared:
                full, most = state(link)
                if full and rate >= most * FULL:
                    return True
            return False

        unsettled: dict[int, None] = {}
        for flow in flows:
            changes = abs(flow.proposed - flow.rate) > SAME * flow.rate
            if (
                changes
                and (behind := flow.behind)
                and behind.close
                and behind.round != number
            ):
                keeps = behind.rate * FULL <= flow.proposed and settled(
                    behind, behind.rate
                )
                unsettled.update({} if keeps else dict.fromkeys(behind.links))
            open_links = [link for link in flow.shared if link not in seen]
            if not open_links:
                continue
            if not settled(flow, flow.proposed):
                unsettled.update(dict.fromkeys(open_links))
            elif changes:
                for link in open_links:
                    for other in self._users[link]:
                        if other.round != number and not settled(other, other.rate):
                            unsettled.update(dict.fromkeys(other.links))
        return [link for link in unsettled if link not in seen]
