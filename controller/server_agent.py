"""Client of the server agent, which starts, watches and removes workers: HTTP on a Unix socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from ringlight.controller.errors import ConflictError, UnavailableError
from ringlight.controller.web.client import http_client
from ringlight.fabric.text import cleaned

#: Additional time for the start of each worker, seconds.
WORKER_S = 1.0


class AgentClient:
    """Client of the agent at ``address`` (``unix:/path`` or ``http://host:port``). Any thread may call.

    Every call raises UnavailableError if the agent does not answer in time, and ConflictError with the
    agent's own text if it answers with an error.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._client = http_client(address, timeout_s=10.0)

    def close(self) -> None:
        self._client.close()

    def health(self, *, timeout_s: float = 2.0) -> Mapping[str, Any]:
        """Return the agent's status."""
        return dict(self._call("GET", "/v1/health", timeout_s=timeout_s))

    def start(
        self, workers: Sequence[Mapping[str, Any]], *, timeout_s: float = 120.0
    ) -> list[Any]:
        """Start all these workers or none. Return the started workers.

        Each is ``{"job", "rank", "gpu", "spec", "attempt", "checkpoint", "graph", "guest"}``. ``graph``:
        the SHA-256 of a workload that was uploaded before, or None. ``guest``: what runs next to
        the worker, its ``kind`` and ``settings``, or None.
        """
        patience_s = timeout_s + WORKER_S * len(workers)
        started = self._call(
            "POST", "/v1/workers/batch", json=list(workers), timeout_s=patience_s
        )
        return list(started)

    def start_spares(
        self, job: str, gpus: Sequence[str], *, timeout_s: float = 60.0
    ) -> None:
        """Start processes on the spares of a job, which wait to become its workers."""
        body = [{"job": job, "gpu": gpu} for gpu in gpus]
        self._call("POST", "/v1/spares", json=body, timeout_s=timeout_s)

    def halt(self, job: str, *, timeout_s: float = 60.0) -> None:
        """End all workers of a job, some of which stay to be its next ones."""
        self._call("POST", f"/v1/jobs/{job}/halt", timeout_s=timeout_s)

    def ends(self, known: int, wait_s: float, *, timeout_s: float = 5.0) -> int:
        """Return the number of workers that have ended, once it differs from ``known`` or after ``wait_s``
        seconds.
        """
        path = f"/v1/ends?known={known}&wait_s={wait_s}"
        return int(self._call("GET", path, timeout_s=wait_s + timeout_s)["ends"])

    def put_workload(
        self, digest: str, data: bytes, *, timeout_s: float = 30.0
    ) -> None:
        """Give the agent a packed workload for workers that it is to start."""
        self._call("PUT", f"/v1/workloads/{digest}", data=data, timeout_s=timeout_s)

    def release(
        self, ids: Sequence[str], start_s: float, *, timeout_s: float = 10.0
    ) -> None:
        """Let these workers start at ``start_s`` (CLOCK_MONOTONIC seconds)."""
        body = {"ids": list(ids), "at": start_s}
        self._call("POST", "/v1/workers/release", json=body, timeout_s=timeout_s)

    def workers(self, cursor: int, *, timeout_s: float = 5.0) -> Mapping[str, Any]:
        """Return ``{"cursor", "workers", "events", "lost_gpus"}``: all workers, and the events after
        ``cursor``.
        """
        return dict(
            self._call("GET", f"/v1/workers?cursor={cursor}", timeout_s=timeout_s)
        )

    def output(self, worker: str, *, timeout_s: float = 10.0) -> Mapping[str, str]:
        """Return ``{"stdout", "stderr"}`` of the command that a worker holds a NIC for."""
        return dict(
            self._call("GET", f"/v1/workers/{worker}/output", timeout_s=timeout_s)
        )

    def onic_counters(self, *, timeout_s: float = 5.0) -> Mapping[str, Any]:
        """Return the counters of the O-NICs and WSSs of an emulated fabric."""
        return dict(self._call("GET", "/v1/onics", timeout_s=timeout_s))

    def set_transmit(
        self, gpu: str, table: Mapping[str, Any], *, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Give a ring O-NIC its transmit table, ``{peer's ip: {"port", "wavelength"}}``.

        Return the table that it has now.
        """
        path = f"/v1/onics/{gpu}/transmit"
        return dict(self._call("PUT", path, json=dict(table), timeout_s=timeout_s))

    def set_lightpaths(
        self, tables: Mapping[str, Any], *, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Give O-NICs with standing light their lightpaths. Return the lightpaths that they have now, as read
        back.

        ``{gpu: {peer's ip: {"lit", "paths": [{"port", "wavelength"}]}}}``: the whole light of each GPU named.
        Data for a peer that is left out is dropped; data waits if ``lit`` is false.
        """
        return dict(
            self._call("PUT", "/v1/lightpaths", json=dict(tables), timeout_s=timeout_s)
        )

    def traffic(self, *, timeout_s: float = 5.0) -> Mapping[str, Any]:
        """Return ``{"t", "gpus": {gpu: {peer's ip: {"posted", "fresh", "resent", "held"}}}}``.

        ``t``: seconds of CLOCK_MONOTONIC. Counts are since the start of each GPU's worker. ``posted``: bytes
        that it has begun to send. ``fresh`` and ``resent``: bytes that have left as light for the first time,
        and again. ``held``: number of times that a packet was sent round in the dark.
        """
        return dict(self._call("GET", "/v1/traffic", timeout_s=timeout_s))

    def turns(
        self, known: Mapping[str, int], wait_s: float, *, timeout_s: float = 5.0
    ) -> Mapping[str, int]:
        """Return the number of stages (``workloads.following``) that the worker of each GPU has ended.

        Waits until it differs from ``known``, at most ``wait_s`` seconds, and ``timeout_s`` more for the
        answer.
        """
        body = {"known": dict(known), "wait_s": wait_s}
        return dict(
            self._call("POST", "/v1/turns", json=body, timeout_s=wait_s + timeout_s)
        )

    def choose_state(
        self, job: str, without: Sequence[int], *, timeout_s: float = 10.0
    ) -> int:
        """Return the iteration from which a job continues; 0 if no rank has a stored state.

        The states of the ranks in ``without`` are ignored.
        """
        path, body = f"/v1/checkpoints/{job}/resume", {"without": list(without)}
        return int(
            self._call("POST", path, json=body, timeout_s=timeout_s)["iteration"]
        )

    def remove_states(self, job: str, *, timeout_s: float = 10.0) -> None:
        """Remove the stored states of a job, if there are any."""
        self._call("DELETE", f"/v1/checkpoints/{job}", timeout_s=timeout_s)

    def announce(
        self, gpus: Sequence[str], *, forget: bool, timeout_s: float = 5.0
    ) -> Mapping[str, Any]:
        """Make the devices at these GPUs' NICs announce themselves. Return ``{"absent"}``: GPUs with nothing
        there.

        ``forget``: first, switches of other controllers delete their flows that name these GPUs, if so
        configured.
        """
        body = {"gpus": list(gpus), "forget": forget}
        return dict(
            self._call("POST", "/v1/announcements", json=body, timeout_s=timeout_s)
        )

    def foreign(self, *, timeout_s: float = 2.0) -> Mapping[str, Any]:
        """Return ``{"programs", "controllers"}``, each in its present state.

        ``programs``: the processes of the lab's programs by name. ``controllers``: other controllers by
        packet switch.
        """
        return dict(self._call("GET", "/v1/others", timeout_s=timeout_s))

    def faults(self, *, timeout_s: float = 5.0) -> list[Any]:
        """Return the faults that were requested since the lab came up, with their present state."""
        return list(self._call("GET", "/v1/faults", timeout_s=timeout_s)["faults"])

    def ask_fault(
        self, fault: Mapping[str, Any], *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Request a fault or its end, ``{"do", "target", "back_after_s"}``.

        Return the fault in its present state.
        """
        return dict(
            self._call("POST", "/v1/faults", json=dict(fault), timeout_s=timeout_s)
        )

    def hosts(self, *, fill: bool = False, timeout_s: float = 30.0) -> list[Any]:
        """Return the network at each GPU's NIC. ``fill``: first put an idle host at each NIC without one."""
        method = "POST" if fill else "GET"
        return list(self._call(method, "/v1/hosts", timeout_s=timeout_s))

    def remove(self, worker: str, *, timeout_s: float = 30.0) -> None:
        """Kill and remove a worker; one that is gone already is no error."""
        self._call(
            "DELETE", f"/v1/workers/{worker}", timeout_s=timeout_s, missing_ok=True
        )

    def _call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        json: Any = None,
        data: bytes | None = None,
        missing_ok: bool = False,
    ) -> Any:
        try:
            answer = self._client.request(
                method, path, json=json, content=data, timeout=timeout_s
            )
        except (httpx.HTTPError, RuntimeError) as error:
            # httpx raises RuntimeError on a client that was closed meanwhile.
            raise UnavailableError(
                f"the server agent at {self.address} does not answer: {error}"
            ) from error
        if missing_ok and answer.status_code == httpx.codes.NOT_FOUND:
            return {}
        if answer.is_error:
            raise ConflictError(_detail(answer))
        try:
            return cleaned(answer.json()) if answer.content else {}
        except ValueError as error:
            raise UnavailableError(
                f"the server agent at {self.address} said no JSON: {error}"
            ) from error


def _detail(answer: httpx.Response) -> str:
    """Return the agent's error text as one line."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = answer.text[:200] or f"HTTP status {answer.status_code}"
    return " ".join(str(detail).split())


def required_agent(agent: AgentClient | None) -> AgentClient:
    """Return the agent. Raises UnavailableError if the inventory names none."""
    if agent is None:
        raise UnavailableError("the inventory names no server agent")
    return agent
