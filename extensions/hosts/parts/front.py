"""Workers of all parts of a lab, for the server agent of the first part.

:class:`WorkersOfAll` has the methods of :class:`Workers` and sends requests to the server agents of the other
parts, over their doors. Times in their answers are of their hosts' clocks and are converted to this host's
clock. If a host is lost, its workers have ended and its GPUs are lost, so that jobs fail or continue as after
any loss.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx

from ringlight.controller.web.client import http_client
from ringlight.extensions.hosts.parts.pulse import Pulse
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.http import STATES
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker_requests import (
    SpareRequest,
    WorkerRequest,
)
from ringlight.testbed.emulation.agent.workers import Workers

Answer = TypeVar("Answer")

#: Longest waits for an answer, seconds: usual, and where containers are started or removed.
ANSWER_S, START_S = 10.0, 120.0
#: A part is asked again after so long whether workers have ended, seconds.
ENDS_S = 3.0
#: What events have of a clock, beside ``t``.
_TIMES = ("t", "at", "begin", "compute_start", "compute_end", "allreduce_end")


class OtherPart:
    """The server agent of another part. Methods raise AgentError, with the host's name."""

    def __init__(self, pulse: Pulse, agent: Path) -> None:
        self.pulse, self.host, self.nodes = (
            pulse,
            pulse.place.host,
            frozenset(pulse.place.nodes),
        )
        self._client = http_client(f"unix:{agent}", timeout_s=ANSWER_S)
        #: Workers and events as it told them last.
        self.cursor = 0
        self.workers: list[dict[str, Any]] = []
        self.ends = 0
        #: How many ends and returns of its processes are known.
        self.deaths = 0

    @property
    def elsewhere(self) -> dict[str, str]:
        """Return what the inventory tells of the machine of a node there."""
        return {"name": f"host {self.host}", "run": f"/v1/hosts/{self.host}/run"}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Any:
        """Request something from the part's server agent. Return its JSON reply. Raises AgentError."""
        if self.pulse.lost:
            raise AgentError(503, f"host {self.host} is lost")
        try:
            answer = self._client.request(
                method, path, json=body, content=data, timeout=timeout_s
            )
            document = answer.json()
        except (httpx.HTTPError, RuntimeError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise AgentError(
                503, f"the part on host {self.host} does not answer: {why}"
            ) from None
        if answer.is_error:
            raise AgentError(
                answer.status_code,
                f"host {self.host}: {document.get('detail', document)}",
            )
        return document

    def fetch(self, path: str, timeout_s: float = 60.0) -> bytes:
        """Return the content of a path of the part's server agent, as bytes. Raises AgentError."""
        if self.pulse.lost:
            raise AgentError(503, f"host {self.host} is lost")
        try:
            answer = self._client.get(path, timeout=timeout_s)
        except (httpx.HTTPError, RuntimeError) as error:
            raise AgentError(
                503, f"the part on host {self.host} does not answer: {error}"
            ) from None
        if answer.is_error:
            raise AgentError(
                answer.status_code, f"host {self.host}: {answer.text[:200]}"
            )
        return answer.content

    def here(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event of the part with times of this host's clock."""
        later_s = self.pulse.offset_s
        converted = event | {
            key: event[key] - later_s for key in _TIMES if event.get(key) is not None
        }
        if event.get("stalls"):
            converted["stalls"] = [
                [moment - later_s for moment in stall] for stall in event["stalls"]
            ]
        if event.get("beacon_gaps"):
            gaps = event["beacon_gaps"]
            converted["beacon_gaps"] = [
                gap | {key: gap[key] - later_s for key in ("t_start", "t_end")}
                for gap in gaps
            ]
        return converted

    def close(self) -> None:
        self._client.close()


class WorkersOfAll:
    """Workers of all parts. Safe from any thread; methods raise AgentError as those of ``Workers`` do."""

    def __init__(
        self, fabric: Fabric, own: Workers, other_parts: Sequence[OtherPart]
    ) -> None:
        self._fabric, self._own, self._others = fabric, own, tuple(other_parts)
        self.workloads = own.workloads
        self._part_of = {name: other for other in other_parts for name in other.nodes}
        self._worker_at: dict[str, OtherPart | None] = {}
        self._events: list[dict[str, Any]] = []
        self._own_cursor = 0
        self._reporting, self._ended_one = threading.Lock(), threading.Condition()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(4 * (1 + len(self._others)), "parts")
        self._own_ends = 0
        watched: list[Callable[[], None]] = [self._watch_own]
        watched += [lambda other=other: self._watch(other) for other in self._others]  # type: ignore[misc]
        self._watchers = [
            threading.Thread(target=run, name="ends", daemon=True) for run in watched
        ]
        for thread in self._watchers:
            thread.start()

    # -- starting

    def start_all(self, batch: Iterable[WorkerRequest]) -> list[dict[str, Any]]:
        """Start workers on all hosts at the same time, all or none. Return the id, GPU and state of each.
        Raises AgentError."""
        chosen = list(batch)
        if not chosen:
            raise AgentError(422, "no workers are named")

        def start(
            part: OtherPart | None, mine: list[WorkerRequest]
        ) -> list[dict[str, Any]]:
            if part is None:
                return self._own.start_all(mine)
            body = [request.model_dump() for request in mine]
            workers: list[dict[str, Any]] = part.ask(
                "POST", "/v1/workers/batch", body, timeout_s=START_S
            )
            return workers

        lots = self._by_part(chosen)
        under_way = [
            (part, self._pool.submit(start, part, mine)) for part, mine in lots.items()
        ]
        started: list[dict[str, Any]] = []
        failure: AgentError | None = None
        for part, future in under_way:
            try:
                workers = future.result()
            except AgentError as error:
                failure = failure or error
                continue
            self._worker_at |= {worker["id"]: part for worker in workers}
            started += workers
        if failure is not None:
            self._give_up([worker["id"] for worker in started])
            raise failure
        order = {request.worker: number for number, request in enumerate(chosen)}
        return sorted(started, key=lambda worker: order[worker["id"]])

    def _give_up(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self.remove(name)
            except AgentError:
                # Its host is just being lost, or it has ended.
                continue

    def _by_part(
        self, requests: Iterable[WorkerRequest]
    ) -> dict[OtherPart | None, list[WorkerRequest]]:
        lots: dict[OtherPart | None, list[WorkerRequest]] = {}
        for request in requests:
            lots.setdefault(self._part_of.get(request.gpu), []).append(request)
        return lots

    def start_spares(self, spares: Iterable[SpareRequest]) -> list[dict[str, Any]]:
        started: list[dict[str, Any]] = []
        for request in spares:
            part = self._part_of.get(request.gpu)
            if part is None:
                workers = self._own.start_spares([request])
            else:
                workers = part.ask(
                    "POST", "/v1/spares", [request.model_dump()], timeout_s=START_S
                )
            self._worker_at |= {worker["id"]: part for worker in workers}
            started += workers
        return started

    def put_workload(self, digest: str, part: Path, actual_digest: str) -> None:
        data = part.read_bytes()
        self._own.put_workload(digest, part, actual_digest)
        self._everywhere(
            lambda other: other.ask(
                "PUT", f"/v1/workloads/{digest}", data=data, timeout_s=60.0
            )
        )

    # -- watching

    def report(self, cursor: int) -> dict[str, Any]:
        """Return the report of all parts in the form of one machine's, with the events in the order in which
        this part received them."""
        with self._reporting:
            futures = [self._pool.submit(self._heard, other) for other in self._others]
            own = self._own.report(self._own_cursor)
            self._own_cursor = own["cursor"]
            self._events += own["events"]
            for future in futures:
                self._events += future.result()
            lost = [
                gpu
                for other in self._others
                if other.pulse.lost
                for gpu in self._gpus(other)
            ]
            return {
                "cursor": len(self._events),
                "workers": [
                    *own["workers"],
                    *(w for other in self._others for w in other.workers),
                ],
                "events": self._events[cursor:],
                "lost_gpus": sorted({*own["lost_gpus"], *lost}),
            }

    def _gpus(self, other: OtherPart) -> list[str]:
        return sorted(name for name in other.nodes if name in self._fabric.gpus)

    def _heard(self, other: OtherPart) -> list[dict[str, Any]]:
        """New events of another part. While it does not answer, there are none; once it is lost, its workers
        have ended."""
        if other.pulse.lost:
            return self._lose(other)
        try:
            report = other.ask("GET", f"/v1/workers?cursor={other.cursor}")
        except AgentError:
            return []
        other.cursor, other.workers = report["cursor"], report["workers"]
        return [other.here(event) for event in report["events"]]

    def _lose(self, other: OtherPart) -> list[dict[str, Any]]:
        events = []
        how = {
            "exit_code": None,
            "signal": None,
            "oom": False,
            "error": f"host {other.host} is lost",
        }
        for worker in other.workers:
            if worker["state"] in ("starting", "running"):
                worker |= {"state": "exited", "stderr_tail": "", **how}
                where = {key: worker[key] for key in ("job", "rank")}
                events.append(
                    {
                        "t": time.monotonic(),
                        "event": "exited",
                        "worker": worker["id"],
                        **where,
                        **how,
                    }
                )
        return events

    def ends(self, known: int, wait_s: float) -> int:
        with self._ended_one:
            self._ended_one.wait_for(
                lambda: self._count() != known or self._closed.is_set(), wait_s
            )
            return self._count()

    def _count(self) -> int:
        return self._own_ends + sum(
            other.ends + other.pulse.lost for other in self._others
        )

    def _watch_own(self) -> None:
        while not self._closed.is_set():
            ends = self._own.ends(self._own_ends, ENDS_S)
            with self._ended_one:
                self._own_ends = ends
                self._ended_one.notify_all()

    def _watch(self, other: OtherPart) -> None:
        while not self._closed.is_set():
            try:
                path = f"/v1/ends?known={other.ends}&wait_s={ENDS_S}"
                ends = int(other.ask("GET", path, timeout_s=ENDS_S + ANSWER_S)["ends"])
            except AgentError:
                if self._closed.wait(0.5):
                    return
                ends = other.ends
            with self._ended_one:
                other.ends = ends
                self._ended_one.notify_all()

    def output(self, name: str) -> dict[str, str]:
        part = self._worker_at.get(name)
        if part is None:
            return self._own.output(name)
        streams: dict[str, str] = part.ask("GET", f"/v1/workers/{name}/output")
        return streams

    def hosts(self, *, fill: bool) -> list[dict[str, Any]]:
        """Return an entry for each GPU with the host at its NIC. The path of a network namespace on another
        host is valid there only."""
        entries = {entry["gpu"]: entry for entry in self._own.hosts(fill=fill)}
        for other in self._others:
            for entry in other.ask(
                "POST" if fill else "GET", "/v1/hosts", timeout_s=30.0
            ):
                if entry["gpu"] in other.nodes:
                    entries[entry["gpu"]] = entry | {"elsewhere": other.elsewhere}
        return list(entries.values())

    def announce(self, gpus: Collection[str], *, forget: bool) -> list[str]:
        mine = [gpu for gpu in gpus if gpu not in self._part_of]
        absent = self._own.announce(mine, forget=forget) if mine else []
        for other in self._others:
            its = [gpu for gpu in gpus if gpu in other.nodes]
            if its:
                absent += other.ask(
                    "POST", "/v1/announcements", {"gpus": its, "forget": forget}
                )["absent"]
        return absent

    # -- the rest of a worker's life

    def release(self, ids: Iterable[str], start_s: float) -> None:
        """At one moment on all hosts, by their clocks."""
        lots: dict[OtherPart | None, list[str]] = {}
        for name in ids:
            lots.setdefault(self._worker_at.get(name), []).append(name)

        def release(part: OtherPart | None, mine: list[str]) -> None:
            if part is None:
                self._own.release(mine, start_s)
            else:
                part.ask(
                    "POST",
                    "/v1/workers/release",
                    {"ids": mine, "at": start_s + part.pulse.offset_s},
                )

        self._all(
            [
                lambda part=part, mine=mine: release(part, mine)  # type: ignore[misc]
                for part, mine in lots.items()
            ]
        )

    def remove(self, name: str) -> None:
        part = self._worker_at.pop(name, None)
        if part is None:
            self._own.remove(name)
        elif not part.pulse.lost:
            part.ask("DELETE", f"/v1/workers/{name}", timeout_s=30.0)
        else:
            part.workers = [worker for worker in part.workers if worker["id"] != name]

    def halt(self, job: str) -> None:
        """Nothing is left to halt of a lost host's workers."""
        self._own.halt(job)
        self._everywhere(
            lambda other: other.ask("POST", f"/v1/jobs/{job}/halt", timeout_s=60.0)
        )

    def choose_state(self, job: str, without: Collection[int]) -> int:
        """Choose the newest state of any host and copy it to all hosts. Return its iteration, 0 if there is
        none. States of a lost host are lost."""
        body = {"without": list(without)}
        reachable = [other for other in self._others if not other.pulse.lost]
        path = f"/v1/checkpoints/{job}/resume"
        replies = dict(
            zip(
                reachable,
                self._everywhere(lambda o: o.ask("POST", path, body)),
                strict=True,
            )
        )
        iterations: dict[OtherPart | None, int] = {
            None: self._own.choose_state(job, without)
        }
        iterations |= {
            other: int(reply["iteration"]) for other, reply in replies.items()
        }
        newest = max(iterations.values())
        if newest == 0:
            return 0
        path = f"{STATES}{job}/{newest}"
        owner = next(
            part for part, iteration in iterations.items() if iteration == newest
        )
        data = (
            self._own.states.content(job, newest)
            if owner is None
            else owner.fetch(path)
        )
        if owner is not None:
            self._own.states.take(job, newest, data)
        self._everywhere(
            lambda o: o is owner or o.ask("PUT", path, data=data, timeout_s=60.0)
        )
        return newest

    def remove_states(self, job: str) -> None:
        self._own.remove_states(job)
        self._everywhere(lambda other: other.ask("DELETE", f"/v1/checkpoints/{job}"))

    def _everywhere(self, ask: Callable[[OtherPart], Any]) -> list[Any]:
        """Ask all parts that are not lost, at once."""
        return self._all(
            [
                lambda other=other: ask(other)  # type: ignore[misc]
                for other in self._others
                if not other.pulse.lost
            ]
        )

    def _all(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Make all calls, and raise the first failure, if any, once all are over."""
        futures = [self._pool.submit(call) for call in calls]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def close(self) -> None:
        """The other parts end by themselves, and are not asked."""
        self._closed.set()
        with self._ended_one:
            self._ended_one.notify_all()
        for thread in self._watchers:
            thread.join(2 * ENDS_S)
        self._pool.shutdown(cancel_futures=True)
        for other in self._others:
            other.close()
