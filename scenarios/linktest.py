"""Measures what the links really give, before anything is concluded from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import networkx as nx

from fabric.grid import lines
from fabric.topology import Grid, Port, WdmRing, circuit_cross_connects, electrical_graph
from scenarios.processes import RunError
from scenarios.progress import Reporter
from scenarios.runfolder import RunFolder
from scenarios.schema import Setting
from scenarios.session import Circuits, Session, rank_of

#: A link test: job name, GPUs, and the rank that each of them sends to.
Test = tuple[str, list[str], list[int | None]]


class LinkTest:
    """Fills links with TCP and writes a ``link_rate`` event for each."""

    def __init__(self, scenario: Setting, session: Session, folder: RunFolder, reporter: Reporter) -> None:
        self.scenario = scenario
        self.session = session
        self.folder = folder
        self.reporter = reporter
        self.ratios: list[float] = []

    def measure(self, circuits: Circuits) -> None:
        """With ``circuits`` lit: all NICs at once along rings inside each packet switch, both directions
        full; then each link between packet switches, one direction after the other; then the O-NICs of each
        grid, all at once along rings in the rows, then in the columns; then those of each ring of
        wavelengths, all to their neighbour one way round, then the other."""
        self.reporter.say("measuring the links")
        if circuits:
            self.session.set_circuits(circuits)
        ports = [(Port.parse(a), Port.parse(b)) for a, b in circuits]
        graph = electrical_graph(self.scenario.fabric, circuit_cross_connects(self.scenario.fabric, ports))
        self._nics(graph)
        self._trunks(graph)
        for grid in self.scenario.fabric.grids.values():
            self._onics(grid)
        for ring in self.scenario.fabric.rings.values():
            self._ring(ring)
        if self.ratios:
            self.reporter.say(
                f"  {len(self.ratios)} rates, {100 * min(self.ratios):.1f} to {100 * max(self.ratios):.1f} % "
                f"of their settings, median {100 * statistics.median(self.ratios):.1f} %"
            )

    def _nics(self, graph: nx.DiGraph[str]) -> None:
        fabric = self.scenario.fabric
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
            self._note(f"NICs of {source}, {destination}", f"{source} to {destination}", min(rates), rate)

    def _trunks(self, graph: nx.DiGraph[str]) -> None:
        fabric = self.scenario.fabric
        for link in fabric.links:
            if not {link.a.node, link.b.node} <= fabric.packet_switches.keys():
                continue
            for near, far in ((link.a, link.b), (link.b, link.a)):
                pair = [
                    gpu
                    for end in (near, far)
                    for gpu in [g for g in fabric.gpus if graph.has_edge(g, end.node)][:1]
                ]
                if len(pair) < 2:
                    self.reporter.say(f"  {near} to {far} is not measured: a side has no lit GPU")
                    continue
                # One NIC cannot fill a faster trunk: then its own rate is what can be asked for.
                setting = min(link.rate_bps, *(fabric.link_at[Port(gpu, 0)].rate_bps for gpu in pair))
                for _, _, rate in self._run([(f"link-{near.node}", pair, [1, None])]):
                    self._note(f"{link.a} - {link.b}", f"{near.node} to {far.node}", setting, rate)

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
                setting = min(self.scenario.fabric.link_at[end].rate_bps for end in ends)
                self._note(f"O-NIC ports {ends[0]}, {ends[1]}", f"{source} to {destination}", setting, rate)

    def _ring(self, ring: WdmRing) -> None:
        """Every node sends to its neighbour on one wavelength, clockwise and then the other way."""
        count = len(ring.nodes)
        for port, way, step in ((0, "clockwise", 1), (1, "counter", -1)):
            if count == 2 and step < 0:
                # Between two nodes the shorter way is always the same.
                continue
            test: Test = (f"ring-{way}", list(ring.nodes), [(i + step) % count for i in range(count)])
            for source, destination, rate in self._run([test]):
                setting = self.scenario.fabric.link_at[Port(source, port)].rate_bps
                link = f"{source}:{port} to {destination}, one wavelength"
                self._note(link, f"{source} to {destination}", setting, rate)

    def _note(self, link: str, direction: str, real_bps: float, measured_bps: float) -> None:
        set_bps = real_bps / self.scenario.rate_scale
        self.ratios.append(measured_bps / set_bps)
        self.folder.event(
            "link_rate", link=link, direction=direction, set_bps=set_bps, measured_bps=measured_bps
        )

    def _run(self, tests: Sequence[Test]) -> list[tuple[str, str, float]]:
        """Run tests at once: (from, to, bits per second of TCP payload)."""
        seconds = self.scenario.spec.link_test.duration
        ids = {
            name: self.session.submit(
                {
                    "name": name,
                    "ranks": gpus,
                    "hold": True,
                    "workload": "linktest",
                    "linktest": {"seconds": seconds, "to": to},
                }
            )
            for name, gpus, to in tests
        }
        if not ids:
            return []
        self.session.wait_ready(ids)
        self.session.release(ids.values())
        failures = self.session.wait_ended(ids, seconds + 30.0)
        if failures:
            raise RunError(f"link test: {failures[0]}")
        return [
            (gpus[event["peer"]], gpus[rank_of(event)], float(event["rate_bps"]))
            for name, gpus, _ in tests
            for event in self.session.get(f"/v1/jobs/{ids[name]}/events", cursor=0)["events"]
            if event["event"] == "linktest" and event.get("rate_bps")
        ]
