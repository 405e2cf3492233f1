"""Events of a comparison that never ran: what ideal labs would have written.

For tests of results, plots and report only. Nothing here measures anything, and the numbers that come out
of it must never be shown as if it did.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from fabric.collectives import schedule_of
from scenarios.comparison import Comparison, grid_of, job_settings, nic_rate_bps, scaled

Event = dict[str, Any]
HASH = "0dd10dd1" * 8
#: Seconds from request to light of a synthetic flow without a disturbance.
SET_UP_S = 0.0006

ENVIRONMENT: dict[str, Any] = {
    "run": "20000101-000000-oddl",
    "runtime": "docker",
    "duration_s": 100.0,
    "started": "2000-01-01T00:00:00+00:00",
    "labs": {"ideal": "aaaa", "oddl": "bbbb"},
    "onic_timings": {
        name: {"lease_s": 8.0, "guard_s": 0.4, "tuning_s": 4.2e-8} for name in ("prototype", "oddl")
    },
}


class Synthesis:
    """Writes the events of one run folder, one run after the other, on an invented clock (seconds)."""

    def __init__(self, comparison: Comparison, *, start: float = 1000.0) -> None:
        self.comparison = comparison
        self.now = start
        self.events: list[Event] = []

    def add(self, event: str, **fields: Any) -> None:
        self.events.append({"t": fields.pop("t", self.now), "event": event, **fields})

    def links(self, fabric: str, ratio: float = 0.99) -> None:
        setting = self.comparison.settings[fabric]
        for gpu in setting.fabric.gpus:
            rate = nic_rate_bps(setting, gpu)
            self.add("link_rate", link=gpu, direction=f"from {gpu}", set_bps=rate, measured_bps=rate * ratio)

    def run(
        self,
        name: str,
        fabric: str,
        *,
        kind: str = "fabric",
        variant: str | None = None,
        repeat: int = 1,
        set_up_s: float = SET_UP_S,
        point: Mapping[str, float] | None = None,
        changes: Mapping[str, Any] | None = None,
        busy: float = 0.3,
        stolen: float = 0.01,
        lost_bytes: int = 0,
        light: Mapping[str, int] | None = None,
        digest: str = HASH,
        reference: str = HASH,
        killed: tuple[str, int, float] | None = None,
    ) -> None:
        """One run. ``killed``: what, after how many iterations, for how long; ``light``: final counters."""
        comparison = self.comparison
        setting, ranks = comparison.settings[fabric], comparison.ranks(fabric)
        grid = grid_of(setting.fabric)
        request = {**job_settings(comparison, fabric), **(changes or {})}
        jobs = comparison.jobs(fabric)
        schedule = schedule_of(comparison.steps(fabric))
        rate = min(nic_rate_bps(setting, gpu) for gpu in ranks)
        steps = [list(group) for _, group in itertools.groupby(schedule.transfers, key=lambda t: t.step)]
        spent = set_up_s if grid is not None else 0.0
        exchange = comparison.all_reduce_s(fabric, request["gradient_bytes"], spent)
        self.add(
            "run_started",
            run=name,
            kind=kind,
            case=fabric,
            variant=variant,
            repeat=repeat,
            jobs={job: list(gpus) for job, gpus in jobs.items()},
            request=request,
            point=dict(point) if point else None,
        )
        if grid is not None:
            self._light(name, "before", ranks, {})
        released = self.now + 0.5
        self.add("released", run=name, at=released)
        for job, gpus in jobs.items():
            for rank in range(len(gpus)):
                self.add("ready", run=name, job=job, rank=rank, connections=[])
            t = released
            for i in range(request["iterations"]):
                if killed is not None and i == killed[1]:
                    self.add("trouble", t=t + 0.01, run=name, happened="killed", what=killed[0])
                    self.add("trouble", t=t + 0.01 + killed[2], run=name, happened="back", what=killed[0])
                reduce_at = t + request["compute_s"] + 0.0002
                for rank, gpu in enumerate(gpus):
                    flows = 0
                    at = reduce_at
                    for step in steps:
                        mine = [transfer for transfer in step if transfer.source == rank]
                        sending = 8 * len(mine) * request["gradient_bytes"] / schedule.chunks / rate
                        if grid is not None and mine:
                            self._flow(name, fabric, gpu, gpus[mine[0].destination], at, set_up_s, sending)
                            flows += 1
                        at += spent + sending
                    self.add(
                        "iteration",
                        t=reduce_at + exchange,
                        run=name,
                        job=job,
                        rank=rank,
                        i=i,
                        compute_start=t,
                        compute_end=reduce_at,
                        allreduce_end=reduce_at + exchange,
                        lateness_s=0.0002,
                        max_stall_s=0.001,
                        loss=2.3 * 0.95**i,
                        **({"flows": flows} if grid is not None else {}),
                    )
                t = reduce_at + exchange
            sent = request["iterations"] * 1000
            for rank in range(len(gpus)):
                self.add(
                    "done",
                    t=t,
                    run=name,
                    job=job,
                    rank=rank,
                    parameters_sha256=digest,
                    loss_first=2.4,
                    loss_last=1.2,
                    accuracy=0.5,
                    bytes_sent=sent,
                    bytes_received=sent - (lost_bytes if rank == 0 else 0),
                    retransmits=0,
                    connections=[],
                )
            self.add("reference", t=t, run=name, job=job, sha256=reference)
        self.now = t
        if grid is not None:
            self._light(name, "after", ranks, light or {})
        at = released
        while at < t:
            self.add("cpu", t=at, run=name, busy=busy, stolen=stolen)
            at += 0.5
        self.add("run_ended", t=t, run=name)
        self.now += 2

    def _flow(
        self, run: str, fabric: str, gpu: str, peer: str, at: float, set_up_s: float, sending_s: float
    ) -> None:
        ways = self.comparison.ways(fabric)
        assert ways is not None
        way = ways[gpu][peer]
        self.add(
            "flow",
            t=at + set_up_s + sending_s,
            run=run,
            gpu=gpu,
            peer=peer,
            flow=len(self.events),
            port=way.port,
            wavelength=way.wavelength,
            t_open=at,
            t_request=at,
            t_grant=at + set_up_s / 2,
            t_lit=at + set_up_s,
            t_close=at + set_up_s + sending_s,
            t_released=at + set_up_s + sending_s + 0.0003,
            waited=False,
        )

    def _light(self, run: str, moment: str, ranks: tuple[str, ...], counters: Mapping[str, int]) -> None:
        flows = sum(event["event"] == "flow" for event in self.events)
        names = ("collisions", "receiver_overlaps", "misdirected", "dark_drops", "unset_drops")
        names += ("blocked_drops", "unplugged_drops")
        before = {event["event"]: event for event in self.events}.get("light")
        last = before["kernel"]["switches"]["n-r0"] if before else dict.fromkeys(names, 0)
        switch = {name: last[name] + counters.get(name, 0) for name in names}
        onic = {"light_tx_bytes": [flows * 1000, flows * 500], "unrouted": 0}
        agent = {
            "epoch": 7,
            "counters": {"sent": {"request": 5 * flows}, "flows_done": flows, "faults": {"lost": 0}},
        }
        idle = {"epoch": 7, "counters": {"sent": {"request": 0}, "flows_done": 0, "faults": {"lost": 0}}}
        self.add(
            "light",
            run=run,
            moment=moment,
            kernel={"switches": {"n-r0": switch}, "onics": dict.fromkeys(ranks, onic)},
            agents={gpu: agent if index == 0 else idle for index, gpu in enumerate(ranks)},
        )


def synthesize(comparison: Comparison, *, repeats: int = 1) -> Synthesis:
    """Everything that a comparison asks for."""
    out = Synthesis(comparison)
    spec = comparison.spec
    for fabric in comparison.settings:
        out.links(fabric)
        for repeat in range(1, repeats + 1):
            out.run(f"{fabric}-{repeat}", fabric, repeat=repeat)
        for name, trouble in spec.trouble.items():
            if trouble.fabric == fabric:
                out.run(
                    f"trouble-{name}",
                    fabric,
                    kind="trouble",
                    variant=name,
                    changes={"iterations": trouble.iterations or 10},
                    killed=(str(trouble.kill), trouble.after_iterations, trouble.absence or 0.5),
                )
        sweep = spec.sweep
        if sweep is None:
            continue
        changes = {"iterations": sweep.iterations, "compute_s": sweep.compute * comparison.time_scale}
        swept = [(0.0, 0.0)] if fabric == spec.baseline else list(
            itertools.product(sweep.tuning, sweep.control_delay)
        )  # fmt: skip
        for number, (size, (tuning, delay)) in enumerate(itertools.product(sweep.gradient, swept), start=1):
            out.run(
                f"sweep-{fabric}-{number}",
                fabric,
                kind="sweep",
                variant=str(number),
                set_up_s=SET_UP_S + comparison.time_scale * (2 * delay + tuning),
                point={"control_delay_s": delay, "tuning_s": tuning, "gradient_bytes": size},
                changes={**changes, "gradient_bytes": scaled(size, comparison)},
            )
    return out
