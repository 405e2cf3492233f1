"""Check what users ask of a job before anything is reserved for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.controller.errors import ConflictError, InvalidError, NotFoundError
from ringlight.controller.jobs.job import guest_of
from ringlight.controller.jobs.reservation import Holder
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.fabric.algorithms import parse_collective
from ringlight.fabric.planes.base import Misfit, Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import Fabric


def check_request(
    fabric: Fabric,
    workloads: WorkloadFiles,
    gpus_or_count: Sequence[str] | int,
    spec: Mapping[str, Any],
    on_loss: str,
    spares: Sequence[str],
    holders: Mapping[str, Holder],
) -> None:
    """Check what does not depend on the job's light. Raises InvalidError, ConflictError.

    ``gpus_or_count``: GPU names in rank order, or their number. ``holders``: holder of each taken GPU.
    """
    _check_stepless(fabric, gpus_or_count, spec, on_loss)
    _check_spares(
        fabric, () if isinstance(gpus_or_count, int) else gpus_or_count, spares, holders
    )
    if (graph := spec.get("graph")) is not None:
        _check_graph(workloads, graph, gpus_or_count)


def check_place(
    fabric: Fabric,
    plane: Plane | None,
    spec: Mapping[str, Any],
    on_loss: str,
    spares: Sequence[str],
) -> None:
    """Check a job for where it is to run: on a ``plane`` or (None) on packet switches. Raises
    InvalidError.
    """
    if plane is not None:
        _check_lit(plane, spec, on_loss)
    for gpu in spares:
        if (gpu in fabric.onics) != (plane is not None):
            raise InvalidError(f"spares: GPU {gpu} is not where the job runs")


def _check_lit(plane: Plane, spec: Mapping[str, Any], on_loss: str) -> None:
    if guest_of(spec) is not None:
        raise InvalidError(
            f"{spec['workload']}: a program that asks nobody for light runs on packet switches and "
            f"circuits, not on {plane}"
        )
    if spec.get("graph") is not None and plane.light != "stands":
        raise InvalidError(
            f"workload graph: it runs on packet switches and circuits, not on {plane}"
        )
    if on_loss != "fail" and not plane.fit.survives:
        raise InvalidError(
            f"on_loss {on_loss}: a job on {plane} needs all its nodes; it can only fail"
        )


def _check_stepless(
    fabric: Fabric,
    gpus_or_count: Sequence[str] | int,
    spec: Mapping[str, Any],
    on_loss: str,
) -> None:
    collective = spec.get("collective", "ring")
    if spec.get("workload") != "train" or not parse_collective(collective).stepless:
        return
    ranks = () if isinstance(gpus_or_count, int) else gpus_or_count
    try:
        plane = plane_of(fabric, ranks, collective)
    except Misfit as error:
        raise InvalidError(f"collective {collective}: {error}") from None
    if on_loss != "fail":
        why = f"{plane} needs all its servers; on_loss must be fail"
        raise InvalidError(f"collective {collective}: {why}")


def _check_graph(
    workloads: WorkloadFiles, graph: str, gpus_or_count: Sequence[str] | int
) -> None:
    try:
        ranks = workloads.document(graph)["ranks"]
    except NotFoundError as error:
        raise InvalidError(f"graph: {error}") from None
    if ranks != (
        size := gpus_or_count if isinstance(gpus_or_count, int) else len(gpus_or_count)
    ):
        raise InvalidError(f"graph: it is for {ranks} ranks, and the job has {size}")


def _check_spares(
    fabric: Fabric,
    ranks: Sequence[str],
    spares: Sequence[str],
    holders: Mapping[str, Holder],
) -> None:
    for index, gpu in enumerate(spares):
        if gpu not in fabric.gpus:
            raise InvalidError(f"spares: there is no GPU {gpu}")
        if gpu in ranks or gpu in spares[:index]:
            raise InvalidError(f"spares: GPU {gpu} is used twice")
        if gpu in holders:
            raise ConflictError(f"spares: GPU {gpu} is reserved by {holders[gpu]}")
