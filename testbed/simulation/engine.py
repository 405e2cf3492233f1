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
from typing import Any, NamedTuple

import numpy as np

from ringlight.testbed.simulation.arrays import SAME, FloatArray
from ringlight.testbed.simulation.maxmin import Limits, rates_of_few, rates_of_many

#: Flows up to which plain loops find rates sooner than numpy.
FEW = 64
#: Solutions after which a change that still reaches further is taken to concern all flows.
MOST_TRIES = 3
#: A link is full from this share of its capacity on: rounding must not make it look as if it were not.
FULL = 1 - 1e-9
#: Events closer together than this share of the time are one instant.
INSTANT = 1e-13


class LinkFlow:
    """Bytes on their way. ``left`` of them had yet to pass at ``since_s``; they do at ``rate`` per second,
    which is never more than ``most``.

    A flow may follow another, ``ahead``: it passes ``gap`` bytes more than that until it must wait for it.
    Once it has, it is ``close``, and has at most the rate of the other.
    """

    __slots__ = (
        "ahead", "behind", "bound", "close", "done", "entered", "gap", "gap_since_s", "left", "links",
        "looked", "more", "most", "over", "place", "proposed", "rate", "round", "shared", "since_s",
        "version", "waiting",
    )  # fmt: skip

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
        self._queue: list[tuple[float, int, Callable[..., None] | LinkFlow, int, tuple[Any, ...]]] = []
        self._number = itertools.count()
        self._capacity: list[float] = []
        self._users: list[dict[LinkFlow, None]] = []
        self._link: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._touched: dict[int, None] = {}
        #: Flows that left a link, and follow others or are followed.
        self._stopped: list[LinkFlow] = []
        self._round = 0
        #: Counts flows that come or go, and changes of capacities and limits.
        self._arranged = 0
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
            raise ValueError(f"link {link}: its capacity is {capacity}; it must be 0 or more")
        if capacity == self._capacity[link]:
            return
        self.changing()
        self._capacity[link] = capacity
        self._arranged += 1
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
                    max(0.0, flow.left - flow.rate * (now_s - flow.since_s)) for flow in users
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
            self._leave(flow)
            self.at(at_s, self._enter, flow)

    def twin(self, now_s: float) -> Engine:
        """Return an engine with the same links, without flows and events, at a time."""
        twin = Engine(most_events=self._most_events - self.events)
        twin.now_s = now_s
        twin._capacity, twin._keys, twin._link = [*self._capacity], [*self._keys], dict(self._link)
        twin._users = [{} for _ in self._users]
        return twin

    def adopt(self, twin: Engine) -> None:
        """Take over the flows and events of a twin that is at the same time, on links that are idle here."""
        for link, users in enumerate(twin._users):
            self._users[link].update(users)
            for flow in users:
                # They were part of the twin's solutions.
                flow.round, flow.looked = 0, -1
        for time_s, _, act, version, arguments in sorted(twin._queue, key=lambda event: event[:2]):
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

    def begin(self, flow: LinkFlow, links: Sequence[int], latency_s: float = 0.0) -> None:
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
            self._arranged += 1
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
        self._arranged += 1
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

    def note(self, links: tuple[int, ...], size: float, begin_s: float, end_s: float) -> None:
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
        self._arranged += 1
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
                raise TooManyEvents(f"the simulation takes more than {self._most_events:,.0f} events")
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
                        done, act.done = act.done, do_nothing  # no cycles are left for the collector
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
        """New rates for all flows that the changes of this instant concern.

        Rates are max-min fair if each flow has a bottleneck: a full link on which no flow has more (Bertsekas
        and Gallager, 6.5.2). So flows on links that changed are given new rates in what others leave; where
        one of them, or one that it meets, is without a bottleneck then, its links count as changed, too.
        """
        settling, self._settling = self._settling, []
        for act in settling:
            act()
        stopped, self._stopped = self._stopped, []
        if not self._touched and not stopped:
            return
        queue, self._touched = list(self._touched), {}
        self._round += 1
        seen: set[int] = set()
        flows: list[LinkFlow] = []
        tries = 0
        while queue:
            tries += 1
            if tries > MOST_TRIES:
                queue = [link for link, users in enumerate(self._users) if users and link not in seen]
            seen.update(queue)
            for link in queue:
                for flow in self._users[link]:
                    if flow.round != self._round:
                        flow.round = self._round
                        flows.append(flow)
            self._propose(flows, seen)
            queue = self._unsettled(flows, seen) if tries <= MOST_TRIES else []
        changed = stopped + [flow for flow in flows if self._set_rate(flow, flow.proposed)]
        following = {
            member: None for flow in changed for member in (flow, flow.behind) if member and member.ahead
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
            self.at(self.now_s + max(flow.gap, 0.0) / closing, self._close_up, flow, flow.waiting)

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

    def _look(self, flow: LinkFlow) -> None:
        """Find out which of its links a flow shares now, and its rate if these were no limit."""
        if flow.looked == self._arranged:
            return
        flow.looked = self._arranged
        bound, shared = flow.most, []
        for link in flow.links:
            capacity = self._capacity[link]
            if len(self._users[link]) > 1:
                shared.append(link)
                if capacity > 0:
                    continue
            bound = min(bound, capacity)
        flow.shared, flow.bound = shared, bound

    def _propose(self, flows: list[LinkFlow], seen: set[int]) -> None:
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
            meets = flow.shared or flow.close or (flow.behind is not None and flow.behind.close)
            if flow.bound <= 0 or not meets:
                continue
            flow.place = len(together)
            together.append(flow)
            for link in flow.shared:
                if link not in left:
                    left[link] = capacity[link]
                    if link not in seen:
                        kept = sum([other.rate for other in users[link] if other.round != number])
                        left[link] = max(left[link] - kept, 0.0)
        if not together:
            return
        limits = self._limits(together)
        if len(together) <= FEW:
            rates = rates_of_few([flow.shared for flow in together], left, limits)
        else:
            place = {link: number for number, link in enumerate(left)}
            links = np.array([place[link] for flow in together for link in flow.shared], dtype=np.int64)
            offsets = np.cumsum([0, *(len(flow.shared) for flow in together)])
            rates = rates_of_many(offsets, links, np.array(list(left.values())), limits).tolist()
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
                rates = [user.proposed if user.round == number else user.rate for user in self._users[link]]
                entry = known[link] = sum(rates) >= self._capacity[link] * FULL, max(rates)
            return entry

        def settled(flow: LinkFlow, rate: float) -> bool:
            self._look(flow)
            if rate >= flow.bound * FULL:
                return True
            if flow.close and flow.ahead is not None and rate >= self._rate(flow.ahead) * FULL:
                return True
            for link in flow.shared:
                full, most = state(link)
                if full and rate >= most * FULL:
                    return True
            return False

        unsettled: dict[int, None] = {}
        for flow in flows:
            changes = abs(flow.proposed - flow.rate) > SAME * flow.rate
            if changes and (behind := flow.behind) and behind.close and behind.round != number:
                keeps = behind.rate * FULL <= flow.proposed and settled(behind, behind.rate)
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

    def _set_rate(self, flow: LinkFlow, rate: float) -> bool:
        """Give a flow a rate, and return whether it is another one."""
        if abs(rate - flow.rate) <= SAME * rate and (flow.rate > 0 or rate == 0) and flow.version:
            return False
        self._count(flow)
        self._count_gaps(flow)
        flow.rate = rate
        flow.version += 1
        if rate > 0:
            end_s = self.now_s + flow.left / rate
            heappush(self._queue, (end_s, next(self._number), flow, flow.version, ()))
        elif flow.left == 0:
            heappush(self._queue, (self.now_s, next(self._number), flow, flow.version, ()))
        return True


def do_nothing() -> None:
    return None
