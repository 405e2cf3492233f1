"""The simulation as a backend: what it takes for granted, what it leaves out, what it can do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ringlight.experiments.backends.protocol import CAPABILITIES, Batch, lacking
from ringlight.experiments.backends.simulation.carriers import carriers
from ringlight.experiments.backends.simulation.collectives import alone, batches
from ringlight.experiments.backends.simulation.lab import SimulatedLab
from ringlight.experiments.backends.simulation.workloads import MOST_RANKS, fidelity_of
from ringlight.experiments.language.job_sources import made_by
from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import Record
from ringlight.fabric.frames import ETHERNET_BYTES, IN_PACKET_BYTES, payload_share
from ringlight.fabric.full_load import MEASURED
from ringlight.fabric.keys import device_words
from ringlight.fabric.light import bit_errors, frame_errors
from ringlight.fabric.link_effects import LinkEffect
from ringlight.fabric.planes.base import NETWORK_S, Plane
from ringlight.fabric.topology import circuit_cross_connects, electrical_graph, path_dbm
from ringlight.fabric.units import format_time
from ringlight.testbed.simulation.networks import MOST_LOSS, MOST_LOSSY

#: Nothing is simulated that has processes, but switches and workers; and no GPU comes back.
_CANNOT = {
    "kill controller",
    "kill agent",
    "kill server agent",
    "disturb",
    "restore gpu",
}
_CANNOT |= {f"kill {kind}" for kind in device_words()}
_LEFT_OUT = (
    "TCP: no loss but on links that lose frames, no retransmission but there and after links were dark, no "
    "time to find the fair rate; acknowledgements in the way of payload, and flows that are ahead of others, "
    "only with tcp.full_load.",
    "The workers' software: no late timers, no time in the kernel or in software switches.",
    "The controller: light that it moves takes the command and dark times of the optical switch's profile "
    "and nothing more, and the packet switches' rules change at once. No beacons are sent.",
    "What is trained: no gradient is computed, so there are no losses, no accuracy and no parameters.",
)


@dataclass
class SimulationBackend:
    """``mtu_bytes``: of packets, None for what the emulation would choose. ``latency_s``: emulated seconds
    before the first byte of a transfer counts. ``most_events``: what a run may take."""

    mtu_bytes: int | None = None
    latency_s: float = 0.0
    most_events: float = math.inf
    name: str = "simulation"
    label: str = "simulated"
    capabilities: frozenset[str] = frozenset(CAPABILITIES.keys() - _CANNOT)
    #: How many events its runs have taken.
    events: int = 0
    _assumed: dict[str, tuple[list[str], str]] = field(default_factory=dict)

    def refuses(self, plan: RunPlan) -> str | None:
        if (source := made_by(plan)) is not None:
            why = source.refused(plan, simulated=True)
            if why is not None or plan.computed:
                return why
        if (missing := lacking(self, plan)) is not None:
            return missing
        faults = plan.control
        if faults.loss or faults.duplicate or faults.reorder:
            return "control: the simulation cannot lose, double or reorder control messages, only delay them"
        fabric = plan.setting.fabric
        if fabric.foreign_switches:
            name = fabric.foreign_switches[0]
            return f"fabric.packet_switches.{name}.controller: the simulation forwards as our controller does"
        planes = {job.name: job.plane(fabric) for job in plan.jobs}
        in_step = all(
            planes[job.name].light == "stepped"
            or (job.training is not None and job.training.synchronised)
            for job in plan.jobs
        )
        if plan.costs.add_bps is not None and not in_step:
            return "costs.addition: only steps that are synchronised count it"
        if (why := _apart(plan, planes)) is not None:
            return why
        if (why := _unmodelled(plan, planes)) is not None:
            return why
        for job in plan.jobs:
            if (why := self._refuses_job(plan, job)) is not None:
                return why
        for event in plan.events:
            for plane in planes.values():
                if (why := carriers()[plane.kind].cannot(event.do)) is not None:
                    return f"events.{event.name}.do: {why}"
        return None

    def _refuses_job(self, plan: RunPlan, job: JobPlan) -> str | None:
        if (guest := job.guest) is not None:
            return f"jobs.{job.name}.{guest.key}: the simulation runs no {guest.noun}s"
        if job.training is not None:
            if job.training.collective.endswith("-striped") and not alone(plan):
                return f"jobs.{job.name}: a striped collective is only simulated as an all-reduce alone"
            return None
        if (
            event := next((event for event in plan.events if event.do != "start"), None)
        ) is not None:
            return f"events.{event.name}.do: the simulation cannot {event.do} while a workload runs"
        if fidelity_of(job) == "classes" and (len(plan.jobs) > 1 or job.stragglers):
            what = "other jobs" if len(plan.jobs) > 1 else "stragglers"
            many = f"a workload of more than {MOST_RANKS} ranks"
            return f"jobs.{job.name}: {many} is simulated without {what}"
        return None

    def check_ready(self) -> None:
        """It needs nothing."""

    def prepare(
        self,
        settings: Sequence[Setting],
        logs: Path | None,
        say: Callable[[str], None],
        earlier: Mapping[str, Any],
    ) -> None:
        """Note the assumptions that the simulation makes about these settings."""
        self._assumed.clear()
        for setting in settings:
            self._assume(setting)

    def _mtu_bytes(self, setting: Setting) -> int:
        return self.mtu_bytes or setting.frames.mtu_bytes

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> SimulatedLab:
        self._assume(setting)
        share = payload_share(self._mtu_bytes(setting))
        return SimulatedLab(
            setting, share, self.latency_s, self._count, self.most_events
        )

    def batches(self, plans: Sequence[RunPlan]) -> tuple[list[Batch], list[RunPlan]]:
        """Return batches of plans that need no lab, and the plans that need a lab."""
        sourced: list[Batch] = [
            source.batch(plan)
            for plan in plans
            if plan.computed and (source := made_by(plan)) is not None
        ]
        plans = [plan for plan in plans if not plan.computed]
        single = [plan for plan in plans if alone(plan)]
        if not single:
            return sourced, list(plans)
        share = payload_share(min(self._mtu_bytes(plan.setting) for plan in single))
        single_batches = batches(single, share, self.latency_s)
        return [*sourced, *single_batches], [plan for plan in plans if not alone(plan)]

    def _count(self, events: int) -> None:
        self.events += events

    def facts(self) -> Mapping[str, Any]:
        return {
            "runtime": "simulated",
            "assumptions": [
                {"what": what, "value": "; ".join(values), "why": why}
                for what, (values, why) in self._assumed.items()
            ],
            "left_out": list(_LEFT_OUT),
            "simulated_events": self.events,
            "latency_s": self.latency_s,
            "network_latency_s": NETWORK_S,
            "mtu_bytes": self.mtu_bytes,
            "payload_share": None
            if self.mtu_bytes is None
            else payload_share(self.mtu_bytes),
        }

    def _assume(self, setting: Setting) -> None:
        """Note each assumption once; fabrics that take different values have them side by side."""
        mtu_bytes = self._mtu_bytes(setting)
        assumed = [
            (
                "payload's share of a link's rate",
                f"{100 * payload_share(mtu_bytes):.2f} %",
                f"packets of {mtu_bytes} bytes, of which TCP and IP take {IN_PACKET_BYTES}, and "
                f"{ETHERNET_BYTES} of Ethernet around them: what the emulated links' shapers count",
            ),
            (
                "latency of a transfer",
                format_time(self.latency_s),
                "before its first byte counts, besides costs.latency. Without that key: "
                f"{format_time(NETWORK_S)} over packet switches and other planes that set up no light, "
                "which NCCL's model has for a step of a ring between servers in its protocol for small "
                "messages (hwLat, network, ring, LL, in NVIDIA/nccl@01afd20 src/graph/tuning.cc), inside "
                "servers too; none where light is set up for transfers, as that is counted, and none "
                "where times, rates or bytes are scaled for an emulation",
            ),
            (
                "sharing of a link",
                "max-min fair, at once",
                "what TCP comes near to over some round trips; nothing is lost and nothing sent twice",
            ),
        ]
        if setting.tcp.full_load:
            assumed.append(
                (
                    "what TCP leaves of a link that is full both ways",
                    ", ".join(
                        f"{100 * share:.1f} % ({flows})"
                        for flows, share in MEASURED.items()
                    ),
                    "of payload's rate, by the flows that each end sends and receives at once; measured once "
                    "connections were warm (fabric/full_load.py)",
                )
            )
        for carrier in carriers().values():
            assumed += carrier.assumed(setting)
        for what, value, why in assumed:
            values, _ = self._assumed.setdefault(what, ([], why))
            if value not in values:
                values.append(value)


class _Losing(NamedTuple):
    """A place where frames may be lost: whether they are, and the share of full frames."""

    where: str
    loses: bool
    share: float


def _effects(plan: RunPlan) -> Iterator[tuple[str, LinkEffect]]:
    """Yield what links do to frames, with the keys that say it: those of the fabric, then of events."""
    for link in plan.setting.fabric.links:
        for effect in link.effects.values():
            yield f"fabric.links: {link.a} - {link.b}", effect
    for event in plan.events:
        for key, effect in event.effects.items():
            yield f"events.{event.name}.{key}", effect


def _unmodelled(plan: RunPlan, planes: Mapping[str, Plane]) -> str | None:
    """Return which effect of links on frames has no model in a plan, ``key: reason``; None if none."""
    setting = plan.setting
    frame_bytes = setting.frames.mtu_bytes + ETHERNET_BYTES
    losing = [
        _Losing(where, effect.loses, effect.frame_loss(frame_bytes))
        for where, effect in _effects(plan)
    ]
    if setting.fabric.optics.modulation is not None:
        losing.append(
            _Losing("fabric.light.modulation", True, frame_errors(1e-12, frame_bytes))
        )
    if not losing:
        return None
    where = losing[0].where
    for name, plane in planes.items():
        if not carriers()[plane.kind].link_effects:
            return f"{where}: what links do to frames is simulated for packets, and job {name} is on {plane}"
    for job in plan.jobs:
        if job.workload is not None and fidelity_of(job) == "classes":
            return f"{where}: a workload of more than {MOST_RANKS} ranks is simulated without it"
    lossy = next((place.where for place in losing if place.loses), None)
    if lossy is None:
        return None
    if (control := setting.tcp.congestion_control) != "reno":
        return f"tcp.congestion_control: only reno's answer to lost frames is simulated, not {control}'s"
    for place in [*losing, *_weak_light(setting, frame_bytes)]:
        if place.share > MOST_LOSS * (1 + 1e-9):
            return (
                f"{place.where}: {100 * place.share:.3g} % of full frames are lost, and what TCP makes of "
                f"more than {100 * MOST_LOSS:g} % is not simulated"
            )
    if len(setting.fabric.gpus) > MOST_LOSSY:
        return f"{lossy}: lost frames are simulated for up to {MOST_LOSSY} GPUs"
    return None


def _weak_light(setting: Setting, frame_bytes: float) -> Iterator[_Losing]:
    """Ports at which light of the fabric's own circuits arrives with errors."""
    fabric = setting.fabric
    if fabric.optics.modulation is None:
        return
    graph = electrical_graph(fabric, circuit_cross_connects(fabric, fabric.circuits))
    for edge in graph.edges:
        if len(edge.path) > 2 and (
            wrong := bit_errors(fabric.optics, path_dbm(fabric, edge.path))
        ):
            yield _Losing(
                f"fabric.light: at {edge.into}", True, frame_errors(wrong, frame_bytes)
            )


def _apart(plan: RunPlan, planes: Mapping[str, Plane]) -> str | None:
    """Return which job is not where the others are, ``key: reason``; None if all are together.

    A simulation covers one plane, or links that packets share.
    """
    if not planes:
        return None
    reference = sorted(planes.values(), key=lambda plane: plane.shared)[0]
    for job in plan.jobs:
        plane = planes[job.name]
        if not (plane.shared and reference.shared) and plane.name != reference.name:
            where = f"jobs.{job.name}.{'ranks' if job.ranks else 'gpus'}"
            who = job.ranks[0] if job.ranks else "it"
            return f"{where}: {who} is not on {reference}, beside which nothing is simulated"
    return None
