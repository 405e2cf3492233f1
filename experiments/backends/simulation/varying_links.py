"""Links of a simulated run that change by themselves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ringlight.experiments.language.plan import Setting
from ringlight.fabric.parts import Link, Port
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.link_courses import LinkCourse, Passage
from ringlight.testbed.simulation.networks import PacketNetwork
from ringlight.testbed.simulation.simulation import Simulation

#: Round trip of a worker's connection that its own link holds up, seconds: it has at most 20 ms of that under
#: way. Of 80 emulated jobs beside moved light most had medians of 8 to 18 ms
#: (runs drawn from seed 20261129).
ROUND_TRIP_S = 0.015


class VaryingLinks:
    """The courses of links, by their ends, on the network that a simulation has."""

    def __init__(self, setting: Setting, engine: Engine, sim: Simulation) -> None:
        self._setting, self._engine, self._sim = setting, engine, sim
        self._courses: dict[frozenset[Port], list[LinkCourse]] = {}

    def begin(self, link: Link) -> None:
        """Let a link change by itself from now on if it does."""
        varying = [effect for effect in link.effects.values() if effect.varies]
        if not varying:
            return
        ends = frozenset((link.a, link.b))

        def passing() -> list[tuple[int, float]]:
            network = self._sim.network
            assert isinstance(network, PacketNetwork)
            local = network.over(ends)
            rates = (float(network.capacity_bps[number]) / 8 for number in local)
            return list(zip(self._sim.links(local), rates, strict=True))

        time_out_s = down_time_out_s(self._setting, [link])
        passage = Passage(self._engine, passing, time_out_s, self.settle)
        self._courses[ends] = [effect.course(passage) for effect in varying]

    def end(self, ends: frozenset[Port]) -> None:
        """Let a link stay from now on as it is."""
        for course in self._courses.pop(ends, ()):
            course.end()

    def settle(self) -> None:
        """Have all courses see what flows there are now."""
        for course in itertools.chain.from_iterable(self._courses.values()):
            course.settle()

    def wake(self) -> None:
        """Have all courses go on that wait for something to happen."""
        for course in itertools.chain.from_iterable(self._courses.values()):
            course.wake()


def down_time_out_s(setting: Setting, links: Sequence[Link]) -> float:
    """Return TCP's longest time-out over links that are down, seconds of the emulation, as if the queues in
    front of them were full.
    """
    time, rto_min_s = setting.scale.time, setting.tcp.rto_min
    return max(2 * link.delay_s + (rto_min_s + link.queue_s) * time for link in links)


def moved_time_out_s(setting: Setting, links: Sequence[Link]) -> float | None:
    """Return TCP's longest time-out over links of optical switches, seconds of the emulation; None without
    links.

    A GPU's own link is in front of them, so nothing else fills a queue there.
    """
    rto_min_s = setting.tcp.rto_min * setting.scale.time
    times_s = (rto_min_s + ROUND_TRIP_S + 2 * link.delay_s for link in links)
    return max(times_s, default=None)
