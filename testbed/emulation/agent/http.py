"""The server agent's service: HTTP on a Unix socket."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ringlight.controller.web.bounds import BoundedBodies, Uploads
from ringlight.controller.web.serving import HttpServer
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.onics import Onics
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker_requests import (
    Digest,
    Name,
    SpareRequest,
    WorkerRequest,
)
from ringlight.testbed.emulation.onic.tables import PeerLight, Transmitter

#: Bodies, bytes: of a packed workload, and any other, such as the specs of all workers of a large job.
PACKED_BYTES, BODY_BYTES = 96 << 20, 16 << 20
_WORKLOADS = "/v1/workloads/"
#: States of jobs that go on, which are copied to where the job is.
STATES = "/v1/states/"


class ReleaseRequest(BaseModel):
    """Let held workers go at ``at`` (seconds of CLOCK_MONOTONIC)."""

    model_config = ConfigDict(extra="forbid")
    ids: list[str]
    at: float


class AnnouncementRequest(BaseModel):
    """Have what is at these GPUs' NICs say where it is. ``forget``: before, delete the flows that name them
    at switches of others of which that is stated."""

    model_config = ConfigDict(extra="forbid")
    gpus: list[str]
    forget: bool = False


class ResumeRequest(BaseModel):
    """Request to choose the state from which a job resumes. ``without``: ranks whose states do not count."""

    model_config = ConfigDict(extra="forbid")
    without: list[int]


class TurnsRequest(BaseModel):
    """Wait until some worker has ended other turns than ``known`` by GPU, at most ``wait_s`` seconds."""

    model_config = ConfigDict(extra="forbid")
    known: dict[str, int]
    wait_s: float = Field(ge=0, le=5)


class TransmitterSpec(BaseModel):
    """One of an O-NIC's fixed transmitters, at port ``port`` on channel ``wavelength``."""

    model_config = ConfigDict(extra="forbid")
    port: int = Field(ge=0, le=1)
    wavelength: int = Field(ge=0)


class LightpathSpec(BaseModel):
    """One lightpath of an O-NIC: its port, and the wavelength where the port has several."""

    model_config = ConfigDict(extra="forbid")
    port: int = Field(ge=0)
    wavelength: int | None = Field(default=None, ge=0)


class LightSpec(BaseModel):
    """The light towards a peer: its lightpaths, and whether what is sent may leave over them now."""

    model_config = ConfigDict(extra="forbid")
    lit: bool
    paths: list[LightpathSpec] = []

    def chosen(self) -> PeerLight:
        return PeerLight(
            self.lit,
            tuple(Transmitter(path.port, path.wavelength) for path in self.paths),
        )


class LabWorkers(Protocol):
    """Workers of a lab, those elsewhere included if it has any; methods as of :class:`Workers`."""

    workloads: Path

    def start_all(self, requests: Iterable[WorkerRequest]) -> list[dict[str, Any]]: ...
    def start_spares(
        self, requests: Iterable[SpareRequest]
    ) -> list[dict[str, Any]]: ...
    def put_workload(self, digest: str, part: Path, actual_digest: str) -> None: ...
    def release(self, ids: Iterable[str], at: float) -> None: ...
    def halt(self, job: str) -> None: ...
    def choose_state(self, job: str, without: Collection[int]) -> int: ...
    def remove_states(self, job: str) -> None: ...
    def report(self, cursor: int) -> dict[str, Any]: ...
    def ends(self, known: int, wait_s: float) -> int: ...
    def output(self, name: str) -> dict[str, str]: ...
    def hosts(self, *, fill: bool) -> list[dict[str, Any]]: ...
    def announce(self, gpus: Collection[str], *, forget: bool) -> list[str]: ...
    def remove(self, name: str) -> None: ...
    def close(self) -> object: ...


def make_app(
    workers: LabWorkers, onics: Onics, lightpaths: Lightpaths, about: Mapping[str, Any]
) -> FastAPI:
    """Return the application that serves the HTTP interface. ``about``: the reply of ``/v1/health``."""
    app = FastAPI(title="Ringlight server agent", docs_url=None, redoc_url=None)
    app.add_middleware(
        BoundedBodies,
        limit=BODY_BYTES,
        streamed={("PUT", _WORKLOADS): PACKED_BYTES, ("PUT", STATES): PACKED_BYTES},
    )
    uploads = Uploads(workers.workloads, PACKED_BYTES)

    @app.exception_handler(AgentError)
    def failed(_request: Request, error: AgentError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=error.status)

    @app.get("/v1/health")
    def health() -> dict[str, Any]:
        return dict(about)

    @app.post("/v1/workers")
    def start(request: WorkerRequest) -> dict[str, Any]:
        return workers.start_all([request])[0]

    @app.post("/v1/workers/batch")
    def start_batch(batch: list[WorkerRequest]) -> list[dict[str, Any]]:
        return workers.start_all(batch)

    @app.post("/v1/spares")
    def start_spares(spares: list[SpareRequest]) -> list[dict[str, Any]]:
        return workers.start_spares(spares)

    @app.put(_WORKLOADS + "{digest}")
    async def put_workload(
        digest: Annotated[str, Digest], request: Request
    ) -> dict[str, Any]:
        async with uploads(request.receive) as (part, uploaded_digest):
            workers.put_workload(digest, part, uploaded_digest)
        return {"sha256": digest}

    @app.post("/v1/workers/release")
    def release(request: ReleaseRequest) -> dict[str, Any]:
        workers.release(request.ids, request.at)
        return {"released": request.ids, "at": request.at}

    @app.post("/v1/jobs/{job}/halt")
    def halt(job: Annotated[str, Name]) -> dict[str, Any]:
        workers.halt(job)
        return {"job": job, "halted": True}

    @app.post("/v1/checkpoints/{job}/resume")
    def resume(job: Annotated[str, Name], request: ResumeRequest) -> dict[str, Any]:
        return {"job": job, "iteration": workers.choose_state(job, request.without)}

    @app.delete("/v1/checkpoints/{job}")
    def remove_states(job: Annotated[str, Name]) -> dict[str, Any]:
        workers.remove_states(job)
        return {"job": job, "removed": True}

    @app.get("/v1/onics")
    def counters() -> dict[str, Any]:
        return onics.counters()

    @app.put("/v1/onics/{gpu}/transmit")
    def transmit(gpu: str, routes: dict[str, TransmitterSpec]) -> dict[str, Any]:
        chosen = {ip: Transmitter(t.port, t.wavelength) for ip, t in routes.items()}
        return onics.set_transmitters(gpu, chosen)

    @app.put("/v1/lightpaths")
    def set_lightpaths(
        lights_by_gpu: dict[str, dict[str, LightSpec]],
    ) -> dict[str, Any]:
        chosen = {
            gpu: {ip: light.chosen() for ip, light in lights.items()}
            for gpu, lights in lights_by_gpu.items()
        }
        return lightpaths.replace(chosen)

    @app.get("/v1/traffic")
    def traffic() -> dict[str, Any]:
        return lightpaths.traffic()

    @app.post("/v1/turns")
    def turns(request: TurnsRequest) -> dict[str, int]:
        return lightpaths.turns(request.known, request.wait_s)

    @app.get("/v1/workers")
    def report(cursor: int = Query(0, ge=0)) -> JSONResponse:
        # As it is: checking every event of a poll ten times a second would cost more than the rest.
        return JSONResponse(workers.report(cursor))

    @app.get("/v1/ends")
    def ends(known: int = 0, wait_s: float = Query(0.0, ge=0, le=5)) -> dict[str, int]:
        return {"ends": workers.ends(known, wait_s)}

    @app.get("/v1/workers/{name}/output")
    def output(name: Annotated[str, Name]) -> dict[str, str]:
        return workers.output(name)

    @app.get("/v1/hosts")
    def hosts() -> list[dict[str, Any]]:
        return workers.hosts(fill=False)

    @app.post("/v1/hosts")
    def fill_hosts() -> list[dict[str, Any]]:
        return workers.hosts(fill=True)

    @app.post("/v1/announcements")
    def announce(request: AnnouncementRequest) -> dict[str, Any]:
        return {"absent": workers.announce(request.gpus, forget=request.forget)}

    @app.delete("/v1/workers/{name}")
    def remove(name: str) -> dict[str, Any]:
        workers.remove(name)
        return {"id": name, "removed": True}

    return app


class AgentServer:
    """Serves ``app`` on a Unix socket that only root may use, in a thread of its own.

    Stopped, it may be started again.
    """

    def __init__(self, app: FastAPI, path: Path) -> None:
        self._app = app
        self._path = path
        self._serving: tuple[socket.socket, HttpServer] | None = None

    def start(self, timeout_s: float = 10.0) -> None:
        """Returns once it answers. Raises TimeoutError."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        server = HttpServer(self._app, listener, name="agent")
        self._serving = listener, server
        listener.listen(128)
        server.start(timeout_s)

    def stop(self) -> None:
        """No connection is left and none can be made."""
        if self._serving is None:
            return
        listener, server = self._serving
        self._serving = None
        server.stop(at_once=True)
        listener.close()
        self._path.unlink(missing_ok=True)
