"""Visits every state that a few O-NICs can reach together, and looks at each.

The O-NICs are the real state machine (``controller.onic.protocol.Onic``). Around them stands what can happen:
messages in flight arrive in any order, as late as they like, or never, or twice; workers open, close and give
up flows; time passes; an O-NIC dies, its light stays on until the laser's watchdog, and it comes back.
Losses, copies, deaths and the rest happen as often as a budget says; everything else in every order.

Time goes in whole ticks, and all durations are whole ticks, so every order of time-outs and arrivals that
differs shows. Two states are one when everything in them is the same relative to now. A flow that failed or
lost its light is opened anew, as often as a budget says; so the space is finite.

Safety, in every state: no two lasers light one receiver, no two O-NICs hold a grant of one receiver, and a
receiver that may be lit is granted to the one that lights it. Progress, from every state: an end is within
reach where nothing is in flight, every flow is over and every receiver free; and where every flow may
still be opened anew, one where every flow was served.

``python -m tests.unit.onic_explorer`` explores the larger cases, too, and prints one JSON object per case.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ringlight.controller.onic.effects import (
    Closed,
    Dark,
    Effect,
    Extend,
    Failed,
    Finished,
    FlowLit,
    Lost,
    Send,
    Tune,
)
from ringlight.controller.onic.lease_times import Times
from ringlight.controller.onic.protocol import Onic
from ringlight.controller.onic.reach import Reach
from ringlight.controller.onic.transmitter import ASKING, PHASES
from tests.unit.onic_states import freeze, thaw

TICKS = Times(lease_s=2, guard_s=1, retry_s=1, refresh_s=1, patience_s=4)
#: Long enough for a renewal after a grant that came late.
LONG = Times(lease_s=4, guard_s=1, retry_s=1, refresh_s=1, patience_s=4)
TODO, OPEN, SENDING, DONE, GAVE_UP = range(5)
NOBODY = -1
OVER = (DONE, GAVE_UP)


@dataclass(frozen=True)
class Case:
    """``flows``: for each O-NIC the destinations of its flows, opened in this order. Budgets: how often.

    ``cancels``: flows that a worker closes before they have light. ``trouble``: flows that fail or lose their
    light and are then opened anew; the next is given up. ``mortal``: the O-NICs that may die. ``late``: how
    many messages may be in flight while time passes; each of them as long as it likes. ``late_timers``:
    time-outs are noticed as late as they like; then only safety is judged, because an O-NIC that never looks
    at its clock makes no progress. ``tuning``: ticks until a laser is ready. ``times``:
    in ticks.
    """

    name: str
    flows: tuple[tuple[int, ...], ...]
    losses: int = 0
    copies: int = 0
    deaths: int = 0
    cancels: int = 0
    trouble: int = 0
    mortal: tuple[int, ...] = ()
    late_timers: bool = False
    late: int = 1
    tuning: int = 0
    times: Times = TICKS


@dataclass
class Report:
    """``unsafe``: what is wrong in the first state that must not be. ``stuck``: states from which no end can
    be reached; ``unserved``: from which none where every flow was served. ``path``: what led to the first.
    """

    case: str
    states: int = 0
    transitions: int = 0
    good_ends: int = 0
    stuck: int = 0
    unserved: int = 0
    unsafe: str | None = None
    seconds: float = 0.0
    path: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return (
            self.unsafe is None
            and self.stuck == self.unserved == 0
            and self.good_ends > 0
        )


# onics, lasers (target, ticks left), messages in flight, workers, budgets (losses, copies, deaths, cancels,
# trouble). O-NICs and messages are numbers in a table, NOBODY for one that is dead.
World = tuple[
    tuple[int, ...],
    tuple[tuple[int, int], ...],
    frozenset[int],
    tuple[tuple[int, ...], ...],
    tuple[int, ...],
]
_DARK = (NOBODY, 0)


class _Table:
    """Numbers for hashable things, so that a state is small and its hash is quick."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, item: Any) -> int:
        known = self._numbers.get(item)
        if known is None:
            known = self._numbers[item] = len(self.items)
            self.items.append(item)
        return known


class Explorer:
    """``machine``: the class under test; a test hands in one with a planted fault."""

    def __init__(self, case: Case, machine: type[Onic] = Onic) -> None:
        self.case, self.machine = case, machine
        self.count = len(case.flows)
        self._reach = {peer: Reach(0, peer) for peer in range(self.count)}
        self._onics, self._messages = _Table(), _Table()
        self._steps: dict[tuple[Any, ...], tuple[int, tuple[Effect, ...]]] = {}
        self._views: dict[int, tuple[int, int, bool, bool]] = {}
        self._shifted: dict[int, int] = {}
        #: Changes of a flow's phase at its source that were seen, by the names of `LIFE`.
        self.changes: set[tuple[str, str]] = set()

    # One O-NIC.

    def _step(self, onic: int, *event: Any) -> tuple[int, tuple[Effect, ...]]:
        """The O-NIC after an event now, and what it wants done; every distinct one is run once."""
        key = (onic, *event)
        known = self._steps.get(key)
        if known is None:
            machine = thaw(
                self._onics.items[onic], self.case.times, self._reach, kind=self.machine
            )
            kind, *rest = event
            effects: list[Effect] = []
            now = 0
            match kind:
                case "open":
                    effects = machine.open(0, *rest)
                case "close":
                    effects = machine.close(0, *rest)
                case "timer":
                    effects = machine.timer(0)
                case "receive":
                    sender, _, message = self._messages.items[rest[0]]
                    effects = machine.receive(0, sender, message)
                case "tuned":
                    effects = machine.tuned(0, 0, self.case.tuning)
                case "tick":
                    now = 1
            known = self._steps[key] = (
                self._onics.number(freeze(machine, now)),
                tuple(effects),
            )
            self._note(
                _phases(self._onics.items[onic]), _phases(self._onics.items[known[0]])
            )
        return known

    def _note(self, before: dict[int, str], after: dict[int, str]) -> None:
        both = {flow: (before[flow], after.get(flow, "over")) for flow in before}
        self.changes |= {(was, now) for was, now in both.values() if was != now}

    def _view(self, onic: int) -> tuple[int, int, bool, bool]:
        """(peer that it may light, source that its receiver is granted to, quarantined, idle)."""
        known = self._views.get(onic)
        if known is None:
            machine = thaw(
                self._onics.items[onic], self.case.times, self._reach, kind=self.machine
            )
            _, _, quiet, _, ((_, active, _, grant, _, _),) = self._onics.items[onic]
            lit = (
                NOBODY
                if active is None or active[4] == ASKING or active[8] <= 0
                else active[1]
            )
            holder = NOBODY if grant is None else grant[0]
            known = self._views[onic] = (lit, holder, quiet > 0, machine.idle())
        return known

    # All of them.

    def first(self) -> World:
        onics = []
        for _ in range(self.count):
            machine = self.machine(1, self.case.times, 0, ports=1, quarantine=False)
            machine.set_map(0, self._reach)
            onics.append(self._onics.number(freeze(machine, 0)))
        workers = tuple((TODO,) * len(flows) for flows in self.case.flows)
        case = self.case
        budget = (case.losses, case.copies, case.deaths, case.cancels, case.trouble)
        return tuple(onics), (_DARK,) * self.count, frozenset(), workers, budget

    def _run(self, world: World, who: int, *event: Any) -> World:
        """The world after an event at one O-NIC.

        A flow that fails or loses its light is opened anew as often as the budget says, then given up.
        """
        onics, lasers, flying, workers, budget = world
        todo: list[tuple[Any, ...]] = [event]
        onic, laser, worker = onics[who], lasers[who], workers[who]
        fly = set(flying)
        while todo:
            onic, effects = self._step(onic, *todo.pop(0))
            for effect in effects:
                match effect:
                    case Send(peer, message):
                        fly.add(self._messages.number((who, peer, message)))
                    case Tune(_, wavelength, until):
                        laser = (wavelength, int(until))
                        todo.append(("tuned",))
                    case Extend(_, wavelength, until):
                        laser = (wavelength, int(until))
                    case Dark(_):
                        laser = _DARK
                    case FlowLit(flow):
                        worker = _put(worker, flow, SENDING)
                    case Failed(flow) | Lost(flow):
                        worker = _put(worker, flow, TODO if budget[4] else GAVE_UP)
                        budget = _put(budget, 4, max(0, budget[4] - 1))
                    case Closed() | Finished():
                        pass
        return (
            _put(onics, who, onic),
            _put(lasers, who, laser),
            frozenset(fly),
            _put(workers, who, worker),
            budget,
        )

    def _later(self, message: int) -> int:
        known = self._shifted.get(message)
        if known is None:
            source, peer, content = self._messages.items[message]
            oldest = -(self.case.times.lease_s + self.case.times.guard_s)
            if content.stamp_s or content.value_s:
                content = content._replace(stamp_s=max(oldest, content.stamp_s - 1))
            known = self._shifted[message] = self._messages.number(
                (source, peer, content)
            )
        return known

    def _tick(self, world: World) -> World | None:
        """The world one tick later; None when too much is in flight."""
        onics, lasers, flying, workers, budget = world
        if len(flying) > self.case.late:
            return None
        world = (
            tuple(
                onic if onic == NOBODY else self._step(onic, "tick")[0]
                for onic in onics
            ),
            tuple((target, left - 1) if left > 1 else _DARK for target, left in lasers),
            frozenset(self._later(message) for message in flying),
            workers,
            budget,
        )
        if self.case.late_timers:
            return world
        for i, onic in enumerate(world[0]):
            if onic != NOBODY:
                world = self._run(world, i, "timer")
        return world

    def moves(self, world: World) -> Iterator[tuple[str, World]]:
        onics, lasers, flying, workers, budget = world
        losses, copies, deaths, _, _ = budget
        for message in flying:
            source, peer, content = self._messages.items[message]
            name = f"{source}->{peer} {content}"
            without = (onics, lasers, flying - {message}, workers, budget)
            if onics[peer] == NOBODY:
                yield f"nobody gets {name}", without
                continue
            yield f"gets {name}", self._run(without, peer, "receive", message)
            if losses:
                yield f"lost {name}", _spend(without, 0)
            if copies:
                yield (
                    f"gets a copy {name}",
                    _spend(self._run(world, peer, "receive", message), 1),
                )
        for i, worker in enumerate(workers):
            if onics[i] == NOBODY:
                machine = self.machine(
                    self._deaths(i, world) + 1, self.case.times, 0, ports=1
                )
                machine.set_map(0, self._reach)
                born = _put(onics, i, self._onics.number(freeze(machine, 0)))
                yield (
                    f"{i} restarts",
                    (born, _put(lasers, i, _DARK), flying, workers, budget),
                )
                continue
            yield from self._worker_moves(world, i, worker)
            if deaths and i in self.case.mortal:
                forgotten = tuple(state if state in OVER else TODO for state in worker)
                dead = (
                    _put(onics, i, NOBODY),
                    lasers,
                    flying,
                    _put(workers, i, forgotten),
                    budget,
                )
                yield f"{i} dies", _spend(dead, 2)
            if self.case.late_timers:
                after = self._run(world, i, "timer")
                if after != world:
                    yield f"{i} looks at its clock", after
        later = self._tick(world)
        if later is not None and later != world:
            yield "tick", later

    def _deaths(self, _: int, world: World) -> int:
        return self.case.deaths - world[4][2]

    def _worker_moves(
        self, world: World, i: int, worker: tuple[int, ...]
    ) -> Iterator[tuple[str, World]]:
        for flow, state in enumerate(worker):
            if state == TODO:
                opened = _put(world[3], i, _put(worker, flow, OPEN))
                asked = (*world[:3], opened, world[4])
                yield (
                    f"{i} opens {flow}",
                    self._run(asked, i, "open", flow, self.case.flows[i][flow]),
                )
                return
            if state == SENDING or (state == OPEN and world[4][3]):
                ended = (
                    *world[:3],
                    _put(world[3], i, _put(worker, flow, DONE)),
                    world[4],
                )
                after = self._run(ended, i, "close", flow)
                yield (
                    f"{i} closes {flow}",
                    after if state == SENDING else _spend(after, 3),
                )

    def unsafe(self, world: World) -> str | None:
        """What must never be."""
        onics, lasers, _, _, _ = world
        lights = [target for target, _ in lasers if target != NOBODY]
        if len(set(lights)) < len(lights):
            return f"two lasers light one receiver: {lasers}"
        granted = {}
        for i, onic in enumerate(onics):
            if onic == NOBODY:
                continue
            target = self._view(onic)[0]
            if target == NOBODY:
                continue
            if target in granted:
                return f"{granted[target]} and {i} both hold a grant of {target}"
            granted[target] = i
            if onics[target] != NOBODY:
                _, holder, quarantined, _ = self._view(onics[target])
                if holder != i and not (quarantined and holder == NOBODY):
                    return f"{i} holds a grant of {target}, whose receiver is granted to {holder}"
        return None

    def good_end(self, world: World) -> bool:
        onics, lasers, flying, workers, _ = world
        return (
            not flying
            and all(state in OVER for worker in workers for state in worker)
            and all(laser == _DARK for laser in lasers)
            and all(onic != NOBODY and self._view(onic)[3] for onic in onics)
        )

    def explore(self, limit: int = 4_000_000) -> Report:
        """Every reachable state. Raises RuntimeError beyond ``limit`` states."""
        began = time.perf_counter()
        report = Report(self.case.name)
        world = self.first()
        numbers = {world: 0}
        worlds = [world]
        parents, sources, targets = array("i", [-1]), array("i"), array("i")
        good = []
        for number in itertools.count():
            if number == len(worlds):
                break
            world = worlds[number]
            if self.good_end(world):
                good.append(number)
            report.unsafe = self.unsafe(world)
            if report.unsafe is not None:
                report.path = self._path(worlds, parents, number)
                break
            for _, after in self.moves(world):
                known = numbers.setdefault(after, len(worlds))
                if known == len(worlds):
                    worlds.append(after)
                    parents.append(number)
                    if known > limit:
                        raise RuntimeError(
                            f"{self.case.name}: more than {limit} states"
                        )
                sources.append(number)
                targets.append(known)
        report.states, report.transitions, report.good_ends = (
            len(worlds),
            len(sources),
            len(good),
        )
        if report.unsafe is None and not self.case.late_timers:
            reached = _backwards(len(worlds), sources, targets, good)
            served = [
                end
                for end in good
                if not any(GAVE_UP in worker for worker in worlds[end][3])
            ]
            served_from = _backwards(len(worlds), sources, targets, served)
            unserved = [
                n
                for n, world in enumerate(worlds)
                if _hopeful(world) and not served_from[n]
            ]
            report.stuck, report.unserved = len(worlds) - sum(reached), len(unserved)
            if report.stuck or unserved:
                report.path = self._path(
                    worlds, parents, reached.index(0) if report.stuck else unserved[0]
                )
        report.seconds = round(time.perf_counter() - began, 2)
        return report

    def _path(self, worlds: list[World], parents: array[int], number: int) -> list[str]:
        path = [self._words(worlds[number])]
        while number > 0:
            before = parents[number]
            path.append(
                next(
                    name
                    for name, after in self.moves(worlds[before])
                    if after == worlds[number]
                )
            )
            number = before
        return path[::-1]

    def _words(self, world: World) -> str:
        onics = [
            None if onic == NOBODY else self._onics.items[onic] for onic in world[0]
        ]
        return f"{onics} lasers {world[1]} flying {[self._messages.items[m] for m in world[2]]} {world[3:]}"


def _phases(onic: Any) -> dict[int, str]:
    """Phase of each flow that an O-NIC as frozen has at its transmitter."""
    _, _, _, _, ((queue, active, *_),) = onic
    found = {flow: "waiting" for flow, *_ in queue}
    return found if active is None else {**found, active[0]: PHASES[active[4]]}


def _put(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (
        items if items[place] is item else (*items[:place], item, *items[place + 1 :])
    )


def _spend(world: World, which: int, amount: int = 1) -> World:
    return (*world[:4], _put(world[4], which, world[4][which] - amount))


def _hopeful(world: World) -> bool:
    """Nobody has given up, and every flow that is not over may still be opened anew."""
    states = [state for worker in world[3] for state in worker]
    left = sum(1 for state in states if state not in OVER)
    return GAVE_UP not in states and 0 < left <= world[4][4]


def _backwards(
    count: int, sources: array[int], targets: array[int], ends: list[int]
) -> bytearray:
    """Which states lead to one of ``ends``."""
    starts = array("i", bytes(4 * (count + 1)))
    for target in targets:
        starts[target + 1] += 1
    for i in range(count):
        starts[i + 1] += starts[i]
    filled, before = array("i", starts), array("i", bytes(4 * len(sources)))
    for source, target in zip(sources, targets, strict=True):
        before[filled[target]] = source
        filled[target] += 1
    reached = bytearray(count)
    todo = list(ends)
    for end in ends:
        reached[end] = 1
    while todo:
        state = todo.pop()
        for place in range(starts[state], starts[state + 1]):
            if not reached[before[place]]:
                reached[before[place]] = 1
                todo.append(before[place])
    return reached


_TO_ONE: tuple[tuple[int, ...], ...] = ((2,), (2,), ())
_RING: tuple[tuple[int, ...], ...] = ((1,), (2,), (0,))
_THREE_TO_ONE: tuple[tuple[int, ...], ...] = ((3,), (3,), (3,), ())

#: Seconds each, for every test run.
SMALL = (
    Case("two: loss, late", ((1,), ()), losses=1, trouble=1),
    Case("two: long lease, loss, late", ((1,), ()), losses=1, trouble=1, times=LONG),
    Case("two: slow laser, loss, late", ((1,), ()), losses=1, trouble=1, tuning=1),
    Case(
        "two: death of either", ((1,), ()), deaths=1, mortal=(0, 1), trouble=1, late=0
    ),
    Case("two: flow after flow, copy, late", ((1, 1), ()), copies=1),
    Case("two: closed early, copy, late", ((1,), ()), copies=1, cancels=1),
    Case(
        "two: time-outs noticed late, death",
        ((1,), ()),
        deaths=1,
        mortal=(0, 1),
        late_timers=True,
        late=0,
    ),
    Case("three: two to one, loss", _TO_ONE, losses=1, trouble=2, late=0),
    Case("three: two to one, late", _TO_ONE),
    Case(
        "three: two to one, time-outs noticed late", _TO_ONE, late_timers=True, late=0
    ),
    Case("three: two to one, a source dies", _TO_ONE, deaths=1, mortal=(0,), late=0),
    Case(
        "three: two to one, the receiver dies", _TO_ONE, deaths=1, mortal=(2,), late=0
    ),
    Case("three: ring", _RING, late=0),
    Case("four: three to one", _THREE_TO_ONE, late=0),
)

#: Minutes, for a change of the protocol.
LARGE = (
    Case(
        "two: loss, copy, death of either, late",
        ((1,), ()),
        1,
        1,
        1,
        mortal=(0, 1),
        trouble=1,
    ),
    Case("two: crossing, loss, late", ((1,), (0,)), losses=1, trouble=2),
    Case(
        "two: two late, losses, copy", ((1,), ()), losses=2, copies=1, trouble=1, late=2
    ),
    Case(
        "two: time-outs noticed late, all",
        ((1,), ()),
        1,
        1,
        1,
        mortal=(0, 1),
        trouble=1,
        late_timers=True,
    ),
    Case("three: two to one, losses, late", _TO_ONE, losses=2),
    Case("three: two to one, long lease, late", _TO_ONE, times=LONG),
    Case("three: two to one, copy, late", _TO_ONE, copies=1),
    Case(
        "three: two to one, a source dies, late",
        _TO_ONE,
        deaths=1,
        mortal=(0,),
        trouble=1,
    ),
    Case(
        "three: two to one, the receiver dies, loss",
        _TO_ONE,
        1,
        0,
        1,
        mortal=(2,),
        trouble=1,
        late=0,
    ),
    Case("three: two to one, time-outs noticed late, late", _TO_ONE, late_timers=True),
    Case("three: ring, loss", _RING, losses=1, late=0),
    Case("four: three to one, loss", _THREE_TO_ONE, losses=1, late=0),
    Case(
        "four: three to one, the receiver dies",
        _THREE_TO_ONE,
        deaths=1,
        mortal=(3,),
        late=0,
    ),
    Case("four: two to one and on", ((2,), (2,), (3,), ()), late=0),
    Case("four: ring", ((1,), (2,), (3,), (0,)), late=0),
)


def main(write: Callable[[str], object] = sys.stdout.write) -> int:
    """``python -m tests.unit.onic_explorer [PART-OF-NAME …]``: the cases so named, or all."""
    failed = 0
    names = sys.argv[1:]
    for case in SMALL + LARGE:
        if names and not any(name in case.name for name in names):
            continue
        report = Explorer(case).explore()
        write(json.dumps({**vars(report), "passed": report.passed}) + "\n")
        sys.stdout.flush()
        failed += not report.passed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
