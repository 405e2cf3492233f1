"""Virtual time: flows that share directed links max-min fairly, and things that happen at given times.

Between two events all rates are constant. A flow enters after its latency; when its last byte has passed, its
owner is called. Only flows that share a link, directly or through others, with one that came or went are
looked at again, so a flow alone on its links costs next to nothing however many there are elsewhere. A link
without capacity is dark: flows through it stand still and take nothing from others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from ringlight.testbed.simulation.arrays import SAME, FloatArray
from ringlight.testbed.simulation.fair_shares import FairShares
from ringlight.testbed.simulation.link_flows import LinkFlow, More, Passed

#: Events closer together than this share of the time are one instant.
INSTANT = 1e-13


class TooManyEvents(ValueError):
    """A simulation takes more events than it may."""


class Engine:
    """A clock, a queue of events and the flows in progress. Seconds, and bytes per second.

    ``passed`` grows by what passed the links, when it is a list; it is None, and nothing is kept, unless
    ``trace`` is asked for. After ``most_events`` events :meth:`run` raises TooManyEvents.
    """

    def __init__(self, *, trace: bool = False, most_events: float = math.inf) -> None:
        self.now_s = 0.0
        self._most_events = most_events
        self.passed: list[Passed] | None = [] if trace else None
        self.events = 0
        #: What happens by time, and flows' ends with the version of the flow, which is 0 of all else.
        self._queue: list[
            tuple[float, int, Callable[..., None] | LinkFlow, int, tuple[Any, ...]]
        ] = []
        self._number = itertools.count()
        self._capacity: list[float] = []
        self._users: list[dict[LinkFlow, None]] = []
        self._link: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._touched: dict[int, None] = {}
        #: Flows that left a link, and follow others or are followed.
        self._stopped: list[LinkFlow] = []
        self._shares = FairShares(self._capacity, self._users)
        self._settling: list[Callable[[], None]] = []
        self._paused = False
        #: Is called before anything but a flow's begin or end changes rates, or flows are read.
        self.changing: Callable[[], None] = do_nothing

    # Links.

    def link(self, key: Hashable, capacity: float) -> int:
        """Return the number of the link with the name ``key``. ``capacity``, in bytes per second, is only for
        a new link.
        """
        number = self._link.get(key)
        if number is None:
            number = self._link[key] = len(self._capacity)
            self._keys.append(key)
            self._capacity.append(capacity)
            self._users.append({})
        return number

    def set_capacity(self, link: int, capacity: float) -> None:
        """Set a link's capacity from now on; 0 is dark. Raises ValueError if negative or not finite."""
        if not (math.isfinite(capacity) and capacity >= 0):
            raise ValueError(
                f"link {link}: its capacity is {capacity}; it must be 0 or more"
            )
        if capacity == self._capacity[link]:
            return
        self.changing()
        self._capacity[link] = capacity
        self._shares.arranged += 1
        self._touched[link] = None

    def remaining(self, links: int) -> FloatArray:
        """Return the bytes of the flows in progress that have yet to pass each of the first ``links``
        links.
        """
        self.changing()
        now_s, bytes_left = self.now_s, np.zeros(links)
        for link, users in enumerate(self._users[:links]):
            # Mostly there are none.
            if users:
                bytes_left[link] = sum(
                    max(0.0, flow.left - flow.rate * (now_s - flow.since_s))
                    for flow in users
                )
        return bytes_left

    def key(self, link: int) -> Hashable:
        """Return the name of link number ``link``."""
        return self._keys[link]

    def capacity(self, link: int) -> float:
        """Return the present capacity of a link in bytes per second."""
        return self._capacity[link]

    def users(self, link: int) -> int:
        """Return the number of flows that pass a link."""
        return len(self._users[link])

    def hold_back(self, link: int, resumed_s: Callable[[float], float]) -> None:
        """Have flows that stand still on a link continue later.

        ``resumed_s``: from how long one has stood to how long it stands in all, seconds.
        """
        for flow in list(self._users[link]):
            begin_s = flow.since_s
            at_s = begin_s + resumed_s(self.now_s - begin_s)
            if flow.rate > 0 or at_s <= self.now_s:
                continue
            self.stand(flow, at_s)

    def stand(self, flow: LinkFlow, until_s: float) -> None:
        """Have a flow that is on its links stand still until a time in seconds."""
        self._leave(flow)
        self.at(until_s, self._enter, flow)

    def twin(self, now_s: float) -> Engine:
        """Return an engine with the same links, without flows and events, at a time."""
        twin = Engine(most_events=self._most_events - self.events)
        twin.now_s = now_s
        twin._keys, twin._link = [*self._keys], dict(self._link)
        twin._capacity += self._capacity
        twin._users += [{} for _ in self._users]
        return twin

    def adopt(self, twin: Engine) -> None:
        """Take over the flows and events of a twin that is at the same time, on links that are idle here."""
        for link, users in enumerate(twin._users):
            self._users[link].update(users)
            for flow in users:
                # They were part of the twin's solutions.
                flow.round, flow.looked = 0, -1
        for time_s, _, act, version, arguments in sorted(
            twin._queue, key=lambda event: event[:2]
        ):
            if getattr(act, "__self__", None) is twin:
                act = getattr(self, act.__name__)  # type: ignore[union-attr]
            heappush(self._queue, (time_s, next(self._number), act, version, arguments))
        self.events += twin.events

    # Events.

    def awaits(self, ignored: Callable[[object], bool]) -> bool:
        """Return whether any event is to happen except ignored ones."""
        return any(
            act.version == version if isinstance(act, LinkFlow) else not ignored(act)
            for _, _, act, version, _ in self._queue
        )

    def at(self, time_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call ``act`` with the arguments at a time in seconds. Raises ValueError if that time is past."""
        if not time_s >= self.now_s:
            raise ValueError(f"an event at {time_s} s, and it is {self.now_s} s")
        heappush(self._queue, (time_s, next(self._number), act, 0, arguments))

    def settle(self, act: Callable[[], None]) -> None:
        """Call ``act`` at the end of the present instant. It must begin nothing in that instant."""
        self._settling.append(act)

    def next_event_s(self) -> float:
        """Return the time of the next event in seconds; infinity if nothing is left."""
        queue = self._queue
        while queue and (version := queue[0][3]) and queue[0][2].version != version:  # type: ignore[union-attr]
            heappop(queue)
        return queue[0][0] if queue else math.inf

    # Flows.

    def start(
        self,
        links: Sequence[int],
        size: float,
        done: Callable[[], None],
        latency_s: float = 0.0,
        more: More | None = None,
    ) -> LinkFlow:
        """Start a flow of ``size`` bytes that enters ``latency_s`` seconds from now, and return it.

        ``done`` is called at its end, which is when ``more`` has no more bytes for it.
        """
        flow = LinkFlow(size, done, more)
        self.begin(flow, links, latency_s)
        return flow

    def begin(
        self, flow: LinkFlow, links: Sequence[int], latency_s: float = 0.0
    ) -> None:
        """Have a flow enter ``latency_s`` from now."""
        flow.links = tuple(links)
        if latency_s > 0:
            self.at(self.now_s + latency_s, self._enter, flow)
        else:
            self._enter(flow)

    def follow(self, flow: LinkFlow, ahead: LinkFlow, lead: float) -> None:
        """Let a flow that has not begun pass no more than ``lead`` bytes more than another, until that ends.

        A flow follows one, and is followed by one. Flows may follow each other around: as leads are above 0,
        one of them is always free to go.
        """
        flow.ahead, ahead.behind = ahead, flow
        flow.gap, flow.gap_since_s = lead, self.now_s

    def limit(self, flow: LinkFlow, most: float) -> None:
        """Let a flow have at most this many bytes per second from now on."""
        if most != flow.most:
            flow.most = most
            self._shares.arranged += 1
            self._touched.update(dict.fromkeys(flow.links))

    def stop(self, flow: LinkFlow) -> None:
        """Give up a flow. ``done`` is not called."""
        flow.over = True
        if flow.entered:
            self._leave(flow)
        self._let_go(flow)

    def reroute(self, flow: LinkFlow, links: Sequence[int]) -> None:
        """Send the rest of the flow over other links, from now on."""
        if tuple(links) == flow.links:
            return
        under_way = flow.entered
        if under_way:
            self._leave(flow)
        flow.links = tuple(links)
        if under_way:
            self._enter(flow)

    def _enter(self, flow: LinkFlow) -> None:
        if flow.over:
            return
        flow.since_s = self.now_s
        flow.entered = True
        self._shares.arranged += 1
        for link in flow.links:
            self._users[link][flow] = None
            self._touched[link] = None

    def _count(self, flow: LinkFlow) -> None:
        """Count the bytes that have passed since the flow's present rate began."""
        now_s = self.now_s
        if self.passed is not None and flow.rate > 0 and now_s > flow.since_s:
            self.passed.append(Passed(flow.links, flow.since_s, now_s, flow.rate))
        flow.left = max(0.0, flow.left - flow.rate * (now_s - flow.since_s))
        flow.since_s = now_s

    def _count_gaps(self, flow: LinkFlow) -> None:
        """Count what has passed of a flow whose rate is about to change to who follows, too."""
        if flow.ahead is not None:
            self._count_gap(flow)
        if flow.behind is not None:
            self._count_gap(flow.behind)

    def note(
        self, links: tuple[int, ...], size: float, begin_s: float, end_s: float
    ) -> None:
        """Keep in the trace what passed links evenly without a flow of its own."""
        if self.passed is not None and end_s > begin_s:
            self.passed.append(Passed(links, begin_s, end_s, size / (end_s - begin_s)))

    def _leave(self, flow: LinkFlow) -> None:
        self._count(flow)
        if flow.ahead is not None or flow.behind is not None:
            self._count_gaps(flow)
            self._stopped.append(flow)
            if flow.behind is not None and flow.behind.entered:
                self._touched.update(dict.fromkeys(flow.behind.links))
        flow.rate = 0.0
        flow.version += 1
        flow.entered = False
        self._shares.arranged += 1
        for link in flow.links:
            del self._users[link][flow]
            if self._users[link]:
                self._touched[link] = None

    def _let_go(self, flow: LinkFlow) -> None:
        """Release the flow that follows one that is over: it waits for no other flow any more."""
        if flow.ahead is not None:
            flow.ahead.behind = None
            flow.ahead = None
        behind, flow.behind = flow.behind, None
        if behind is not None:
            behind.ahead = None
            behind.close = False
            behind.waiting += 1
            self._touched.update(dict.fromkeys(behind.links if behind.entered else ()))

    # Running.

    def pause(self) -> None:
        """Make :meth:`run` return at the end of the present instant."""
        self._paused = True

    def run(self, until_s: float = math.inf) -> None:
        """Run until nothing is left to happen, until ``until_s``, or until a pause is asked for."""
        self._paused = False
        self._share()
        queue = self._queue
        while queue and not self._paused:
            time_s, _, act, version, arguments = queue[0]
            if version and act.version != version:  # type: ignore[union-attr]
                heappop(queue)
                continue
            if time_s > until_s:
                break
            if self.events > self._most_events:
                raise TooManyEvents(
                    f"the simulation takes more than {self._most_events:,.0f} events"
                )
            self.now_s = time_s
            limit_s = time_s + INSTANT * time_s
            while queue and queue[0][0] <= limit_s:
                _, _, act, version, arguments = heappop(queue)
                if not version:
                    self.events += 1
                    act(*arguments)  # type: ignore[operator]
                else:
                    assert isinstance(act, LinkFlow)
                    if act.version == version:
                        self.events += 1
                        if act.more is not None and self._goes_on(act, act.more):
                            continue
                        self._leave(act)
                        act.over, act.more = True, None
                        if act.ahead is not None or act.behind is not None:
                            self._let_go(act)
                        done, act.done = (
                            act.done,
                            do_nothing,
                        )  # no cycles are left for the collector
                        done()
            if self._touched or self._settling or self._stopped:
                self._share()
        if until_s < math.inf and not self._paused:
            self.now_s = max(self.now_s, until_s)

    def _goes_on(self, flow: LinkFlow, more: More) -> bool:
        """Return whether a flow that has passed continues with more bytes or was given up."""
        self._count(flow)
        size = more(flow)
        if flow.over:
            return True
        if size <= 0 or flow.rate <= 0:
            return False
        flow.left = size
        flow.version += 1
        # Where its limit has changed it is given another rate, and another end.
        end_s = self.now_s + size / flow.rate
        heappush(self._queue, (end_s, next(self._number), flow, flow.version, ()))
        return True

    def _share(self) -> None:
        """New rates for all flows that the changes of this instant concern."""
        settling, self._settling = self._settling, []
        for act in settling:
            act()
        stopped, self._stopped = self._stopped, []
        if not self._touched and not stopped:
            return
        touched, self._touched = list(self._touched), {}
        flows = self._shares.propose(touched)
        changed = stopped + [
            flow for flow in flows if self._set_rate(flow, flow.proposed)
        ]
        following = {
            member: None
            for flow in changed
            for member in (flow, flow.behind)
            if member and member.ahead
        }
        for flow in following:
            self._wait_for(flow, flow.ahead)  # type: ignore[arg-type]

    def _wait_for(self, flow: LinkFlow, ahead: LinkFlow) -> None:
        """Work out when a flow will have to wait for the one that it follows."""
        flow.waiting += 1
        closing = flow.rate - ahead.rate
        if closing < -SAME * ahead.rate:
            flow.close = False
        if not flow.close and closing > SAME * flow.rate:
            self.at(
                self.now_s + max(flow.gap, 0.0) / closing,
                self._close_up,
                flow,
                flow.waiting,
            )

    def _close_up(self, flow: LinkFlow, waiting: int) -> None:
        """Have a flow wait for the one that it follows, unless rates have changed since."""
        if flow.waiting == waiting and flow.ahead is not None:
            self._count_gap(flow)
            flow.gap, flow.close = 0.0, True
            self._touched.update(dict.fromkeys(flow.links))

    def _count_gap(self, flow: LinkFlow) -> None:
        """Count what a flow has come nearer to the one that it follows."""
        assert flow.ahead is not None
        if not flow.close:
            flow.gap += (flow.ahead.rate - flow.rate) * (self.now_s - flow.gap_since_s)
        flow.gap_since_s = self.now_s

    def _set_rate(self, flow: LinkFlow, rate: float) -> bool:
        """Give a flow a rate, and return whether it is another one."""
        if (
            abs(rate - flow.rate) <= SAME * rate
            and (flow.rate > 0 or rate == 0)
            and flow.version
        ):
            return False
        self._count(flow)
        self._count_gaps(flow)
        flow.rate = rate
        flow.version += 1
        if rate > 0:
            end_s = self.now_s + flow.left / rate
            heappush(self._queue, (end_s, next(self._number), flow, flow.version, ()))
        elif flow.left == 0:
            heappush(
                self._queue, (self.now_s, next(self._number), flow, flow.version, ())
            )
        return True


def do_nothing() -> None:
    return None
