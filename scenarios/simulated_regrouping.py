"""Simulates a scenario of the regrouping kind: every case fragmented and regrouped, variants, live regroup.

The runs are those that ``ringlight run`` makes, planned by the planner that the controller uses. What the
controller itself takes, and TCP, are not simulated: a regroup costs what the optical switch's profile says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runner.progress import Reporter
from fabric.cost import RingJob
from fabric.optical_profiles import PROFILES, Profile
from fabric.placement import Regrouping, regroup
from fabric.schedules import ring
from fabric.topology import CrossConnects, Fabric, Port, canonical, circuit_cross_connects
from scenarios.fidelity import SERIES_STEP_S
from scenarios.runfolder import RunFolder
from scenarios.runner import Plan, plans
from scenarios.schema import Scenario
from scenarios.simulated import SimulationOptions, finished, simulated_folder
from testbed.simulation.engine import Engine, Passed
from testbed.simulation.jobs import Compute, Job, JobResult, NetworkChange, simulate
from testbed.simulation.networks import PacketNetwork, scaled

#: As the workers do, shorter times without a byte are not reported one by one.
STALL_S = 0.02
#: Seconds of virtual time between the end of a run and the start of the next.
_PAUSE_S = 1.0

Circuit = tuple[str, str]
Interval = tuple[float, float]

_LEFT_OUT = (
    "TCP: no loss, no retransmission, no time to find the fair rate, no acknowledgements in the way of "
    "payload going the other way.",
    "The workers' software: no late timers, no time in the kernel or in software switches. A rank begins a "
    "step of the ring when it has sent and received all of the one before; a worker may begin with the part "
    "of a chunk that it has.",
    "The controller: a regroup takes the command and dark times of the optical switch's profile and nothing "
    "more, and the packet switches' rules change at once. A live regroup begins when every rank of the "
    "watched job has done its iterations, so at the start of a computation, which may hide the dark time. "
    "No beacons are sent, so there is no beacon gap.",
    "What is trained: no gradient is computed, so there are no losses, no accuracy and no parameters.",
)


def simulate_regrouping(
    scenario: Scenario, options: SimulationOptions, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """Simulate it all; the run folder and the object of result.json.

    Raises ValueError naming what has no path, no capacity or no room.
    """
    profiles = {
        name: PROFILES[switch.profile].dilated(scenario.time_scale)
        for name, switch in scenario.fabric.optical_switches.items()
    }
    fabric = scaled(scenario.fabric, scenario.rate_scale)
    # What cannot be simulated is found before a folder is made for it.
    network_of(fabric, [(str(a), str(b)) for a, b in scenario.fabric.circuits], options)
    declared = {name: profile.declared() for name, profile in profiles.items()}
    facts: dict[str, Any] = {}
    with simulated_folder(
        scenario,
        [scenario.fabric],
        options,
        reporter,
        optical_profiles=declared,
        assumptions=_assumptions(scenario, profiles),
        left_out=_LEFT_OUT,
        facts=facts,
    ) as folder:
        simulator = _Simulator(scenario, fabric, profiles, options, folder, reporter)
        for plan in plans(scenario, 1):
            simulator.one_run(plan)
        facts["simulated_events"] = simulator.events
    return finished(folder, reporter)


def _assumptions(scenario: Scenario, profiles: Mapping[str, Profile]) -> list[dict[str, str]]:
    return [
        {
            "what": "GPU time of an iteration",
            "value": f"{1000 * scenario.compute_s:.1f} ms on every rank",
            "why": "constant, as the workers wait",
        },
        *(
            {
                "what": f"dark time of {name}",
                "value": f"{1000 * profile.dark_bounds_s()[1]:.1f} ms",
                "why": f"typical of its profile, {profile.name}, the receiver's re-training included; before "
                f"it the command takes {1000 * profile.command_s:.1f} ms and "
                f"{1000 * profile.command_per_xc_s:.1f} ms for each ingress port",
            }
            for name, profile in profiles.items()
        ),
    ]


def network_of(
    fabric: Fabric, circuits: Iterable[Sequence[str]], options: SimulationOptions
) -> PacketNetwork:
    """What packets see of a fabric (emulated rates) with these circuits lit."""
    light = _light(fabric, circuits)
    return PacketNetwork(fabric, light, latency_s=options.latency_s, share=options.payload_share)


def _light(fabric: Fabric, circuits: Iterable[Sequence[str]]) -> CrossConnects:
    return circuit_cross_connects(fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits])


@dataclass(frozen=True)
class _Regroup:
    """A planned regroup: circuits afterwards; seconds that its command takes, and that new light is dark.

    ``moved``: (optical switch, ingress, egress) of every cross-connect that is made.
    """

    plan: Regrouping
    circuits: tuple[Circuit, ...]
    command_s: float
    dark_s: float
    moved: tuple[tuple[str, int, int], ...]

    def document(self, number: int, jobs: Sequence[str], begin_s: float) -> dict[str, Any]:
        """As the controller's resource, with times from ``begin_s`` on."""
        dark_at, lit_at = begin_s + self.command_s, begin_s + self.command_s + self.dark_s
        phases = (
            ("requested", begin_s),
            ("planned", begin_s),
            ("remove_light", begin_s),
            ("light_removed", dark_at),
            ("light_added", lit_at),
            ("ended", lit_at),
        )
        results: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for switch, ingress, egress in self.moved:
            ends = {"ingress": ingress, "egress": egress}
            results[switch].append({**ends, "action": "add", "t_dark": dark_at, "t_lit": lit_at})
        plan = self.plan
        return {
            "id": f"regroup-{number}",
            "state": "DONE",
            "jobs": list(jobs),
            "dry_run": False,
            "plan": {
                "moves": [
                    {"gpu": m.gpu, "from": None if m.source is None else str(m.source)}
                    | {"to": str(m.destination)}
                    for m in plan.moved
                ],
                "circuits": [list(circuit) for circuit in self.circuits],
                "crossing_bytes_before": plan.crossing_bytes_before,
                "crossing_bytes_after": plan.crossing_bytes_after,
                "fibres_moved": len(plan.moved),
                "optimal": plan.optimal,
            },
            "timeline": [{"t": t, "phase": phase} for phase, t in phases],
            "problems": [],
            "results": dict(results),
            "error": None,
        }


class _Simulator:
    """Makes one run after the other; each begins a moment after the last on one virtual clock."""

    def __init__(
        self,
        scenario: Scenario,
        fabric: Fabric,
        profiles: Mapping[str, Profile],
        options: SimulationOptions,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        self.scenario, self.fabric, self.profiles = scenario, fabric, profiles
        self.options, self.folder, self.reporter = options, folder, reporter
        self.start = canonical((str(a), str(b)) for a, b in scenario.fabric.circuits)
        self.now_s = 0.0
        self.regroups = 0
        self.events = 0

    def one_run(self, plan: Plan) -> None:
        """Simulate one run and write down what happened. Raises ValueError when a job cannot do its work."""
        self.reporter.start_run(plan.title, self._totals(plan))
        event = {
            "simulated": True,
            "kind": plan.kind,
            "case": plan.case,
            "variant": plan.variant,
            "placement": plan.placement,
            "repeat": plan.repeat,
            "jobs": {name: list(gpus) for name, gpus in plan.jobs.items()},
            "circuits": self.start,
        }
        self.folder.event("run_started", t=self.now_s, run=plan.name, **event)
        circuits: Sequence[Circuit] = self.start
        changes: list[NetworkChange] = []
        if plan.placement == "regrouped":
            made = self._plan_regroup(plan.jobs)
            self._note_regroup(plan, made, plan.jobs, self.now_s)
            self.now_s += made.command_s + made.dark_s
            circuits = made.circuits
        released_s = self.now_s
        self.folder.event("released", t=released_s, run=plan.name, at=released_s)
        network = network_of(self.fabric, circuits, self.options)
        if plan.kind == "live":
            made, at_s, left = self._live_regroup(plan, network)
            self._note_regroup(plan, made, left, released_s + at_s)
            circuits = made.circuits
            after = network_of(self.fabric, circuits, self.options)
            changes = [NetworkChange(at_s + made.command_s, after, made.dark_s, "regroup")]
        engine = Engine(trace=True)
        results = self._run(plan, network, changes, engine)
        self.events += engine.events
        self._write(plan, results, engine, released_s)
        self.now_s = released_s + max(result.end_s for result in results.values())
        self.folder.event("circuits", t=self.now_s, run=plan.name, circuits=canonical(circuits))
        self.folder.event("run_ended", t=self.now_s, run=plan.name)
        done = ", ".join(f"{name} {result.end_s:.2f} s" for name, result in sorted(results.items()))
        self.reporter.end_run()
        self.reporter.say(f"  done: {done}")
        self.now_s += _PAUSE_S

    def _totals(self, plan: Plan) -> dict[str, int]:
        return {name: self.scenario.iterations(len(gpus)) for name, gpus in plan.jobs.items()}

    def _run(
        self,
        plan: Plan,
        network: PacketNetwork,
        changes: Sequence[NetworkChange],
        engine: Engine | None = None,
    ) -> dict[str, JobResult]:
        jobs = [
            Job(
                name,
                gpus,
                ring(len(gpus)),
                self.scenario.gradient_bytes,
                Compute(self.scenario.compute_s),
                self.scenario.iterations(len(gpus)),
            )
            for name, gpus in plan.jobs.items()
        ]
        results = simulate(network, jobs, changes, engine=engine)
        for result in results.values():
            if result.failed:
                raise ValueError(f"{plan.title}: job {result.name}: {result.failed}")
        return results

    # Regrouping.

    def _plan_regroup(self, jobs: Mapping[str, Sequence[str]]) -> _Regroup:
        """As the controller plans it when these jobs run, from the circuits that are lit at the start."""
        gradient, compute_s = float(self.scenario.gradient_bytes), self.scenario.compute_s
        rings = [RingJob.all_reduce(name, gpus, gradient, compute_s) for name, gpus in jobs.items()]
        now = [(Port.parse(a), Port.parse(b)) for a, b in self.start]
        plan = regroup(self.fabric, now, rings)
        circuits = canonical((str(a), str(b)) for a, b in plan.circuits)
        before, after = _light(self.fabric, self.start), _light(self.fabric, circuits)
        command_s = dark_s = 0.0
        moved: list[tuple[str, int, int]] = []
        for name, group in after.items():
            gone, new = set(before.get(name, ())) - set(group), set(group) - set(before.get(name, ()))
            if not gone and not new:
                continue
            profile = self.profiles[name]
            touched = len({xc.ingress for xc in gone | new})
            command_s = max(command_s, profile.command_s + profile.command_per_xc_s * touched)
            dark_s = max(dark_s, profile.dark_bounds_s()[1])
            moved += [(name, xc.ingress, xc.egress) for xc in sorted(new)]
        return _Regroup(plan, tuple(circuits), command_s, dark_s, tuple(moved))

    def _live_regroup(self, plan: Plan, network: PacketNetwork) -> tuple[_Regroup, float, list[str]]:
        """What is regrouped, when it is asked for (seconds since the release), and for which jobs.

        That is when every rank of the watched job has done so many iterations, as the runner asks for it.
        Until then nothing differs from a run without a regroup, so such a run tells when.
        """
        live = self.scenario.spec.live
        assert live is not None
        results = self._run(plan, network, [])
        watched = results[self.scenario.spec.cases[live.case].watched]
        at_s = float(watched.iterations[live.after_iterations - 1].end_s.max())
        left = [name for name, result in results.items() if result.end_s > at_s]
        return self._plan_regroup({name: plan.jobs[name] for name in left}), at_s, left

    def _note_regroup(self, plan: Plan, made: _Regroup, jobs: Iterable[str], begin_s: float) -> None:
        self.regroups += 1
        document = made.document(self.regroups, list(jobs), begin_s)
        self.folder.event("regrouped", t=begin_s, run=plan.name, regroup=document)
        moves = ", ".join(f"{m['gpu']} to {m['to']}" for m in document["plan"]["moves"]) or "nothing to move"
        self.reporter.say(f"  regrouped: {moves}")

    # Writing down.

    def _write(self, plan: Plan, results: Mapping[str, JobResult], engine: Engine, released_s: float) -> None:
        assert engine.passed is not None
        moved = busy(engine, engine.passed)
        for name, gpus in plan.jobs.items():
            for index, iteration in enumerate(results[name].iterations):
                times = (iteration.begin_s, iteration.computed_s, iteration.end_s)
                rows = zip(*(column.tolist() for column in times), strict=True)
                for rank, (begin_s, computed_s, end_s) in enumerate(rows):
                    stalls = idle_within(moved.get(gpus[rank], []), computed_s, end_s)
                    self.folder.copy(
                        {
                            "t": released_s + end_s,
                            "event": "iteration",
                            "run": plan.name,
                            "job": name,
                            "rank": rank,
                            "i": index,
                            "compute_start": released_s + begin_s,
                            "compute_end": released_s + computed_s,
                            "allreduce_end": released_s + end_s,
                            "lateness_s": 0.0,
                            "max_stall_s": max((b - a for a, b in stalls), default=0.0),
                            "stalls": [
                                (released_s + a, released_s + b) for a, b in stalls if b - a >= STALL_S
                            ],
                            "loss": None,
                        }
                    )
        end_s = max(result.end_s for result in results.values())
        self.folder.samples(plan.name, self._samples(engine, end_s, released_s))

    def _samples(self, engine: Engine, end_s: float, released_s: float) -> list[dict[str, Any]]:
        """What each packet switch's ports received and sent, headers included, every 0.1 s."""
        assert engine.passed is not None
        steps = int(end_s / SERIES_STEP_S) + 1
        switches = self.fabric.packet_switches
        received: dict[tuple[Port, Port], list[float]] = defaultdict(lambda: [0.0] * steps)
        sent: dict[tuple[Port, Port], list[float]] = defaultdict(lambda: [0.0] * steps)
        for passed in engine.passed:
            for tail, head in (_ends(engine.key(link)) for link in passed.links):
                if tail.node in switches:
                    _add(sent[tail, head], passed)
                if head.node in switches:
                    _add(received[head, tail], passed)
        wire = 8 / SERIES_STEP_S / self.options.payload_share
        rows: list[dict[str, Any]] = []
        for port, other in sorted({*received, *sent}):
            gpu = other.node if other.node in self.fabric.gpus else ""
            named = {"switch": port.node, "port": port.number, "peer": str(other), "gpu": gpu}
            rows += [
                {**named, "t": released_s + k * SERIES_STEP_S, "rx_bps": rx * wire, "tx_bps": tx * wire}
                for k, (rx, tx) in enumerate(zip(received[port, other], sent[port, other], strict=True))
            ]
        return sorted(rows, key=lambda row: row["t"])


def _ends(key: Hashable) -> tuple[Port, Port]:
    assert isinstance(key, tuple)
    tail, head = key
    return tail, head


def _add(bins: list[float], passed: Passed) -> None:
    """Add to each bin of the series the bytes that passed during it."""
    for k in range(
        int(passed.begin_s / SERIES_STEP_S), min(int(passed.end_s / SERIES_STEP_S) + 1, len(bins))
    ):
        overlap = min(passed.end_s, (k + 1) * SERIES_STEP_S) - max(passed.begin_s, k * SERIES_STEP_S)
        bins[k] += max(0.0, overlap) * passed.rate


def busy(engine: Engine, passed: Iterable[Passed]) -> dict[str, list[Interval]]:
    """When bytes moved at each GPU, either way: intervals in order that do not touch, by GPU."""
    moved: dict[str, list[Interval]] = defaultdict(list)
    for entry in passed:
        moved[_ends(engine.key(entry.links[0]))[0].node].append((entry.begin_s, entry.end_s))
        moved[_ends(engine.key(entry.links[-1]))[1].node].append((entry.begin_s, entry.end_s))
    return {gpu: merged(intervals) for gpu, intervals in moved.items()}


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as intervals in order that do not touch."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def idle_within(busy: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    """The parts of ``begin`` to ``end`` that are in no interval of ``busy`` (in order, not touching)."""
    idle, at = [], begin
    for start, stop in busy:
        if stop <= begin:
            continue
        if start >= end:
            break
        if start > at:
            idle.append((at, start))
        at = max(at, stop)
    if at < end:
        idle.append((at, end))
    return idle
