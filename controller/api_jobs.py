"""REST: jobs and regroupings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.requests import JobRequest, RegroupRequest, Release
from controller.service import Controller


def router(controller: Controller) -> APIRouter:
    """Routes ``/v1/jobs`` and ``/v1/regroup``."""
    routes = APIRouter(prefix="/v1")
    jobs, regroups = controller.jobs, controller.regroups

    @routes.post("/jobs", tags=["jobs"], status_code=201)
    def submit(body: JobRequest) -> dict[str, Any]:
        """Reserve GPUs and start workers. 409: GPUs are taken; 422: it can never fit."""
        return jobs.submit(
            body.name, body.wanted, body.worker_settings(), hold=body.hold, grid=body.grid, ring=body.ring
        )

    @routes.get("/jobs", tags=["jobs"])
    def list_jobs() -> list[dict[str, Any]]:
        return jobs.jobs()

    @routes.post("/jobs/release", tags=["jobs"])
    def release(body: Release) -> list[dict[str, Any]]:
        """Start READY jobs together."""
        return jobs.release(body.jobs, body.delay_s)

    @routes.get("/jobs/{job_id}", tags=["jobs"])
    def get_job(job_id: str) -> dict[str, Any]:
        return jobs.job(job_id)

    @routes.get("/jobs/{job_id}/events", tags=["jobs"])
    def job_events(job_id: str, cursor: int = 0) -> dict[str, Any]:
        """What the workers said after ``cursor``, and the cursor to go on with."""
        return jobs.events(job_id, cursor)

    @routes.delete("/jobs/{job_id}", tags=["jobs"])
    def cancel(job_id: str) -> dict[str, Any]:
        """Stop a job; one that has ended stays as it is."""
        return jobs.cancel(job_id)

    @routes.post("/regroup", tags=["regroup"])
    def start_regroup(body: RegroupRequest) -> dict[str, Any]:
        """Plan a regrouping and, unless ``dry_run``, carry it out; watch its ``state``."""
        return regroups.start(body.jobs, dry_run=body.dry_run)

    @routes.get("/regroup", tags=["regroup"])
    def list_regroups() -> list[dict[str, Any]]:
        return regroups.all()

    @routes.get("/regroup/{regroup_id}", tags=["regroup"])
    def get_regroup(regroup_id: str) -> dict[str, Any]:
        return regroups.get(regroup_id)

    return routes
