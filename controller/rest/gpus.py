"""REST: the GPUs as resources: who has each, where its light ends, and the network at its NIC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter

from ringlight.controller.errors import (
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.jobs.reservation import CLAIM, JOB, Holder
from ringlight.controller.packets.attachment import ports_by_node
from ringlight.controller.rest.common import PlainRoute, answers
from ringlight.controller.rest.requests import AnyGpuName
from ringlight.controller.server_agent import required_agent
from ringlight.controller.service import Controller
from ringlight.fabric.parts import Gpu, Port


@dataclass(frozen=True)
class GpuHost:
    """Network at a GPU's NIC: that of a worker, or of an idle host, for users' own programs.

    ``namespace``: path of the network namespace, null while a worker starts or ends.
    """

    kind: Literal["worker", "idle"]
    namespace: str | None
    container: str | None


@dataclass(frozen=True)
class GpuResource(Gpu):
    """GPU of the fabric. ``state``: lost (a fault took it), job (the job named ``job`` has it), claim (the
    claim named ``claim`` has it), or free.

    ``attached``: ports of packet switches that its light or its cable reaches now. ``host``: null without
    one, or if the lab's agent cannot be asked.
    """

    state: Literal["free", "job", "claim", "lost"]
    job: str | None
    claim: str | None
    attached: list[str]
    host: GpuHost | None


def resources(
    gpus: Iterable[Gpu],
    holders: Mapping[str, Holder],
    lost: Iterable[str],
    ends: Mapping[Port, Port | None],
    hosts: Mapping[str, Mapping[str, Any]],
) -> list[GpuResource]:
    """Return the GPUs as resources.

    ``holders``: holder of each taken GPU. ``ends``: node reached from each packet-switch port. ``hosts``: the
    agent's entry of each GPU.
    """
    out = set(lost)
    attached = ports_by_node(ends)

    def name(gpu: str, kind: str) -> str | None:
        holder = holders.get(gpu)
        return holder.name if holder is not None and holder.kind == kind else None

    def state(gpu: str) -> Literal["free", "job", "claim", "lost"]:
        if gpu in out:
            return "lost"
        if name(gpu, JOB) is not None:
            return "job"
        return "free" if name(gpu, CLAIM) is None else "claim"

    return [
        GpuResource(
            **vars(gpu),
            state=state(gpu.name),
            job=name(gpu.name, JOB),
            claim=name(gpu.name, CLAIM),
            attached=attached.get(gpu.name, []),
            host=_host(hosts.get(gpu.name, {})),
        )
        for gpu in gpus
    ]


def _host(entry: Mapping[str, Any]) -> GpuHost | None:
    if entry.get("kind") not in ("worker", "idle"):
        return None
    return GpuHost(entry["kind"], entry["namespace"], entry.get("container"))


def router(controller: Controller) -> APIRouter:
    """Return the routes ``/v1/gpus``."""
    routes = APIRouter(prefix="/v1/gpus", tags=["GPUs"], route_class=PlainRoute)
    fabric, jobs = controller.fabric, controller.jobs

    def hosts() -> Sequence[Any]:
        """Return the agent's entry of each GPU; none if it cannot be asked, which health reports."""
        try:
            return required_agent(controller.agent).hosts()
        except UnavailableError:
            return []

    def all_now(entries: Iterable[Mapping[str, Any]]) -> list[GpuResource]:
        return resources(
            fabric.gpus.values(),
            controller.reservations.holders(),
            jobs.lost_gpus,
            controller.circuits.ends(),
            {entry["gpu"]: entry for entry in entries},
        )

    @routes.get("", **answers(list[GpuResource]))
    def gpus() -> Any:
        """All GPUs: state, attachment, address, and the network namespace at the NIC."""
        return all_now(hosts())

    @routes.get("/{name}", **answers(GpuResource, 404))
    def gpu(name: AnyGpuName) -> Any:
        """One GPU."""
        return _named(all_now(hosts()), name)

    @routes.put("/{name}/host", **answers(GpuResource, 404, 409, 503))
    def put_host(name: AnyGpuName) -> Any:
        """Have an idle host at a GPU that no job holds: a network namespace with its NIC, for own programs.

        All GPUs without a worker get one. It gives way to a job's worker, and comes back after the job.
        """
        if name not in fabric.gpus:
            raise NotFoundError(f"there is no GPU {name}")
        filled = required_agent(controller.agent).hosts(fill=True)
        resource = _named(all_now(filled), name)
        if resource.host is None:
            raise ConflictError(f"GPU {name} is not plugged into anything")
        return resource

    return routes


def _named(resources: Iterable[GpuResource], name: str) -> GpuResource:
    for resource in resources:
        if resource.name == name:
            return resource
    raise NotFoundError(f"there is no GPU {name}")
