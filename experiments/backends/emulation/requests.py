"""Make the controller request for each job of a plan, and refuse plans that cannot be emulated."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from ringlight.experiments.analysis.prediction import (
    light_wait_s,
    longest_iteration_s,
    slowest_bps,
)
from ringlight.experiments.backends.emulation.rest import CONNECT_S
from ringlight.experiments.language.job_sources import made_by
from ringlight.experiments.language.plan import Costs, JobPlan, RunPlan
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.cost import all_reduce_time
from ringlight.fabric.keys import plugged
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import under
from ringlight.workloads.job_settings import LIMITS, SLOWER, TRAINING, Limit
from ringlight.workloads.packed import pack

#: A worker waits so long for a peer or for light in an undisturbed run, besides the all-reduce, seconds.
USUAL_PATIENCE_S = 15.0
#: Where a plane sums: who hangs is to be named within five seconds.
SUMS_PATIENCE_S = 4.0
#: And so many times the all-reduce: a rank may have nothing to do in most steps of a tree.
EXCHANGE_PATIENCE = 2
#: At least so long where something is made to go wrong, and after it is to be well again.
TROUBLE_PATIENCE_S, RETURN_PATIENCE_S = 60.0, 30.0
#: Most operations of a rank in an iteration: their times are one event.
MOST_OPERATIONS = 20_000
#: Longest wait for a peer that the controller takes, emulated seconds.
MOST_PATIENCE_S = float(LIMITS["peer_timeout_s"].most)
#: Keys of a scenario's job by the names of the settings that they become.
_KEYS = {
    "gradient_bytes": "training.gradient",
    "compute_s": "training.compute",
    "batch": "training.batch",
    "seed": "training.seed",
    "learning_rate": "training.learning_rate",
}
#: Events after which jobs go on as they were.
HARMLESS = ("regroup", "cancel", "start")


def job_request(plan: RunPlan, job: JobPlan) -> dict[str, Any]:
    """Return the body of ``POST /v1/jobs`` for a job that is held."""
    request: dict[str, Any] = {"name": job.name, **_where(plan, job), "hold": True}
    request["connect_timeout_s"] = CONNECT_S
    if (guest := job.guest) is not None:
        runs = {"workload": guest.kind, guest.kind: guest.request()}
        return {**request, **runs, "beacon_interval_s": job.beacon_s}
    request |= {
        "iterations": job.iterations,
        "peer_timeout_s": peer_timeout_s(plan, job),
    }
    if job.workload is not None:
        request |= {
            "workload": "graph",
            "graph": hashlib.sha256(pack(job.workload)).hexdigest(),
        }
        if job.light != "once":
            request["light"] = job.light
    else:
        settings = {name: getattr(job.loop, name) for name in TRAINING}
        request |= {"workload": "train", **settings, "beacon_interval_s": job.beacon_s}
    if job.stragglers:
        request["slower"] = {
            str(rank): factor for rank, factor in job.stragglers.items()
        }
    if job.on_loss != "fail":
        request["on_loss"] = job.on_loss
    if job.on_loss == "swap":
        request["spares"] = list(job.spares)
    return request


def _where(plan: RunPlan, job: JobPlan) -> dict[str, Any]:
    """GPUs by name; or how many, of a plane with light where no packet switch joins any."""
    if job.ranks:
        return {"ranks": list(job.ranks)}
    plane = job.plane(plan.setting.fabric)
    return {"gpus": job.gpus, **({"plane": plane.name} if plane.name else {})}


def peer_timeout_s(plan: RunPlan, job: JobPlan) -> float:
    """Return the emulated seconds that a worker waits for a peer before it treats the peer as lost."""
    plane = job.plane(plan.setting.fabric)
    if plane.sums:
        return sums_patience_s(plan, job)
    longest_s = (
        longest_all_reduce_s(plan, job)
        if job.workload is None
        else longest_iteration_s(plan, job)
    )
    light_s = plane.fit.patience_s(job, plan.setting.scale.time)
    patience_s = USUAL_PATIENCE_S + EXCHANGE_PATIENCE * longest_s + light_s
    harmful = [event for event in plan.events if event.do not in HARMLESS]
    if harmful or plan.control != ControlFaults():
        away_s = max((event.back_after_s for event in harmful), default=0.0)
        patience_s = max(patience_s, TROUBLE_PATIENCE_S, away_s + RETURN_PATIENCE_S)
    return min(patience_s, MOST_PATIENCE_S)


def sums_patience_s(plan: RunPlan, job: JobPlan) -> float:
    """Return the longest wait for the other ranks of a job whose plane sums, in emulated seconds.

    Ranks wait for each other only when they exchange scales: for as long as the slowest computes after the
    fastest.
    """
    factors = [job.stragglers.get(rank, 1.0) for rank in range(len(job.ranks))]
    return min(
        SUMS_PATIENCE_S + job.loop.compute_s * (max(factors) - min(factors)),
        MOST_PATIENCE_S,
    )


def longest_all_reduce_s(plan: RunPlan, job: JobPlan) -> float:
    """Return an upper bound on the time of an all-reduce without faults, in emulated seconds, far above the
    usual time.

    On packet switches as if all that every job sends in a step passed the slowest link; elsewhere each
    step waits for its light.
    """
    setting = plan.setting
    shared = job.plane(setting.fabric).shared
    alongside = sum(other.gpus for other in plan.jobs) if shared else 1
    steps = steps_named(job.loop.collective, job.gpus)
    alone_s = all_reduce_time(steps, job.loop.gradient_bytes, slowest_bps(setting))
    return alone_s * alongside + steps.steps * light_wait_s(plan, job)


def only_simulated(plan: RunPlan) -> str | None:
    """Return why only a simulation can carry out a plan, ``key: reason``; None if an emulation can, too."""
    source = made_by(plan)
    if (
        source is not None
        and (why := source.refused(plan, simulated=False)) is not None
    ):
        return why
    try:
        plugged(plan.setting.fabric)
    except ValueError as error:
        return under("fabric", error)
    planes = [job.plane(plan.setting.fabric) for job in plan.jobs]
    if not plan.costs.headers:
        return "tcp.headers: only a simulation leaves packets' headers out; here they are on the wire"
    # No latency is what an emulation counts, too: nothing besides its own.
    if replace(plan.costs, latency_s=plan.costs.latency_s or None) != Costs():
        return "costs: only a simulation counts them; here a step costs what it costs"
    for plane in planes:
        if (why := plane.fit.only_simulated(plan)) is not None:
            return why
    for job in plan.jobs:
        if (why := _beyond_workers(job)) is not None:
            return why
        if job.guest is not None:
            continue
        if job.workload is not None:
            if (most := max(map(len, job.workload.programs))) > MOST_OPERATIONS:
                what = f"{most} operations of one rank"
                return f"jobs.{job.name}.workload: {what}; a worker executes up to {MOST_OPERATIONS}"
            continue
        plane = job.plane(plan.setting.fabric)
        if plane.sums:
            if job.ranks != plane.nodes:
                order = ", ".join(plane.nodes)
                return f"jobs.{job.name}.ranks: emulated in the order of the ports of {plane}, {order}"
            continue
        if job.loop.synchronised and plane.light != "stepped":
            return (
                f"jobs.{job.name}.training.synchronised: workers run ahead if they can"
            )
        if job.loop.collective.endswith("-striped"):
            return f"jobs.{job.name}.training.collective: a pair of ranks has one lightpath at a time"
    return None


def _beyond_workers(job: JobPlan) -> str | None:
    """The first figure that no worker takes, which the controller would say only when a lab is up."""
    settings: list[tuple[str, float, Limit]] = [
        ("beacon", job.beacon_s, LIMITS["beacon_interval_s"]),
        ("iterations", job.iterations, LIMITS["iterations"]),
    ]
    settings += [
        (f"slower.{rank}", factor, SLOWER) for rank, factor in job.stragglers.items()
    ]
    if job.training is not None:
        settings += [
            (key, getattr(job.training, name), LIMITS[name])
            for name, key in _KEYS.items()
        ]
    for key, value, limit in settings:
        if not limit.admits(value):
            what = f"{value:.10g} as emulated; a worker takes {limit.least} to {limit.most}"
            return f"jobs.{job.name}.{key}: {what}"
    return None


def passes_no_packets(fabric: Fabric) -> str | None:
    """Return why an optical switch cannot carry packets, ``key: reason``; None if all can."""
    for name, switch in fabric.optical_switches.items():
        if switch.is_elsewhere and any(port.node == name for port in fabric.link_at):
            what = "the testbed's packets do not get to a switch that is elsewhere"
            return f"fabric.optical_switches.{name}.address: {what}; ringlight up drives its light"
    return None
