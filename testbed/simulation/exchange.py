"""A collective in progress whose light is requested or set up, each rank at its own pace.

A rank begins a step when it has sent and received all of its own step before. It waits for no other rank:
data for a step that it has not begun counts when it begins the step. With static lightpaths ranks wait for
less: :mod:`ringlight.testbed.simulation.passing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ringlight.fabric.steps import Step, Steps, frozen
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.networks import Routes
from ringlight.testbed.simulation.phases import StepCost, needs_new_light


class Ways(Protocol):
    """The paths of a collective's transfers over the present network."""

    def routes(self, step: Step, number: int) -> Routes:
        """Return the routes of all transfers of step ``number``. Raises ValueError naming one that has no
        path.
        """
        ...

    def links(self, locals_: Sequence[int]) -> tuple[int, ...]:
        """Return the engine's numbers of links of the network."""
        ...


class Lanes:
    """Transfers of one or more steps that are between the same ranks, ``sizes`` bytes each [transfers]: who
    sends to whom, and the ways. What one step has found out all have."""

    def __init__(self, step: Step, number: int, sizes: FloatArray, ways: Ways) -> None:
        self.step, self.number, self.sizes = step, number, sizes
        self.sends: dict[int, list[int]] = {}
        self.receives: dict[int, int] = {}
        #: Ranks by transfer: to look into arrays is slow.
        self.sources: list[int] = step.sources.tolist()
        self.destinations: list[int] = step.destinations.tolist()
        for k, (s, d) in enumerate(zip(self.sources, self.destinations, strict=True)):
            self.sends.setdefault(s, []).append(k)
            self.receives[d] = self.receives.get(d, 0) + 1
        self._ways = ways
        self._routes: tuple[list[int], list[int], list[float]] | None = None
        self._late = False
        self._one: dict[int, tuple[tuple[int, ...], float]] = {}
        self._delay_s: dict[int, float] = {}

    def routes(self) -> tuple[list[int], list[int], list[float]]:
        """Return offsets, the network's links and latencies (seconds) of all transfers, like ``Routes``.

        Raises ValueError naming a transfer that has no way.
        """
        if self._routes is None:
            routes = self._ways.routes(self.step, self.number)
            self._routes = (
                routes.offsets.tolist(),
                routes.links.tolist(),
                routes.latency_s.tolist(),
            )
            self._late = bool(routes.latency_s.any())
            self._delay_s = (
                {}
                if routes.delay_s is None
                else dict(enumerate(routes.delay_s.tolist()))
            )
        return self._routes

    @property
    def late(self) -> bool:
        """Return whether any transfer has a latency, as far as is known."""
        return self._routes is None or self._late

    def forget(self) -> None:
        """Forget all routes because the network has changed."""
        self._routes = None
        self._one.clear()
        self._delay_s = {}

    def way(self, k: int) -> tuple[tuple[int, ...], float]:
        """Return the engine's links of transfer ``k`` and its latency in seconds. Raises ValueError if it has
        no way.
        """
        route = self._one.get(k)
        if route is None:
            if self._routes is None:
                self._route_one(k)
                return self._one[k]
            offsets, links, latency_s = self._routes
            route = (self._ways.links(links[offsets[k] : offsets[k + 1]]), latency_s[k])
            self._one[k] = route
        return route

    def back_s(self, k: int) -> float:
        """Return how long the receiver's word to the sender of transfer ``k`` takes, seconds: the delays of
        the links of its way, once that is known."""
        return self._delay_s.get(k, 0.0)

    def _route_one(self, k: int) -> None:
        """Route one transfer again: after a change only transfers that still happen need a path."""
        step = self.step
        part = {
            name: None
            if (array := getattr(step, name)) is None
            else frozen(array[k : k + 1])
            for name in ("sources", "destinations", "first", "count", "wavelengths")
        }
        clockwise = None if step.clockwise is None else step.clockwise[k : k + 1]
        single = replace(step, **part, clockwise=clockwise)  # type: ignore[arg-type]
        routes = self._ways.routes(single, self.number)
        self._one[k] = (
            self._ways.links(routes.links.tolist()),
            float(routes.latency_s[0]),
        )
        if routes.delay_s is not None:
            self._delay_s[k] = float(routes.delay_s[0])


class StepPlan:
    """A step and its lanes. ``set_up``: whether it begins with setting up. ``reduce_s_per_byte``: as
    ``StepCost`` has it."""

    def __init__(
        self, step: Step, lanes: Lanes, *, set_up: bool, reduce_s_per_byte: float
    ) -> None:
        self.step, self.lanes, self.set_up = step, lanes, set_up
        self.reduce_s: dict[int, float] = {}
        cost = reduce_s_per_byte if step.op == "reduce" else 0.0
        if cost:
            for k, d in enumerate(lanes.destinations):
                self.reduce_s[d] = self.reduce_s.get(d, 0.0) + cost * float(
                    lanes.sizes[k]
                )


def plan_steps(
    steps: Steps, chunk_bytes: float, cost: StepCost, ways: Ways
) -> list[StepPlan]:
    """Return the plan of all steps of a collective whose chunks have ``chunk_bytes`` bytes."""
    plan: list[StepPlan] = []
    known: dict[tuple[int, ...], Lanes] = {}
    for number, step in enumerate(steps):
        set_up = True
        if cost.in_steps:
            set_up = cost.in_steps[number]
        elif cost.when == "changed-only" and plan:
            set_up = needs_new_light(step, plan[-1].step, steps.world_size)
        # The plan holds the arrays, so that none takes the place of another in memory.
        arrays = (
            step.sources,
            step.destinations,
            step.count,
            step.wavelengths,
            step.clockwise,
        )
        alike = tuple(map(id, arrays))
        if alike not in known:
            known[alike] = Lanes(
                step, number, step.count.astype(np.float64) * chunk_bytes, ways
            )
        plan.append(
            StepPlan(
                step,
                known[alike],
                set_up=set_up,
                reduce_s_per_byte=cost.reduce_s_per_byte,
            )
        )
    return plan


class Exchange:
    """Execution of a plan by ``ranks`` ranks.

    ``transfer(number, k, done)`` starts transfer ``k`` of step ``number`` and calls ``done`` when it is over.
    ``ended(rank)`` is called when a rank has done all of its steps. ``set_up_s``: seconds of a step that sets
    up. ``over``: set it, and nothing more is begun.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Sequence[StepPlan],
        ranks: int,
        set_up_s: float,
        transfer: Callable[[int, int, Callable[[], None]], None],
        ended: Callable[[int], None],
    ) -> None:
        self.over = False
        self._engine, self._plan, self._set_up_s = engine, plan, set_up_s
        self._transfer, self._ended = transfer, ended
        self._at_step = [-1] * ranks
        self._pending = [0] * ranks
        #: Transfers that are over before their rank has come to their step.
        self._early: dict[tuple[int, int], int] = {}

    def begin(self, rank: int) -> None:
        """Begin the rank's next step that has something for it to do."""
        while not self.over:
            number = self._at_step[rank] = self._at_step[rank] + 1
            if number == len(self._plan):
                self._ended(rank)
                return
            plan = self._plan[number]
            sends = plan.lanes.sends.get(rank, ())
            receives = plan.lanes.receives.get(rank, 0)
            if not sends and not receives:
                continue
            self._pending[rank] = (
                len(sends) + receives - self._early.pop((number, rank), 0)
            )
            if self._set_up_s and plan.set_up and sends:
                then_s = self._engine.now_s + self._set_up_s
                self._engine.at(then_s, lambda: self._send(number, sends))  # noqa: B023
            else:
                self._send(number, sends)
            if self._pending[rank] == 0:
                self._received(rank, plan)
            return

    def _send(self, number: int, sends: Sequence[int]) -> None:
        for k in sends:
            if self.over:
                return
            self._transfer(number, k, lambda k=k: self._arrived(number, k))  # type: ignore[misc]

    def _arrived(self, number: int, k: int) -> None:
        plan = self._plan[number]
        for rank in (plan.lanes.sources[k], plan.lanes.destinations[k]):
            if self._at_step[rank] == number:
                self._pending[rank] -= 1
                if self._pending[rank] == 0:
                    self._received(rank, plan)
            else:
                self._early[number, rank] = self._early.get((number, rank), 0) + 1

    def _received(self, rank: int, plan: StepPlan) -> None:
        cost_s = plan.reduce_s.get(rank, 0.0)
        if cost_s:
            self._engine.at(self._engine.now_s + cost_s, lambda: self.begin(rank))
        else:
            self.begin(rank)
