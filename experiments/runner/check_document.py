"""Describe a valid scenario file, whose runs are not made: its fabrics, jobs and predicted times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ringlight.experiments.analysis.carrying import demand_of
from ringlight.experiments.backends.protocol import Backend
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.job_sources import made_by
from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
from ringlight.experiments.language.profiles import unknown_gpus
from ringlight.experiments.runner.predicted_points import points_of
from ringlight.fabric.frames import describe
from ringlight.fabric.paths import most_paths
from ringlight.fabric.topology import Fabric, circuit_cross_connects, electrical_graph
from ringlight.fabric.units import format_rate

#: Points of an arm for which it is looked at whether a machine carries them.
_MOST_CARRIED = 50


def check_document(experiment: Experiment) -> dict[str, Any]:
    """Return the JSON object that describes a valid scenario file."""
    # Here, as whoever simulates needs nothing of the emulation.
    from ringlight.experiments.backends.emulation.backend import EmulationBackend
    from ringlight.experiments.backends.simulation.backend import SimulationBackend

    backends: Sequence[Backend] = (EmulationBackend(), SimulationBackend())
    arms: dict[str, Any] = {}
    settings: dict[str, Setting] = {}
    points = points_of(experiment.plans)
    for plan in experiment.plans:
        settings.setdefault(plan.setting.name, plan.setting)
        if plan.arm in arms:
            arms[plan.arm]["runs"] += 1
            continue
        refused = {backend.name: backend.refuses(plan) for backend in backends}
        arms[plan.arm] = {
            "title": plan.title,
            "fabric": plan.setting.name,
            "runs": 1 + experiment.unread.get(plan.arm, 0),
            "refused": {name: why for name, why in refused.items() if why is not None},
            "events": [
                {"name": event.name, "do": event.do, "target": str(event.target or "")}
                for event in plan.events
            ],
            "jobs": _jobs_document(plan),
            "points": points[plan.arm],
            **_source_document(plan),
        }
    fabrics = {
        name: fabric_document(setting.fabric) for name, setting in settings.items()
    }
    for name, fabric in fabrics.items():
        fabric["notes"] = _notes(settings[name], fabric["equal_paths"])
    for name, arm in arms.items():
        arm["carried"] = (
            {} if "emulation" in arm["refused"] else _carried(experiment, name)
        )
    return {
        "processors": os.cpu_count(),
        **({} if experiment.scale is None else {"scale": _scale_document(experiment)}),
        "name": experiment.spec.name,
        "file": experiment.path,
        "runs": len(experiment.plans) + sum(experiment.unread.values()),
        "unread": dict(experiment.unread),
        "fabrics": fabrics,
        "arms": arms,
    }


def _scale_document(experiment: Experiment) -> dict[str, Any]:
    """Return the scale that was chosen, and how long the runs will take with it."""
    from ringlight.experiments.runner.machine import takes

    assert experiment.scale is not None
    wanting = [
        plan
        for plan in experiment.plans
        if plan.setting.scale == experiment.scale.scale
    ]
    frames = sorted({plan.setting.frames.mtu_bytes for plan in wanting})
    return {
        **experiment.scale.model_dump(mode="json"),
        "mtu_bytes": frames,
        "takes_s": asdict(takes(wanting)),
    }


def _carried(experiment: Experiment, arm: str) -> dict[str, Any]:
    """Return the load that an emulation of an arm puts on a machine, by point; at most the first
    _MOST_CARRIED points.
    """
    plans = [plan for plan in experiment.plans_of([arm]) if plan.repeat == 1][
        :_MOST_CARRIED
    ]
    demands = {plan.point_name: demand_of(plan) for plan in plans}
    return {
        name: asdict(demand) for name, demand in demands.items() if demand is not None
    }


def _source_document(plan: RunPlan) -> dict[str, Any]:
    """Return what the source of a run's jobs says of them, by its key; {} where the file names them."""
    source = made_by(plan)
    return (
        {}
        if plan.source is None or source is None
        else {plan.source.key: source.document(plan)}
    )


def _jobs_document(plan: RunPlan) -> dict[str, Any]:
    return {
        job.name: {
            "ranks": list(job.ranks) or job.gpus,
            "iterations": job.iterations,
            **_does(job),
        }
        for job in plan.jobs
    }


def _does(job: JobPlan) -> dict[str, Any]:
    """Return a job's work in an iteration: its training loop or workload, or what runs beside its workers."""
    if job.guest is not None:
        return {"guest": job.guest.key, **job.guest.description()}
    if job.workload is None:
        return {
            key: getattr(job.loop, key)
            for key in ("collective", "compute_s", "gradient_bytes")
        }
    from ringlight.workloads.summary import summary

    totals = summary(job.workload)
    sent = sum(traffic.sent for traffic in totals.traffic.values())
    workload = {
        "name": totals.name,
        "operations": totals.operations,
        "sent_bytes": sent,
    }
    return {"workload": workload, "compute_s": float(totals.seconds.max())}


def _notes(setting: Setting, equal_paths: int) -> list[str]:
    """Return notes on a fabric: what its short forms stand for, how packets choose a path, and its frames."""
    from ringlight.fabric.schema import FabricSpec

    fabric = setting.fabric
    spec = {
        key: value
        for key, value in setting.section.items()
        if key in FabricSpec.model_fields
    }
    notes = []
    for key, tree in FabricSpec.model_validate(spec).trees.items():
        nics, uplinks = (
            ", ".join(
                format_rate(rate) for rate in sorted({link.rate_bps for link in links})
            )
            for links in (tree.links[: len(tree.gpus)], tree.links[len(tree.gpus) :])
        )
        switches = list(tree.switches)
        notes.append(
            f"{setting.name}.{key}: GPUs {tree.gpus[0]} … {tree.gpus[-1]} at {nics}; {len(switches)} packet "
            f"switches {switches[0]} … {switches[-1]}, {len(tree.links) - len(tree.gpus)} links between them"
            + (f" at {uplinks}" if uplinks else "")
        )
    if equal_paths > 1:
        how = {"hash": "by a hash of their addresses", "even": "dealt out evenly"}[
            fabric.paths
        ]
        pairs = "between two GPUs; each pair takes one"
        notes.append(f"{setting.name}: up to {equal_paths} equal paths {pairs}, {how}")
    if unknown := unknown_gpus(gpu.model for gpu in fabric.gpus.values()):
        notes.append(
            f"{setting.name}: no table has the times of {', '.join(unknown)}; a job there takes what its own "
            "compute, gpu or device says"
        )
    return [*notes, *describe(fabric, setting.frames)]


def fabric_document(fabric: Fabric) -> dict[str, Any]:
    """Return the JSON object of a checked fabric, with its short forms written out."""
    from ringlight.fabric.keys import fabric_keys

    graph = electrical_graph(fabric, circuit_cross_connects(fabric, fabric.circuits))
    return {
        **{
            kind: list(getattr(fabric, kind))
            for kind in ("gpus", "packet_switches", "optical_switches")
        },
        **{
            name: list(fabric.parts.get(name, ()))
            for name, key in fabric_keys().items()
            if key.devices
        },
        "links": [
            {
                "ends": [str(link.a), str(link.b)],
                "rate_bps": link.rate_bps,
                "queue_s": link.queue_s,
            }
            for link in (*fabric.links, *fabric.cables)
        ],
        "paths": fabric.paths,
        "equal_paths": most_paths(fabric, graph),
    }
