"""Measures what the links really give, before anything is concluded from them."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.analysis.machine_faults import (
    LINK_ERROR,
    TAKEN,
    missed_links,
)
from ringlight.experiments.backends.emulation.astray import Astray
from ringlight.experiments.backends.emulation.rest import (
    CONNECT_S,
    Circuits,
    set_circuits,
)
from ringlight.experiments.backends.protocol import RANK_S, BackendError
from ringlight.experiments.client import Api, Unreachable
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.record.events import ENDED, Record, Repeated
from ringlight.experiments.record.lab_records import (
    LinkRate,
    LinkRateDisturbed,
    ProcessEnded,
)
from ringlight.fabric.frames import describe
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Router
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.planes.streams import LinkTestStream
from ringlight.fabric.topology import (
    ElectricalGraph,
    Fabric,
    circuit_cross_connects,
    electrical_graph,
)
from ringlight.testbed.load import ProcessorLoad, Shares
from ringlight.testbed.processes import LabProcesses

#: Deadlines in seconds: workers connected, after the time to fill links.
READY_S, LATE_S = 60.0, 30.0
#: From the release call to the start, seconds. Who hears of it later begins later, and its stream counts from
#: then: unlike those of training, these ranks need no common start.
START_S = 0.05
#: Frames that TCP sends at first (RFC 6928), and the share of a test that workers leave for warming up.
FIRST_FRAMES, WARM_UP = 10, 0.25


@dataclass(frozen=True)
class Part:
    """Links that are in doubt together. The streams of a batch flow at once: no GPU sends or receives two."""

    what: str
    batches: list[list[LinkTestStream]]


@dataclass(frozen=True)
class Attempt:
    """``rates``: as events hold them. ``load``: of its worst moment."""

    rates: list[dict[str, Any]]
    load: Shares

    def figures(self) -> dict[str, Any]:
        ratios = [_ratio(rate) for rate in self.rates]
        return {
            "taken": self.load.taken,
            **({"least": min(ratios), "most": max(ratios)} if ratios else {}),
        }


class LinkTest:
    """Fills links with TCP and emits a ``LinkRate`` for each.

    Links that missed their setting while others had the processors get ``LinkRateDisturbed`` first, and are
    measured once more by :meth:`repeat` when those have gone: one long disturbance would spoil a second
    attempt right after the first. Links that missed it a little, with nobody else there, are measured twice
    at once: one time-out of TCP in a short queue takes that much. ``astray``: of the lab, from the first test
    on. Methods raise BackendError, ApiError,
    LabError.
    """

    def __init__(
        self,
        setting: Setting,
        processes: LabProcesses,
        api: Api,
        emit: Callable[[Record], None],
        say: Callable[[str], None],
    ) -> None:
        self._setting, self._processes, self._api = setting, processes, api
        self.emit, self._say = emit, say
        self.astray = Astray()
        self._circuits: Circuits = ()
        self._doubts: list[tuple[Part, Attempt]] = []
        self._since = ProcessorLoad(processes.lab.id)

    def measure(self, circuits: Circuits) -> None:
        """Light ``circuits`` and measure the parts of :func:`parts` one after the other."""
        fabric = self._setting.fabric
        for line in describe(fabric, self._setting.frames):
            self._say(line)
        self._say("measuring the links")
        self._circuits = circuits
        if circuits:
            set_circuits(self._api, circuits)
        tests, unmeasured = parts(fabric, circuits)
        for out in unmeasured:
            to = fabric.link_at[out].other(out)
            self._say(f"  {out} to {to} is not measured: no two GPUs send over it")
        if fabric.cables:
            self._say(
                f"  {len(fabric.cables)} cables of devices are not measured: no two GPUs send over them"
            )
        for part in tests:
            self._settle(part)
        self._since.shares()

    def repeat(self, *, last: bool = False) -> None:
        """Measure once more what is in doubt, if others took little since the last call or this is the last.

        Then the attempt counts from which less was taken.
        """
        quiet = self._since.shares().taken < TAKEN
        if not self._doubts or not (quiet or last):
            return
        self._say("measuring links again")
        if self._circuits:
            set_circuits(self._api, self._circuits)
        for part, first in self._doubts:
            second = self._attempt(part)
            better = bool(second.rates) and second.load.taken < first.load.taken
            self._repeated(part, first, second, "second" if better else "first")
            self._write(second if better else first)
        self._doubts.clear()
        self._since.shares()

    def _settle(self, part: Part) -> None:
        """Measure some links; unless one missed its setting while others had the processors, they count."""
        attempt = self._attempt(part)
        missed = missed_links(attempt.rates)
        if attempt.load.taken < TAKEN and (slow := _slow(attempt.rates)):
            second = self._attempt(_only(part, slow))
            self._repeated(part, attempt, second, "better")
            other = {_link(rate): rate for rate in second.rates}
            better = [
                max(rate, other.get(_link(rate), rate), key=_ratio)
                for rate in attempt.rates
            ]
            attempt = Attempt(better, attempt.load)
        if missed and attempt.load.taken >= TAKEN:
            share = f"{100 * attempt.load.taken:.0f} % of the processors"
            self._say(
                f"  other programs used {share}, and {missed[0].text}; it is measured again later"
            )
            self._doubts.append((part, attempt))
            self._note(LinkRateDisturbed, attempt)
        else:
            self._write(attempt)

    def _repeated(
        self, part: Part, first: Attempt, second: Attempt, counts: str
    ) -> None:
        self.emit(
            Repeated(
                t=time.monotonic(),
                what="links",
                name=part.what,
                reasons=[reason.as_json() for reason in missed_links(first.rates)],
                first=first.figures(),
                second=second.figures(),
                counts=counts,
            )
        )

    def _note(self, kind: type[LinkRate], attempt: Attempt) -> None:
        load = attempt.load
        shares = {
            key: round(getattr(load, key), 4) for key in ("stolen", "others", "busy")
        }
        for rate in attempt.rates:
            fabric = self._setting.name
            self.emit(kind(t=time.monotonic(), fabric=fabric, **rate, **shares))

    def _write(self, attempt: Attempt) -> None:
        self._note(LinkRate, attempt)
        ratios = [100 * _ratio(rate) for rate in attempt.rates]
        if ratios:
            self._say(
                f"  {len(ratios)} rates, {min(ratios):.1f} to {max(ratios):.1f} % of their settings, median "
                f"{statistics.median(ratios):.1f} %"
            )

    def _attempt(self, part: Part) -> Attempt:
        rates: list[dict[str, Any]] = []
        worst = Shares()
        for batch in part.batches:
            measured, load = self._fill(batch)
            worst = max(worst, load, key=lambda shares: shares.taken)
            for stream in batch:
                # Who got no light in time has sent nothing.
                rate_bps = measured.get((stream.source, stream.destination))
                for link, direction in stream.links if rate_bps else ():
                    set_bps = stream.rate_bps / self._setting.scale.rate
                    rate = {"link": link, "direction": direction, "set_bps": set_bps}
                    rates.append({**rate, "measured_bps": rate_bps})
        return Attempt(rates, worst)

    def _fill(
        self, batch: list[LinkTestStream]
    ) -> tuple[dict[tuple[str, str], float], Shares]:
        """Bits per second of TCP payload that each source got through to its destination, and the load."""
        seconds = max(seconds_of(self._setting, stream) for stream in batch)
        receivers = {stream.source: stream.destination for stream in batch}
        involved = {*receivers, *receivers.values()}
        gpus = [gpu for gpu in self._setting.fabric.gpus if gpu in involved]
        to = [gpus.index(receivers[gpu]) if gpu in receivers else None for gpu in gpus]
        request = {
            "name": "link-test",
            "ranks": gpus,
            "hold": True,
            "workload": "linktest",
            "connect_timeout_s": CONNECT_S + RANK_S * len(gpus),
            "linktest": {"seconds": seconds, "to": to},
        }
        job = str(self._api.post("/v1/jobs", request)["id"])
        self._wait(job, "READY", READY_S + RANK_S * len(gpus))
        load = ProcessorLoad(self._processes.lab.id)
        self._api.post("/v1/jobs/release", {"jobs": [job], "delay_s": START_S})
        self._wait(job, "SUCCEEDED", seconds + LATE_S)
        shares = load.shares()
        events = self._api.get(f"/v1/jobs/{job}/events", cursor=0)["events"]
        rates = {
            (gpus[event["peer"]], gpus[event["rank"]]): float(event["rate_bps"])
            for event in events
            if event["event"] == "linktest" and event.get("rate_bps")
        }
        return rates, shares

    def _wait(self, job: str, state: str, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            for astray in self._processes.astray():
                self.emit(self.astray.record(astray, ""))
            try:
                document = self._api.get(f"/v1/jobs/{job}")
            except Unreachable:
                # It has died, and is started again.
                self._processes.check()
                for death in self._processes.ended():
                    if death.how is not None:
                        ended = ProcessEnded(
                            t=death.t,
                            kind=death.kind,
                            name=death.name,
                            how=death.how,
                            planned=False,
                        )
                        self.emit(ended)
                        self._say(
                            f"  {ended.process} died ({ended.how}); it is started again"
                        )
            else:
                if document["state"] == state:
                    return
                if document["state"] in ENDED:
                    raise BackendError(
                        f"link test: {document['state'].lower()}: {document['error']}"
                    )
            if time.monotonic() > deadline:
                raise BackendError(
                    f"link test: not {state.lower()} after {patience_s:.0f} s"
                )
            time.sleep(0.03)


def seconds_of(setting: Setting, stream: LinkTestStream) -> float:
    """Return how long a stream lasts, emulated seconds: slow start takes a round trip for each doubling."""
    round_trip_s = stream.round_trip_s * setting.scale.time
    on_way_bytes = stream.rate_bps / setting.scale.rate / 8 * round_trip_s
    doublings = math.log2(
        max(1.0, on_way_bytes / (FIRST_FRAMES * setting.frames.mtu_bytes))
    )
    return max(setting.link_test_s, (math.ceil(doublings) + 2) * round_trip_s / WARM_UP)


def _ratio(rate: Mapping[str, Any]) -> float:
    return float(rate["measured_bps"] / rate["set_bps"])


def _link(rate: Mapping[str, Any]) -> tuple[str, str]:
    return rate["link"], rate["direction"]


def _slow(rates: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Links that gave less than they should; none where one gave so little that no time-out explains it."""
    doubtful, bad = (1 - error for error in LINK_ERROR)
    slow = [rate for rate in rates if _ratio(rate) < doubtful]
    return (
        set()
        if any(_ratio(rate) < bad for rate in slow)
        else {_link(rate) for rate in slow}
    )


def _only(part: Part, links: Container[tuple[str, str]]) -> Part:
    """Those streams of a part that tell of one of the links."""
    batches = [
        [stream for stream in batch if any(link in links for link in stream.links)]
        for batch in part.batches
    ]
    return Part(part.what, [batch for batch in batches if batch])


def parts(fabric: Fabric, circuits: Circuits) -> tuple[list[Part], list[Port]]:
    """Return the parts to measure with ``circuits`` lit, and the ports of links that no pair of GPUs uses.

    First NICs, at the same time along rings inside each packet switch, both directions full. Then each
    direction of each link between packet switches, at the same time those that share no link. Then the O-NICs
    of each plane with light.
    """
    ports = [(Port.parse(a), Port.parse(b)) for a, b in circuits]
    graph = electrical_graph(fabric, circuit_cross_connects(fabric, ports))
    trunks, unmeasured = trunk_tests(fabric, Router(fabric, graph))
    tests = [
        Part("NICs", [list(_nics(fabric, graph))]),
        Part("links between switches", trunks),
    ]
    tests += [
        Part(f"O-NICs of {plane.name}", list(plane.fit.streams()))
        for plane in lit_planes(fabric)
    ]
    return [
        Part(p.what, [batch for batch in p.batches if batch]) for p in tests
    ], unmeasured


def _nics(fabric: Fabric, graph: ElectricalGraph) -> Iterator[LinkTestStream]:
    for switch in fabric.packet_switches:
        gpus = [gpu for gpu in fabric.gpus if switch in graph.heads(gpu)]
        for a, b in itertools.pairwise([*gpus, gpus[0]]) if len(gpus) > 1 else ():
            edges = [edge for end in (a, b) for edge in graph.leaving[end]]
            links = ((f"NICs of {a}, {b}", f"{a} to {b}"),)
            round_trip_s = 2 * sum(_delay_s(fabric, edge.out) for edge in edges)
            yield LinkTestStream(
                a, b, links, min(edge.rate_bps for edge in edges), round_trip_s
            )


def _delay_s(fabric: Fabric, out: Port) -> float:
    return fabric.link_at[out].delay_s


def trunk_tests(
    fabric: Fabric, router: Router
) -> tuple[list[list[LinkTestStream]], list[Port]]:
    """Return batches of streams between GPUs that fill each direction of each link between packet switches
    once.

    In a batch no GPU sends or receives twice, and no link is used twice, nor in both directions. Also return
    the ports of links over which no pair of GPUs sends.
    """
    left = {
        port
        for link in fabric.links
        if {link.a.node, link.b.node} <= fabric.packet_switches.keys()
        for port in (link.a, link.b)
    }
    batches: list[list[LinkTestStream]] = []
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
        free = next(
            (
                number
                for number, resources in enumerate(taken)
                if used.isdisjoint(resources)
            ),
            len(taken),
        )
        if free == len(taken):
            batches.append([])
            taken.append(set())
        labels = [
            (f"{link.a} - {link.b}", f"{hop.out.node} to {hop.into.node}")
            for hop in measured
            for link in [fabric.link_at[hop.out]]
        ]
        # One NIC cannot fill a faster trunk: then its own rate is what can be asked for.
        rate_bps = min(hop.rate_bps for hop in path)
        both_ways = (*path, *router.path(destination, source))
        round_trip_s = sum(_delay_s(fabric, hop.out) for hop in both_ways)
        batches[free].append(
            LinkTestStream(source, destination, tuple(labels), rate_bps, round_trip_s)
        )
        taken[free] |= used
    return batches, sorted(left)
