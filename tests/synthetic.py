"""Events and series of a run that never happened: what an ideal testbed would have written.

For tests of results, plots and report only. Nothing here measures anything, and the numbers that come out
of it must never be shown as if it did.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.language.profiles import MODELS
from fabric.cost import RingJob, predict
from fabric.topology import Port, circuit_cross_connects
from scenarios.schema import Scenario

Event = dict[str, Any]
Circuits = Sequence[tuple[str, str]]
HASH = "5ca1ab1e" * 8


class Synthesis:
    """Writes the events of one run folder, one run after the other, on an invented clock (seconds)."""

    def __init__(self, scenario: Scenario, *, seed: int = 1, start: float = 1000.0) -> None:
        self.scenario = scenario
        self.now = start
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.series: list[dict[str, Any]] = []

    def add(self, event: str, **fields: Any) -> None:
        self.events.append({"t": fields.pop("t", self.now), "event": event, **fields})

    def links(self, ratio: float = 0.993) -> None:
        scale = self.scenario.rate_scale
        for link in self.scenario.fabric.links:
            for a, b in ((link.a, link.b), (link.b, link.a)):
                rate = link.rate_bps / scale
                self.add(
                    "link_rate",
                    link=f"{link.a} - {link.b}",
                    direction=f"{a} to {b}",
                    set_bps=rate,
                    measured_bps=rate * ratio,
                )

    def run(
        self,
        name: str,
        jobs: Mapping[str, Sequence[str]],
        circuits: Circuits,
        *,
        kind: str = "case",
        case: str = "a",
        placement: str = "fragmented",
        variant: str | None = None,
        repeat: int = 1,
        live: tuple[int, Circuits] | None = None,
        late_s: float = 0.0004,
        busy: float = 0.3,
        stolen: float = 0.01,
        others: float = 0.0,
        reference: str = HASH,
    ) -> None:
        """One run; ``live`` is (iterations of the first job before the regroup, circuits after it)."""
        self.add(
            "run_started",
            run=name,
            kind=kind,
            case=case,
            variant=variant,
            placement=placement,
            repeat=repeat,
            jobs={job: list(gpus) for job, gpus in jobs.items()},
            circuits=[list(c) for c in circuits],
        )
        released = self.now + 0.5
        self.add("released", run=name, at=released)
        pace = self._pace(jobs, circuits)
        ends = dict.fromkeys(jobs, released)
        blackout: tuple[float, float] | None = None
        if live is not None:
            middle = released + (live[0] + 0.4) * pace[next(iter(jobs))]
            blackout = (middle, middle + 0.045)
            self._regroup(name, jobs, circuits, live[1], blackout)
            after = self._pace(jobs, live[1])
        for job, gpus in jobs.items():
            t = released
            connections = [{"peer": r, "local_port": 40000 + r, "remote_port": 29500} for r in range(2)]
            for rank in range(len(gpus)):
                self.add("ready", run=name, job=job, rank=rank, connections=connections)
            total = self.scenario.iterations(len(gpus))
            for i in range(total):
                step = pace[job] if blackout is None or t < blackout[0] else after[job]
                step += 0.06 if blackout is not None and t <= blackout[0] < t + step else 0
                for rank in range(len(gpus)):
                    jitter = self.random.uniform(0, 0.003)
                    self.add(
                        "iteration",
                        t=t + step,
                        run=name,
                        job=job,
                        rank=rank,
                        i=i,
                        compute_start=t,
                        compute_end=t + self.scenario.compute_s + jitter,
                        allreduce_end=t + step,
                        lateness_s=late_s,
                        max_stall_s=0.08 if step > pace[job] else 0.01,
                        stalls=[(blackout[0], blackout[0] + 0.08)] if blackout and step > pace[job] else [],
                        loss=2.3 * 0.9**i + 0.1,
                    )
                t += step
            for rank in range(len(gpus)):
                gaps = []
                if blackout is not None:
                    gaps = [
                        {"t_start": blackout[0], "t_end": blackout[1] + 0.01, "peer": (rank + 1) % len(gpus)}
                    ]
                self.add(
                    "done",
                    t=t,
                    run=name,
                    job=job,
                    rank=rank,
                    parameters_sha256=HASH,
                    loss_first=2.4,
                    loss_last=0.4,
                    accuracy=0.91,
                    connections=connections,
                    beacon_gaps=gaps,
                )
            self.add("reference", t=t, run=name, job=job, sha256=reference)
            ends[job] = t
        self.now = max(ends.values())
        final = circuits if live is None else live[1]
        self.add("circuits", run=name, circuits=[list(c) for c in final])
        self._throughput(name, jobs, pace, released, ends)
        t = released
        while t < self.now:
            self.add("cpu", t=t, run=name, busy=busy, stolen=stolen, others=others)
            t += 0.5
        self.add("run_ended", run=name)
        self.now += 2

    def _pace(self, jobs: Mapping[str, Sequence[str]], circuits: Circuits) -> dict[str, float]:
        ports = [(Port.parse(a), Port.parse(b)) for a, b in circuits]
        gradient = MODELS[self.scenario.spec.training.model].gradient_bytes
        rings = [RingJob.all_reduce(n, g, gradient, self.scenario.compute_s) for n, g in jobs.items()]
        return predict(self.scenario.fabric, circuit_cross_connects(self.scenario.fabric, ports), rings)

    def _regroup(
        self,
        name: str,
        jobs: Mapping[str, Sequence[str]],
        before: Circuits,
        after: Circuits,
        window: tuple[float, float],
    ) -> None:
        old = dict(before)
        moves = [{"gpu": a, "from": old[a], "to": b} for a, b in after if old[a] != b]
        t0, t1 = window
        self.add(
            "regrouped",
            t=t1,
            run=name,
            regroup={
                "state": "DONE",
                "plan": {"moves": moves, "fibres_moved": len(moves)},
                "timeline": [
                    {"t": t0 - 0.012, "phase": "requested"},
                    {"t": t0 - 0.003, "phase": "start"},
                    {"t": t0, "phase": "planned"},
                    {"t": t0, "phase": "remove_light"},
                    {"t": t0 + 0.011, "phase": "light_removed"},
                    {"t": t0 + 0.014, "phase": "rules_written"},
                    {"t": t1 - 0.006, "phase": "light_added"},
                    {"t": t1, "phase": "verified"},
                ],
                "results": {
                    "ocs0": [
                        {"ingress": 4, "egress": 23, "t_dark": t0 + 0.01, "t_lit": t1 - 0.009},
                        {"ingress": 9, "egress": 18, "t_dark": t0 + 0.01, "t_lit": t1 - 0.007},
                    ]
                },
            },
        )

    def _throughput(
        self,
        name: str,
        jobs: Mapping[str, Sequence[str]],
        pace: Mapping[str, float],
        released: float,
        ends: Mapping[str, float],
    ) -> None:
        t = released
        while t < self.now:
            for job, gpus in jobs.items():
                for gpu in gpus:
                    phase = ((t - released) % pace[job]) if t < ends[job] else 0.0
                    sending = phase > self.scenario.compute_s
                    exchange = pace[job] - self.scenario.compute_s
                    n = len(gpus)
                    rate = 2 * (n - 1) / n * self.scenario.gradient_bytes * 8 / exchange if sending else 0.0
                    rate *= self.random.uniform(0.94, 1.0)
                    self.series.append(
                        {
                            "t": t,
                            "run": name,
                            "switch": "tor0",
                            "port": 1,
                            "gpu": gpu,
                            "peer": gpu,
                            "rx_bps": rate,
                            "tx_bps": rate,
                        }
                    )
            t += 0.1


REGROUPED: dict[str, Circuits] = {
    "a": [
        ("g0:0", "tor0:1"),
        ("g1:0", "tor0:2"),
        ("g2:0", "tor1:1"),
        ("g3:0", "tor0:3"),
        ("g4:0", "tor0:4"),
        ("g5:0", "tor1:3"),
    ],
    "b": [
        ("g0:0", "tor0:1"),
        ("g1:0", "tor0:2"),
        ("g2:0", "tor1:1"),
        ("g3:0", "tor0:3"),
        ("g4:0", "tor1:2"),
        ("g5:0", "tor1:3"),
    ],
}

ENVIRONMENT: dict[str, Any] = {
    "run": "20000101-000000-disaggregation",
    "runtime": "docker",
    "duration_s": 200.0,
    "started": "2000-01-01T00:00:00+00:00",
    "kernel": "6.1.0-synthetic",
    "processors": 2,
    "versions": {"open_vswitch": "3.1.0"},
    "optical_profiles": {
        "ocs0": {"name": "mems", "dark_min_s": 0.03, "dark_typ_s": 0.0325, "dark_max_s": 0.035}
    },
}


def synthesize(scenario: Scenario, *, repeats: int = 1) -> Synthesis:
    """A whole run of the disaggregation scenario: link test, all cases, variants and the live regroup."""
    out = Synthesis(scenario)
    out.links()
    start = [(str(a), str(b)) for a, b in scenario.fabric.circuits]
    for repeat in range(1, repeats + 1):
        for name, case in scenario.spec.cases.items():
            for placement, circuits in (("fragmented", start), ("regrouped", REGROUPED[name])):
                run = f"{name}-{placement}-{repeat}"
                out.run(run, case.jobs, circuits, case=name, placement=placement, repeat=repeat)
    for name, variant in scenario.spec.variants.items():
        jobs = {**scenario.spec.cases[variant.case].jobs, **variant.jobs}
        out.run(f"variant-{name}", jobs, start, kind="variant", case=variant.case, variant=name)
    if scenario.spec.live is not None:
        live = scenario.spec.live
        out.run(
            "live",
            scenario.spec.cases[live.case].jobs,
            start,
            kind="live",
            case=live.case,
            placement="live",
            live=(live.after_iterations, REGROUPED[live.case]),
        )
    return out
