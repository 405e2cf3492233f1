"""Measures what the links really give, before anything is concluded from them."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.analysis.fidelity import TAKEN, Reason, missed_links
from experiments.backends.emulation.session import CONNECT_S, Circuits, Session, rank_of
from experiments.backends.protocol import BackendError
from experiments.language.plan import Setting
from experiments.record.events import LinkRate, LinkRateDisturbed, Record, Repeated
from fabric.frames import describe
from fabric.grid import lines
from fabric.paths import Hop, Router
from fabric.topology import Fabric, Grid, Port, WdmRing, circuit_cross_connects, electrical_graph
from testbed.load import ProcessorLoad, Shares

if TYPE_CHECKING:
    import networkx as nx

#: A link test: job name, GPUs, and the rank that each of them sends to.
Test = tuple[str, list[str], list[int | None]]


@dataclass(frozen=True)
class _Doubt:
    """Links that missed their setting while others had the processors."""

    what: str
    fill: Callable[[], None]
    rates: list[dict[str, Any]]
    load: Shares
    missed: Sequence[Reason]


class LinkTest:
    """Fills links with TCP and emits a ``LinkRate`` for each.

    Links that missed their setting while others had the processors get ``LinkRateDisturbed`` first, and are
    measured once more by :meth:`repeat` when those have gone: one long disturbance would spoil a second
    attempt right after the first.
    """

    def __init__(
        self,
        setting: Setting,
        session: Session,
        emit: Callable[[Record], None],
        say: Callable[[str], None],
    ) -> None:
        self.setting = setting
        self.session = session
        self.emit = emit
        self.say = say
        self._circuits: Circuits = ()
        self._doubts: list[_Doubt] = []
        self._since = ProcessorLoad(session.processes.lab.id)
        # Of the attempt that goes on: rates as events hold them, and the load of its worst moment.
        self._rates: list[dict[str, Any]] = []
        self._load = Shares()

    def measure(self, circuits: Circuits) -> None:
        """With ``circuits`` lit: all NICs at once along rings inside each packet switch, both directions
        full; then each direction of each link between packet switches, those at once that share no link;
        then the O-NICs of each grid, all at once along rings in the rows, then in the columns; then those of
        each ring of wavelengths, all to their neighbour one way round, then the other."""
        for line in describe(self.setting.fabric, self.setting.frames):
            self.say(line)
        self.say("measuring the links")
        self._circuits = circuits
        self._light()
        ports = [(Port.parse(a), Port.parse(b)) for a, b in circuits]
        graph = electrical_graph(self.setting.fabric, circuit_cross_connects(self.setting.fabric, ports))
        self._settle("NICs", partial(self._nics, graph))
        self._settle("links between switches", partial(self._trunks, graph))
        for grid in self.setting.fabric.grids.values():
            self._settle(f"O-NICs of {grid.name}", partial(self._onics, grid))
        for ring in self.setting.fabric.rings.values():
            self._settle(f"O-NICs of {ring.name}", partial(self._ring, ring))
        self._since.shares()

    def repeat(self, *, last: bool = False) -> None:
        """Measure once more what is in doubt, if others took little since the last call or this is the last.

        Then the attempt counts from which less was taken.
        """
        quiet = self._since.shares().taken < TAKEN
        if not self._doubts or not (quiet or last):
            return
        self.say("measuring links once more")
        self._light()
        for doubt in self._doubts:
            again, load = self._attempt(doubt.fill)
            better = load.taken < doubt.load.taken
            self.emit(
                Repeated(
                    t=time.monotonic(),
                    what="links",
                    name=doubt.what,
                    reasons=[reason.as_json() for reason in doubt.missed],
                    first=_figures(doubt.rates, doubt.load),
                    second=_figures(again, load),
                    counts="second" if better else "first",
                )
            )
            self._write(*((again, load) if better else (doubt.rates, doubt.load)))
        self._doubts.clear()
        self._since.shares()

    def _light(self) -> None:
        if self._circuits:
            self.session.set_circuits(self._circuits)

    def _settle(self, what: str, fill: Callable[[], None]) -> None:
        """Measure some links; unless one missed its setting while others had the processors, they count."""
        rates, load = self._attempt(fill)
        missed = missed_links(rates)
        if missed and load.taken >= TAKEN:
            share = f"{100 * load.taken:.0f} % of the processors"
            self.say(f"  others took {share}, and {missed[0].text}; once more later")
            self._doubts.append(_Doubt(what, fill, rates, load, missed))
            self._note(LinkRateDisturbed, rates, load)
        else:
            self._write(rates, load)

    def _note(self, kind: type[LinkRate], rates: Sequence[dict[str, Any]], load: Shares) -> None:
        stolen, others = round(load.stolen, 4), round(load.others, 4)
        for rate in rates:
            self.emit(
                kind(t=time.monotonic(), fabric=self.setting.name, **rate, stolen=stolen, others=others)
            )

    def _write(self, rates: Sequence[dict[str, Any]], load: Shares) -> None:
        self._note(LinkRate, rates, load)
        ratios = [100 * rate["measured_bps"] / rate["set_bps"] for rate in rates]
        if ratios:
            self.say(
                f"  {len(ratios)} rates, {min(ratios):.1f} to {max(ratios):.1f} % of their settings, median "
                f"{statistics.median(ratios):.1f} %"
            )

    def _attempt(self, fill: Callable[[], None]) -> tuple[list[dict[str, Any]], Shares]:
        self._rates, self._load = [], Shares()
        fill()
        return self._rates, self._load

    def _nics(self, graph: nx.MultiDiGraph[str]) -> None:
        fabric = self.setting.fabric
        rings: list[Test] = []
        for switch in fabric.packet_switches:
            gpus = [gpu for gpu in fabric.gpus if graph.has_edge(gpu, switch)]
            if len(gpus) > 1:
                rings.append((f"links-{switch}", gpus, [(i + 1) % len(gpus) for i in range(len(gpus))]))
        for source, destination, rate in self._run(rings):
            rates = [
                data["rate_bps"]
                for gpu in (source, destination)
                for _, _, data in graph.out_edges(gpu, data=True)
            ]
            self._keep(f"NICs of {source}, {destination}", f"{source} to {destination}", min(rates), rate)

    def _trunks(self, graph: nx.MultiDiGraph[str]) -> None:
        fabric = self.setting.fabric
        batches, unmeasured = trunk_tests(fabric, Router(fabric, graph))
        for out in unmeasured:
            to = fabric.link_at[out].other(out)
            self.say(f"  {out} to {to} is not measured: no two GPUs send over it")
        for batch in batches:
            gpus = list(dict.fromkeys(gpu for pair in batch for gpu in pair))
            receiver = {source: gpus.index(destination) for source, destination in batch}
            test: Test = ("link-trunks", gpus, [receiver.get(gpu) for gpu in gpus])
            for source, destination, rate in self._run([test]):
                path, measured = batch[source, destination]
                # One NIC cannot fill a faster trunk: then its own rate is what can be asked for.
                setting = min(hop.rate_bps for hop in path)
                for hop in measured:
                    link = fabric.link_at[hop.out]
                    self._keep(f"{link.a} - {link.b}", f"{hop.out.node} to {hop.into.node}", setting, rate)

    def _onics(self, grid: Grid) -> None:
        """Each port of every O-NIC sends to the next node of its row or column, all lit all the time."""
        count = grid.rows * grid.columns
        next_in = {
            "row": [i - i % grid.columns + (i + 1) % grid.columns for i in range(count)],
            "column": [(i + grid.columns) % count for i in range(count)],
        }
        for port, name in enumerate(lines(grid)):
            test: Test = (f"light-{name}s", list(grid.nodes), [*next_in[name]])
            for source, destination, rate in self._run([test]):
                ends = [Port(gpu, port) for gpu in (source, destination)]
                setting = min(self.setting.fabric.link_at[end].rate_bps for end in ends)
                self._keep(f"O-NIC ports {ends[0]}, {ends[1]}", f"{source} to {destination}", setting, rate)

    def _ring(self, ring: WdmRing) -> None:
        """Every node sends to its neighbour on one wavelength, clockwise and then the other way."""
        count = len(ring.nodes)
        for port, way, step in ((0, "clockwise", 1), (1, "counter", -1)):
            if count == 2 and step < 0:
                # Between two nodes the shorter way is always the same.
                continue
            test: Test = (f"ring-{way}", list(ring.nodes), [(i + step) % count for i in range(count)])
            for source, destination, rate in self._run([test]):
                setting = self.setting.fabric.link_at[Port(source, port)].rate_bps
                link = f"{source}:{port} to {destination}, one wavelength"
                self._keep(link, f"{source} to {destination}", setting, rate)

    def _keep(self, link: str, direction: str, real_bps: float, measured_bps: float) -> None:
        set_bps = real_bps / self.setting.scale.rate
        rate = {"link": link, "direction": direction, "set_bps": set_bps, "measured_bps": measured_bps}
        self._rates.append(rate)

    def _run(self, tests: Sequence[Test]) -> list[tuple[str, str, float]]:
        """Run tests at once: (from, to, bits per second of TCP payload)."""
        seconds = self.setting.link_test_s
        ids = {
            name: self.session.submit(
                {
                    "name": name,
                    "ranks": gpus,
                    "hold": True,
                    "workload": "linktest",
                    "connect_timeout_s": CONNECT_S,
                    "linktest": {"seconds": seconds, "to": to},
                }
            )
            for name, gpus, to in tests
        }
        if not ids:
            return []
        self.session.wait_ready(ids)
        load = ProcessorLoad(self.session.processes.lab.id)
        self.session.release(ids.values())
        failures = self.session.wait_ended(ids, seconds + 30.0)
        self._load = max(self._load, load.shares(), key=lambda shares: shares.taken)
        if failures:
            raise BackendError(f"link test: {failures[0]}")
        return [
            (gpus[event["peer"]], gpus[rank_of(event)], float(event["rate_bps"]))
            for name, gpus, _ in tests
            for event in self.session.get(f"/v1/jobs/{ids[name]}/events", cursor=0)["events"]
            if event["event"] == "linktest" and event.get("rate_bps")
        ]


def _figures(rates: Sequence[dict[str, Any]], load: Shares) -> dict[str, Any]:
    ratios = [rate["measured_bps"] / rate["set_bps"] for rate in rates]
    return {"taken": load.taken, "least": min(ratios), "most": max(ratios)}


#: Pairs of GPUs, sender first, with the path of their packets and those links of it that they measure.
Batch = dict[tuple[str, str], tuple[tuple[Hop, ...], list[Hop]]]


def trunk_tests(fabric: Fabric, router: Router) -> tuple[list[Batch], list[Port]]:
    """Which GPUs send to which to fill each direction of each link between packet switches once.

    In a batch no GPU sends or receives twice, and no link is used twice, nor in both directions. Also the
    ports of links over which no pair of GPUs sends.
    """
    left = {
        port
        for link in fabric.links
        if {link.a.node, link.b.node} <= fabric.packet_switches.keys()
        for port in (link.a, link.b)
    }
    batches: list[Batch] = []
    taken: list[set[object]] = []
    gpus = list(fabric.gpus)
    # Pairs equally far apart share the fewest links.
    for shift, first in itertools.product(range(1, len(gpus)), range(len(gpus))):
        source, destination = gpus[first], gpus[(first + shift) % len(gpus)]
        if not router.count(source, destination):
            continue
        path = router.path(source, destination)
        measured = [hop for hop in path if hop.out in left]
        if not measured:
            continue
        left -= {hop.out for hop in measured}
        used: set[object] = {("from", source), ("to", destination)}
        used |= {frozenset((hop.out, hop.into)) for hop in path[1:-1]}
        free = next((number for number, others in enumerate(taken) if used.isdisjoint(others)), len(taken))
        if free == len(taken):
            batches.append({})
            taken.append(set())
        batches[free][source, destination] = (path, measured)
        taken[free] |= used
    return batches, sorted(left)
