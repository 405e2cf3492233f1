"""The network and the engine that the jobs of a simulation share, and the listeners to their course."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from ringlight.fabric.steps import Steps
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Gate, NetworkChange
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.passing import Passing
from ringlight.testbed.simulation.repeating import Groups
from ringlight.testbed.simulation.tcp import resumed_s


@dataclass(eq=False)
class JobContext:
    """One network in virtual time, for the jobs on it.

    ``progress`` is called with job, iteration and time at each iteration's end, ``over`` with a job's name at
    its end; both only of training loops. ``disturbed``: something may happen at any time, so that no
    collective is computed in one piece.
    """

    network: Network
    engine: Engine = field(default_factory=Engine)
    _: KW_ONLY
    gate: Gate | None = None
    progress: Callable[[str, int, float], None] | None = None
    over: Callable[[str], None] | None = None
    disturbed: bool = False

    def __post_init__(self) -> None:
        self.patient = False
        #: As of the newest change of the network.
        self.time_out_s: float | None = None
        self.cut = ""
        #: Of loops that go on at once with what comes; None if something else has flows, or all are traced.
        self.groups = (
            Groups(self.engine)
            if self.gate is None and self.engine.passed is None
            else None
        )
        #: By schedule, which is kept so that its identity stays its own, size and how chunks are passed on.
        self.passing: dict[
            tuple[int, float, tuple[tuple[str, bool], ...]], tuple[Steps, Passing]
        ] = {}
        #: The engine's number of each link of the present network.
        self.number: dict[int, int] = {}

    def links(self, locals_: Sequence[int]) -> tuple[int, ...]:
        """Return the engine's numbers of the present network's links."""
        numbers = []
        for link in locals_:
            number = self.number.get(link)
            if number is None:
                capacity = float(self.network.capacity_bps[link]) / 8
                number = self.number[link] = self.engine.link(
                    self.network.key(link), capacity
                )
            numbers.append(number)
        return tuple(numbers)

    def change_network(self, event: NetworkChange) -> None:
        """Replace the network; new links are dark for ``event.dark_s`` seconds."""
        old = {self.network.key(link) for link in range(len(self.network.capacity_bps))}
        self.network = event.network
        self.number = {}
        self.patient, self.time_out_s = event.patient, event.time_out_s
        self.cut = event.cut
        for key in old - {
            event.network.key(link) for link in range(len(event.network.capacity_bps))
        }:
            self.engine.set_capacity(self.engine.link(key, 0.0), 0.0)
        for link in range(len(event.network.capacity_bps)):
            key = event.network.key(link)
            capacity = float(event.network.capacity_bps[link]) / 8
            number = self.engine.link(key, capacity)
            self.number[link] = number
            if key not in old and event.dark_s > 0:
                self.engine.set_capacity(number, 0.0)
                lit_s = self.engine.now_s + event.dark_s
                if lit_s == math.inf:
                    continue
                self.engine.at(
                    lit_s, partial(self._shine, number, capacity, event.time_out_s)
                )
            else:
                self.engine.set_capacity(number, capacity)

    def resumed_s(self, since_s: float) -> float:
        """Return when TCP goes on that has had no way ``since_s`` and has one now, seconds: now if its
        time-out is not known."""
        now_s = self.engine.now_s
        if self.time_out_s is None or since_s == now_s:
            return now_s
        return since_s + resumed_s(now_s - since_s, self.time_out_s)

    def _shine(self, link: int, capacity: float, time_out_s: float | None) -> None:
        """Give a link light again, with ``capacity`` bytes per second. Senders notice it after their
        time-outs.
        """
        self.engine.set_capacity(link, capacity)
        if time_out_s is not None:
            self.engine.hold_back(link, partial(resumed_s, time_out_s=time_out_s))
