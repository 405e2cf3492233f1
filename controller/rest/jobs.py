"""REST: jobs and regroupings."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ringlight.controller.circuits.regroup import RegroupDocument
from ringlight.controller.jobs.job import JobDocument, JobEvents, JobOutput
from ringlight.controller.jobs.workload_files import PACKED_BYTES, WorkloadDocument
from ringlight.controller.rest.common import PlainRoute, Who, answers
from ringlight.controller.rest.requests import (
    Cursor,
    JobId,
    JobRequest,
    RankNumber,
    RegroupId,
    RegroupRequest,
    Release,
    WorkloadDigest,
)
from ringlight.controller.service import Controller
from ringlight.controller.web.access import BINARY
from ringlight.controller.web.bounds import Uploads
from ringlight.controller.web.refusals import errors

#: The path of a workload but for its name; its bodies are :data:`BINARY`.
WORKLOADS = "/v1/workloads/"


def router(controller: Controller) -> APIRouter:
    """Return the routes ``/v1/jobs``, ``/v1/workloads`` and ``/v1/regroup``."""
    routes = APIRouter(prefix="/v1", route_class=PlainRoute)
    jobs, regroups = controller.jobs, controller.regroups
    uploads = Uploads(jobs.workloads.directory, PACKED_BYTES)

    @routes.post(
        "/jobs",
        tags=["jobs"],
        status_code=201,
        response_model=None,
        responses={201: {"model": JobDocument}, **errors(409, 415, 422, 503)},
    )
    def submit(body: JobRequest) -> Any:
        """Reserve GPUs and start workers. 409: GPUs are taken; 422: it can never fit."""
        return jobs.submit(
            body.name,
            body.selection,
            body.worker_settings(),
            hold=body.hold,
            plane=body.plane,
            on_loss=body.on_loss,
            spares=body.spares,
        )

    @routes.get("/jobs", tags=["jobs"], **answers(list[JobDocument]))
    def list_jobs() -> Any:
        return jobs.jobs()

    @routes.post(
        "/jobs/release",
        tags=["jobs"],
        **answers(list[JobDocument], 404, 409, 415, 422, 503),
    )
    def release(body: Release) -> Any:
        """Start READY jobs together."""
        return jobs.release(body.jobs, body.delay_s)

    @routes.get("/jobs/{job_id}", tags=["jobs"], **answers(JobDocument, 404))
    def get_job(job_id: JobId) -> Any:
        return jobs.job(job_id)

    @routes.get("/jobs/{job_id}/events", tags=["jobs"], **answers(JobEvents, 404, 422))
    def job_events(job_id: JobId, cursor: Cursor = 0, fresh: bool = False) -> Any:
        """Worker events after ``cursor``, and the next cursor.

        The controller receives worker events up to 0.1 s late; with ``fresh`` it reads them before it
        answers. A job that continues after a loss adds ``lost`` (rank, gpu, reason), ``recovering`` and
        ``recovered`` (iteration, ranks) of its own.
        """
        return jobs.events(job_id, cursor, fresh=fresh)

    @routes.get(
        "/jobs/{job_id}/output/{rank}",
        tags=["jobs"],
        **answers(JobOutput, 404, 409, 422, 503),
    )
    def job_output(job_id: JobId, rank: RankNumber) -> Any:
        """Output so far of a rank's command, for a job whose workers hold the NICs of such commands."""
        return jobs.output(job_id, rank)

    @routes.delete("/jobs/{job_id}", tags=["jobs"], **answers(JobDocument, 404))
    def cancel(job_id: JobId) -> Any:
        """Stop a job; one that has ended stays as it is."""
        return jobs.cancel(job_id)

    @routes.put(
        "/workloads/{sha256}",
        tags=["jobs"],
        **answers(WorkloadDocument, 400, 409, 415, 422, 503),
        openapi_extra={
            "requestBody": {
                "required": True,
                "description": f"What `workloads.packed.pack` makes of it, at most {PACKED_BYTES} bytes",
                "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
            }
        },
    )
    async def put_workload(sha256: WorkloadDigest, request: Request) -> Response:
        """Keep a workload for jobs to execute."""
        async with uploads(request.receive) as (part, digest):
            return JSONResponse(
                await to_thread.run_sync(jobs.workloads.put, sha256, part, digest)
            )

    @routes.get(
        "/workloads/{sha256}", tags=["jobs"], **answers(WorkloadDocument, 404, 422)
    )
    def get_workload(sha256: WorkloadDigest) -> Any:
        return jobs.workloads.document(sha256)

    @routes.post(
        "/regroup",
        tags=["regroup"],
        **answers(RegroupDocument, 404, 409, 415, 422, 503),
    )
    def start_regroup(body: RegroupRequest, who: Who) -> Any:
        """Plan a regrouping and, unless ``dry_run``, carry it out, all or nothing; watch its ``state``."""
        return regroups.start(body.jobs, dry_run=body.dry_run, who=who)

    @routes.get("/regroup", tags=["regroup"], **answers(list[RegroupDocument]))
    def list_regroups() -> Any:
        return regroups.all()

    @routes.get(
        "/regroup/{regroup_id}", tags=["regroup"], **answers(RegroupDocument, 404)
    )
    def get_regroup(regroup_id: RegroupId) -> Any:
        return regroups.get(regroup_id)

    return routes
