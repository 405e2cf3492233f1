"""Connection of a testbed that is one part of a lab to the other parts."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from ringlight.fabric.topology import Fabric
from ringlight.testbed.deaths import FILE, Death, DeathLog, Deaths
from ringlight.testbed.emulation.agent.http import STATES
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker_requests import Name
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.parts.door import Door
from ringlight.testbed.emulation.parts.elsewhere import Elsewhere
from ringlight.testbed.emulation.parts.front import ANSWER_S, OtherPart, WorkersOfAll
from ringlight.testbed.emulation.parts.pulse import END_S, LEASE_S, Pulse
from ringlight.testbed.lab import Lab
from ringlight.testbed.load import ProcessorLoad
from ringlight.testbed.parts import LOG, LOG_BYTES, Parts, Place, log_of_part, tail

log = logging.getLogger(__name__)

#: Names of what doors lead to, besides optical switches' own.
AGENT, OPENFLOW = "agent", "openflow"
#: What a switch's entry has for the first part in place of a file with a password.
_PASSWORD = "password"
#: Between two questions for what has ended on other hosts, seconds.
DEATHS_S = 2.0


class RunRequest(BaseModel):
    """A command for a network namespace of a host, None being the host's own."""

    namespace: Annotated[str, Field(max_length=300)] | None = None
    words: Annotated[list[str], Field(min_length=1, max_length=200)]
    timeout_s: Annotated[float, Field(gt=0, le=4000)]


def ran(request: RunRequest) -> dict[str, Any]:
    """Run a command here. Return the last bytes of its output and its exit code. Raises AgentError."""
    where = [] if request.namespace is None else ["nsenter", f"--net={request.namespace}", "--"]
    try:
        done = subprocess.run(
            [*where, *request.words], capture_output=True, stdin=subprocess.DEVNULL, timeout=request.timeout_s
        )
    except OSError as error:
        raise AgentError(409, f"{request.words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise AgentError(504, f"{request.words[0]}: not done within {request.timeout_s:g} s") from None
    out, err = (output[-LOG_BYTES:].decode(errors="replace") for output in (done.stdout, done.stderr))
    return {"stdout": out, "stderr": err, "code": done.returncode}


class JoinError(RuntimeError):
    """Parts of a lab do not come together; one line naming the host."""


class Joint:
    """The door of a part, and of the first part the pulses of all others.

    ``stop``: called when the first part has this one end. ``deaths``: where a host's loss is noted.
    """

    def __init__(self, lab: Lab, parts: Parts, state: Path, stop: Callable[[], None], deaths: Deaths) -> None:
        self._load = ProcessorLoad(lab.id)
        # The other parts are asked many times a second.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._parts, self._state, self._deaths = parts, state, deaths
        self._door = Door(parts, {AGENT: state / "agent.sock"}, stop)
        other_places = [place for number, place in enumerate(parts.places) if number != parts.own]
        self._pulses = [Pulse(parts, place, self._lose) for place in other_places] if self.is_first else []
        self._others: list[OtherPart] = []
        self._closing = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="deaths", daemon=True)

    @property
    def is_first(self) -> bool:
        """Return whether this part has the controller."""
        return self._parts.own == 0

    def open(self, controller: tuple[str, int]) -> tuple[str, int]:
        """Open the door. Return the address at which this part's packet switches find the controller. Raises
        JoinError."""
        own = self._parts.places[self._parts.own]
        try:
            self._door.open()
            if not self.is_first:
                return self._door.to_tcp(self._parts.places[0], OPENFLOW)
            self._door.servers = {OPENFLOW: controller}
            for number, pulse in enumerate(self._pulses, 1):
                self._door.to_unix(self._agent(number), pulse.place, AGENT)
        except (OSError, TimeoutError) as error:
            raise JoinError(f"host {own.host}: {own.ip}, TCP port {own.door}: {error}") from None
        return controller

    def _agent(self, number: int) -> Path:
        return self._state / f"agent-{number}.sock"

    def workers(self, fabric: Fabric, own: Workers) -> WorkersOfAll:
        """Return the workers of all parts, for the first part's server agent. From now on the other parts are
        polled."""
        for pulse in self._pulses:
            pulse.start()
        self._others = [OtherPart(pulse, self._agent(n)) for n, pulse in enumerate(self._pulses, 1)]
        self._follower.start()
        return WorkersOfAll(fabric, own, self._others)

    def elsewhere(self, fabric: Fabric) -> Elsewhere | None:
        """Return the fault services of the other parts in the first part, None in the others."""
        return Elsewhere(fabric, self._parts, self._others) if self.is_first else None

    def tell(self, inventory: Mapping[str, Any]) -> None:
        """Open this part's optical switches to the first part."""
        if self.is_first:
            return
        for name, entry in inventory["optical_switches"].items():
            for key in ("address", "rest"):
                if key in entry:
                    host, _, port = entry[key].rpartition(":")
                    self._door.servers = {**self._door.servers, f"{key}-{name}": (host, int(port))}

    def with_others(
        self, inventory: dict[str, Any], deadline: float, go_on: Callable[[], None]
    ) -> dict[str, Any]:
        """Wait in the first part until the other parts are up. Return the inventory with the switches of the
        other parts. Raises JoinError."""
        for other in self._others:
            theirs = self._inventory_of(other, deadline, go_on)
            for name, entry in theirs["optical_switches"].items():
                for key in ("address", "rest"):
                    if key in entry:
                        host, port = self._door.to_tcp(other.pulse.place, f"{key}-{name}")
                        entry[key] = f"{host}:{port}"
                if (password := entry.pop(_PASSWORD, None)) is not None:
                    entry["password_file"] = str(self._secret(f"{name}.password", password))
            where = {"host": other.host, "lab": theirs["lab"]}
            for part in ("packet_switches", "optical_switches"):
                named = {name: entry | where for name, entry in theirs[part].items()}
                inventory[part] = {**inventory[part], **named}
        if self._others:
            inventory["hosts"] = [place.host for place in self._parts.places]
        return inventory

    def _secret(self, name: str, text: str) -> Path:
        """A file that only root reads; it goes with the lab's state."""
        path = self._state / name
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _inventory_of(self, other: OtherPart, deadline: float, go_on: Callable[[], None]) -> dict[str, Any]:
        why = "it was not up in time"
        while time.monotonic() < deadline:
            go_on()
            if other.pulse.lost:
                own = self._parts.places[self._parts.own].host
                raise JoinError(f"{own} to {other.host}: no answer any more while the lab came up")
            if other.pulse.answered.is_set():
                try:
                    theirs: dict[str, Any] = other.ask("GET", "/v1/inventory")
                    return theirs
                except AgentError as error:
                    why = str(error)
            time.sleep(0.05)
        raise JoinError(f"host {other.host}: {why}")

    def clocks(self) -> dict[str, dict[str, float]]:
        """Return by host how much later its clock is than this host's (``offset_s``), and how wrong that may
        be (``error_s``), seconds."""
        return {
            pulse.place.host: {"offset_s": pulse.offset_s, "error_s": pulse.error_s} for pulse in self._pulses
        }

    def _loads(self) -> dict[str, dict[str, float]]:
        """Load of the processors of each other host that answers, since the last call."""
        loads = {}
        for other in self._others:
            with suppress(AgentError):
                loads[other.host] = other.ask("GET", "/v1/load", timeout_s=2.0)
        return loads

    def _lose(self, place: Place) -> None:
        self._deaths.ended("host", place.host, "it does not answer any more", asked=False)

    def routes(self, inventory: Callable[[], Mapping[str, Any]], workers: Workers) -> APIRouter:
        """Return the additional routes of a part's server agent. ``workers``: those of the part."""
        router = APIRouter()

        @router.get(STATES + "{job}/{iteration}")
        def state(job: Annotated[str, Name], iteration: int) -> Response:
            return Response(workers.states.content(job, iteration), media_type="application/octet-stream")

        @router.put(STATES + "{job}/{iteration}")
        async def take(job: Annotated[str, Name], iteration: int, request: Request) -> dict[str, Any]:
            workers.states.take(job, iteration, await request.body())
            return {"job": job, "iteration": iteration}

        @router.get("/v1/inventory")
        def get_inventory() -> JSONResponse:
            document = inventory()
            if not document:
                return JSONResponse({"detail": "it is being built"}, status_code=503)
            return JSONResponse(
                {**document, "optical_switches": _with_passwords(document["optical_switches"])}
            )

        @router.get("/v1/deaths")
        def deaths(known: int = 0) -> list[dict[str, Any]]:
            return [asdict(death) for death in DeathLog(self._state / FILE).read()[known:]]

        @router.post("/v1/run")
        def run(request: RunRequest) -> dict[str, Any]:
            return ran(request)

        @router.post("/v1/hosts/{host}/run")
        def run_elsewhere(host: str, request: RunRequest) -> Any:
            other = next((other for other in self._others if other.host == host), None)
            if other is None:
                raise AgentError(404, f"there is no other host {host}")
            return other.ask("POST", "/v1/run", request.model_dump(), timeout_s=request.timeout_s + ANSWER_S)

        @router.get("/v1/log")
        def get_log() -> Response:
            return Response(tail(self._state / LOG), media_type="text/plain")

        @router.get("/v1/load")
        def load() -> dict[str, float]:
            return asdict(self._load.shares())

        @router.get("/v1/hosts/load")
        def loads() -> dict[str, dict[str, float]]:
            return self._loads()

        @router.get("/v1/hosts/clocks")
        def clocks() -> dict[str, dict[str, float]]:
            return self.clocks()

        return router

    def is_forgotten(self) -> bool:
        """Return whether the first part has not been heard from for too long."""
        return not self.is_first and time.monotonic() - self._door.heard_s > LEASE_S

    def end_others(self) -> None:
        """In the first part: have the others end, without waiting for it. What they have said is kept here,
        as nobody may be left to bring it."""
        for other in self._others:
            with suppress(AgentError, OSError):
                (self._state / log_of_part(other.host)).write_bytes(other.fetch("/v1/log", timeout_s=3.0))
        for pulse in self._pulses:
            pulse.end()

    def _follow(self) -> None:
        """Note what ends on other hosts, until the door closes."""
        while not self._closing.wait(DEATHS_S):
            for other in self._others:
                # It is asked again.
                with suppress(AgentError):
                    take_deaths(other, self._deaths)

    def close(self) -> None:
        """Wait for the others' end, close the door, remove what it made."""
        self._closing.set()
        deadline = time.monotonic() + END_S
        if self._follower.is_alive():
            self._follower.join(END_S)
        for number, pulse in enumerate(self._pulses, 1):
            if not pulse.await_end(deadline - time.monotonic()):
                log.warning("host %s: its part was not seen to end", pulse.place.host)
            self._agent(number).unlink(missing_ok=True)
        self._door.close()


def _with_passwords(switches: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Entries of optical switches as another host can use them. Raises OSError."""
    return {
        name: {**entry, _PASSWORD: Path(entry["password_file"]).read_text(encoding="utf-8")}
        if "password_file" in entry
        else entry
        for name, entry in switches.items()
    }


def take_deaths(other: OtherPart, noted: Deaths) -> None:
    """Note what has ended, or is back, at another part since the last time. Raises AgentError."""
    for death in other.ask("GET", f"/v1/deaths?known={other.deaths}"):
        other.deaths += 1
        noted.add(Death(**other.here(death)))
