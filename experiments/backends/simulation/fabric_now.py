"""The fabric of a simulated run as it is plugged and lit now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ringlight.experiments.backends.simulation.regrouping import light
from ringlight.experiments.language.plan import RunPlan, Scale
from ringlight.fabric.keys import slowed_parts
from ringlight.fabric.link_effects import Effects, dilated
from ringlight.fabric.parts import Link, Port, canonical
from ringlight.fabric.topology import Fabric, electrical_graph
from ringlight.testbed.simulation.networks import without_link


def tuned(rates: Fabric, plan: RunPlan, scale: Scale) -> Fabric:
    """Return a fabric of the emulation's ``rates`` with its times, seconds of the emulation, too."""
    onics = {
        name: replace(
            onic, tuning_s=plan.tuning_s.get(name, onic.tuning_s * scale.time)
        )
        for name, onic in rates.onics.items()
    }
    links = tuple(
        replace(link, effects=dilated(link.effects, scale.time))
        if link.effects
        else link
        for link in rates.links
    )
    parts = slowed_parts(rates, scale.time, scale.rate)
    return replace(rates, onics=onics, parts=parts, links=links)


class FabricNow:
    """``whole``: the fabric with all links, which do to frames what they do now. ``cut``: links that carry
    nothing, by their ends. ``circuits``: those that are lit."""

    def __init__(self, stated: Fabric, circuits: Sequence[tuple[str, str]]) -> None:
        self._stated = self.whole = stated
        self.cut: set[frozenset[Port]] = set()
        self.circuits = canonical(circuits)
        #: The switch of each GPU, on this fabric with these circuits.
        self._switches: tuple[Fabric, object, dict[str, str | None]] | None = None

    def cut_words(self) -> str:
        """Return which links are cut, as text; "" if none is."""
        first, *more = sorted(
            " ".join(map(str, sorted(ends))) for ends in self.cut
        ) or [""]
        if not more:
            return first and f"the link {first} is cut"
        rest = more[0] if len(more) == 1 else f"{len(more)} others"
        return f"the links {first} and {rest} are cut"

    def plugged(self) -> Fabric:
        """Return the fabric without the links that are cut."""
        fabric = self.whole
        for ends in self.cut:
            fabric = without_link(fabric, next(iter(ends)))
        return fabric

    def switch_of(self) -> dict[str, str | None]:
        """Return the packet switch that each GPU is lit to, by GPU."""
        known = self._switches
        if known is None or known[0] is not self.whole or known[1] != self.circuits:
            graph = electrical_graph(self.whole, light(self.whole, self.circuits))
            switches = self.whole.packet_switches
            ports = {
                gpu: next((head for head in graph.heads(gpu) if head in switches), None)
                for gpu in self.whole.gpus
            }
            known = self._switches = (self.whole, self.circuits, ports)
        return known[2]

    def ends_of(self, kind: str, names: tuple[str, ...]) -> set[frozenset[Port]]:
        """Return the links of a target, by their two ends: a link by its ends, or all of a node."""
        links = {frozenset((link.a, link.b)) for link in self.whole.links}
        if kind == "link":
            return {frozenset(Port.parse(name) for name in names)} & links
        return {ends for ends in links if any(port.node == names[0] for port in ends)}

    def links_between(self, ends: Collection[frozenset[Port]]) -> list[Link]:
        """Return the links with these ends."""
        links = self.whole.links
        return [link for link in links if frozenset((link.a, link.b)) in ends]

    def links_at(self, nodes: Collection[str]) -> list[Link]:
        """Return the links of which an end is at one of these nodes."""
        links = self.whole.links
        return [link for link in links if link.a.node in nodes or link.b.node in nodes]

    def affect(self, ends: frozenset[Port], effects: Effects) -> Link:
        """Set what a link does to frames from now on, besides or in place of what the fabric states.

        Return the link.
        """
        (own,) = (
            link for link in self._stated.links if frozenset((link.a, link.b)) == ends
        )
        now = replace(own, effects={**own.effects, **effects})
        links = tuple(
            now if frozenset((link.a, link.b)) == ends else link
            for link in self.whole.links
        )
        self.whole = replace(self.whole, links=links)
        return now
