"""What the controller is asked for, for each job of a run plan."""

from __future__ import annotations

import hashlib
from typing import Any

from experiments.analysis.prediction import all_reduce_time, light_wait_s, longest_iteration_s
from experiments.backends.emulation.rest import CONNECT_S
from experiments.language.plan import ControlFaults, Costs, JobPlan, RunPlan
from fabric.schedules import steps_named
from workloads.packed import pack

#: A worker waits so long for a peer or for light in an undisturbed run, besides the all-reduce, seconds.
USUAL_PATIENCE_S = 15.0
#: And so many times the all-reduce: a rank may have nothing to do in most steps of a tree.
EXCHANGE_PATIENCE = 2
#: At least so long where something is made to go wrong, and after it is to be well again.
TROUBLE_PATIENCE_S, RETURN_PATIENCE_S = 60.0, 30.0
#: Of one rank in an iteration; when they were is one event.
MOST_OPERATIONS = 20_000
#: The most that the controller takes.
MOST_PATIENCE_S = 3600.0
#: Events after which jobs go on as they were.
HARMLESS = ("regroup", "cancel", "start")


def job_request(plan: RunPlan, job: JobPlan) -> dict[str, Any]:
    """The body of ``POST /v1/jobs``, held."""
    request: dict[str, Any] = {
        "name": job.name,
        **_where(plan, job),
        "hold": True,
        "iterations": job.iterations,
        "peer_timeout_s": peer_timeout_s(plan, job),
        "connect_timeout_s": CONNECT_S,
    }
    if job.workload is not None:
        request |= {"workload": "graph", "graph": hashlib.sha256(pack(job.workload)).hexdigest()}
    else:
        request |= {
            "workload": "train",
            "collective": job.loop.collective,
            "gradient_bytes": job.loop.gradient_bytes,
            "compute_s": job.loop.compute_s,
            "batch": job.loop.batch,
            "seed": job.loop.seed,
            "learning_rate": job.loop.learning_rate,
            "beacon_interval_s": job.beacon_s,
        }
    if job.stragglers:
        request["slower"] = {str(rank): factor for rank, factor in job.stragglers.items()}
    if job.on_loss != "fail":
        request["on_loss"] = job.on_loss
    if job.on_loss == "swap":
        request["spares"] = list(job.spares)
    return request


def _where(plan: RunPlan, job: JobPlan) -> dict[str, Any]:
    """GPUs by name; or how many, of the one grid or ring where no packet switch joins any."""
    if job.ranks:
        return {"ranks": list(job.ranks)}
    fabric = plan.setting.fabric
    places = [("grid", name) for name in fabric.grids] + [("ring", name) for name in fabric.rings]
    if len(places) == 1 and fabric.gpus.keys() <= fabric.onics.keys():
        return {"gpus": job.gpus, **dict(places)}
    return {"gpus": job.gpus}


def peer_timeout_s(plan: RunPlan, job: JobPlan) -> float:
    """Emulated seconds that a worker waits for a peer before it takes it for lost."""
    longest_s = longest_all_reduce_s(plan, job) if job.workload is None else longest_iteration_s(plan, job)
    patience_s = USUAL_PATIENCE_S + EXCHANGE_PATIENCE * longest_s
    harmful = [event for event in plan.events if event.do not in HARMLESS]
    if harmful or plan.control != ControlFaults():
        away_s = max((event.back_after_s for event in harmful), default=0.0)
        patience_s = max(patience_s, TROUBLE_PATIENCE_S, away_s + RETURN_PATIENCE_S)
    return min(patience_s, MOST_PATIENCE_S)


def longest_all_reduce_s(plan: RunPlan, job: JobPlan) -> float:
    """No all-reduce takes longer where nothing is wrong: emulated seconds, far more than most take.

    On packet switches as if all that every job sends in a step passed the slowest link; on a grid or
    ring each step waits for its light.
    """
    setting = plan.setting
    fabric = setting.fabric
    slowest_bps = min(link.rate_bps for link in fabric.links) / setting.scale.rate
    lit = not fabric.packet_switches or bool(job.ranks and fabric.onics.keys() >= set(job.ranks))
    alongside = 1 if lit else sum(other.gpus for other in plan.jobs)
    steps = steps_named(job.loop.collective, job.gpus)
    alone_s = all_reduce_time(steps, job.loop.gradient_bytes, slowest_bps)
    return alone_s * alongside + steps.steps * light_wait_s(plan)


def only_simulated(plan: RunPlan) -> str | None:
    """Why only a simulation can count what a plan's steps cost, ``key: reason``; None where it need not."""
    if plan.setting.fabric.interconnect is not None:
        return "fabric.interconnect: it is described as a whole, and a testbed is built port by port"
    if plan.costs != Costs():
        return "costs: only a simulation counts them; here a step costs what it costs"
    for job in plan.jobs:
        if job.workload is not None:
            if (most := max(map(len, job.workload.programs))) > MOST_OPERATIONS:
                what = f"{most} operations of one rank"
                return f"jobs.{job.name}.workload: {what}; a worker executes up to {MOST_OPERATIONS}"
            continue
        if job.loop.synchronised and not plan.setting.fabric.rings:
            return f"jobs.{job.name}.training.synchronised: workers run ahead where they can"
        if job.loop.collective.endswith("-striped"):
            return f"jobs.{job.name}.training.collective: a pair of ranks has one lightpath at a time"
    return None
