"""Connection of a testbed that is one part of a lab to the other parts."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from pyroute2.iproute import IPRoute

from ringlight.extensions.hosts.parts.door import Door
from ringlight.extensions.hosts.parts.elsewhere import Elsewhere
from ringlight.extensions.hosts.parts.front import ANSWER_S, OtherPart, WorkersOfAll
from ringlight.extensions.hosts.parts.plan import (
    LOG,
    LOG_BYTES,
    Parts,
    Place,
    log_of_part,
    tail,
)
from ringlight.extensions.hosts.parts.pulse import END_S, LEASE_S, Pulse
from ringlight.extensions.hosts.parts.tunnel import create_vxlan
from ringlight.fabric.parts import Port
from ringlight.testbed.deaths import FILE, Death, DeathLog, Deaths
from ringlight.testbed.devices import Site
from ringlight.testbed.emulation.agent.http import STATES, LabWorkers
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker_requests import Name
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.fault_targets import FaultRequest, FaultTarget
from ringlight.testbed.emulation.shared_lab import Piece, SharedLab
from ringlight.testbed.load import ProcessorLoad

log = logging.getLogger(__name__)

#: Names of what doors lead to, besides optical switches' own.
AGENT, OPENFLOW = "agent", "openflow"
#: What a switch's entry has for the first part in place of a file with a password.
_PASSWORD = "password"
#: Between two questions for what has ended on other hosts, seconds.
DEATHS_S = 2.0
#: Between two looks whether the first part has been heard from, seconds.
FORGOTTEN_S = 1.0


class RunRequest(BaseModel):
    """A command for a network namespace of a host, None being the host's own."""

    namespace: Annotated[str, Field(max_length=300)] | None = None
    words: Annotated[list[str], Field(min_length=1, max_length=200)]
    timeout_s: Annotated[float, Field(gt=0, le=4000)]


def ran(request: RunRequest) -> dict[str, Any]:
    """Run a command here. Return the last bytes of its output and its exit code. Raises AgentError."""
    where = (
        []
        if request.namespace is None
        else ["nsenter", f"--net={request.namespace}", "--"]
    )
    try:
        done = subprocess.run(
            [*where, *request.words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=request.timeout_s,
        )
    except OSError as error:
        raise AgentError(409, f"{request.words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise AgentError(
            504, f"{request.words[0]}: not done within {request.timeout_s:g} s"
        ) from None
    out, err = (
        output[-LOG_BYTES:].decode(errors="replace")
        for output in (done.stdout, done.stderr)
    )
    return {"stdout": out, "stderr": err, "code": done.returncode}


@dataclass(frozen=True)
class _Opened:
    """Objects of a part from its beginning on. ``stop``: has its testbed end."""

    site: Site
    door: Door
    deaths: Deaths
    stop: Callable[[], None]
    load: ProcessorLoad


class JoinError(RuntimeError):
    """Parts of a lab do not come together; one line naming the host."""


class Joint(SharedLab):
    """A part of a lab over several hosts: its door, and of the first part the pulses of all others."""

    def __init__(self, parts: Parts) -> None:
        # The other parts are asked many times a second.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._parts = parts
        self.open_ends, self.mtu_bytes = frozenset(parts.tunnels), parts.mtu_bytes
        self._opened: _Opened | None = None
        self._pulses: list[Pulse] = []
        self._others: list[OtherPart] = []
        self._elsewhere: Elsewhere | None = None
        self._closing = threading.Event()
        work = self._follow if self.is_first else self._await_forgotten
        self._follower = threading.Thread(target=work, name="parts", daemon=True)

    @property
    def is_first(self) -> bool:
        """Return whether this part has the controller."""
        return self._parts.own == 0

    def is_here(self, node: str) -> bool:
        return node in self._parts.here

    def end_link(
        self,
        root: IPRoute,
        port: Port,
        name: str,
        *,
        group: int,
        namespace: int | None,
        mac: str | None,
    ) -> None:
        create_vxlan(
            root,
            name,
            self._parts.tunnels[port],
            group=group,
            namespace=namespace,
            mac=mac,
        )

    @property
    def _open(self) -> _Opened:
        assert self._opened is not None
        return self._opened

    @property
    def _state(self) -> Path:
        return self._open.site.state

    @property
    def _door(self) -> Door:
        return self._open.door

    def open(
        self,
        site: Site,
        controller: ControllerAddress,
        deaths: Deaths,
        stop: Callable[[], None],
    ) -> ControllerAddress:
        """Open the door. Return the address at which this part's packet switches find the controller.

        A host's loss is noted in ``deaths``; ``stop`` is called when the first part has this one end, or has
        not been heard from for too long. Raises JoinError.
        """
        parts = self._parts
        door = Door(parts, {AGENT: site.state / "agent.sock"}, stop)
        self._opened = _Opened(site, door, deaths, stop, ProcessorLoad(site.lab.id))
        own = parts.places[parts.own]
        try:
            door.open()
            if not self.is_first:
                self._follower.start()
                return ControllerAddress(*door.to_tcp(parts.places[0], OPENFLOW))
            door.servers = {OPENFLOW: (controller.host, controller.port)}
            self._pulses = [
                Pulse(parts, place, self._lose) for place in parts.places[1:]
            ]
            for number, pulse in enumerate(self._pulses, 1):
                door.to_unix(self._agent(number), pulse.place, AGENT)
        except (OSError, TimeoutError) as error:
            raise JoinError(
                f"host {own.host}: {own.ip}, TCP port {own.door}: {error}"
            ) from None
        return controller

    def _agent(self, number: int) -> Path:
        return self._state / f"agent-{number}.sock"

    def workers(self, own: Workers) -> LabWorkers:
        """Return the workers of all parts in the first part, and those of this part in the others.

        From now on the first part asks the others again and again.
        """
        if not self.is_first:
            return own
        fabric = self._open.site.fabric
        assert fabric is not None
        for pulse in self._pulses:
            pulse.start()
        self._others = [
            OtherPart(pulse, self._agent(n)) for n, pulse in enumerate(self._pulses, 1)
        ]
        self._elsewhere = Elsewhere(fabric, self._parts, self._others)
        self._follower.start()
        return WorkersOfAll(fabric, own, self._others)

    def pieces(
        self, target: FaultTarget, request: FaultRequest
    ) -> tuple[bool, Sequence[Piece]]:
        """Return whether a fault concerns this part, and of the first part what it is at the others."""
        return (
            (True, ())
            if self._elsewhere is None
            else self._elsewhere.pieces(target, request)
        )

    def counters(self) -> list[Mapping[str, list[Mapping[str, Any]]]]:
        return [] if self._elsewhere is None else self._elsewhere.counters()

    def join(
        self, inventory: dict[str, Any], deadline_s: float, go_on: Callable[[], None]
    ) -> dict[str, Any]:
        """Return the inventory, in the first part with the switches of the others, once they are up.

        The others open their optical switches to the first part. Raises JoinError.
        """
        if self.is_first:
            return self._with_others(inventory, deadline_s, go_on)
        self._tell(inventory)
        return inventory

    def _tell(self, inventory: Mapping[str, Any]) -> None:
        """Open this part's optical switches to the first part."""
        for name, entry in inventory["optical_switches"].items():
            for key in ("address", "rest"):
                if key in entry:
                    host, _, port = entry[key].rpartition(":")
                    self._door.servers = {
                        **self._door.servers,
                        f"{key}-{name}": (host, int(port)),
                    }

    def _with_others(
        self, inventory: dict[str, Any], deadline: float, go_on: Callable[[], None]
    ) -> dict[str, Any]:
        """Wait until the other parts are up. Return the inventory with their switches. Raises JoinError."""
        for other in self._others:
            theirs = self._inventory_of(other, deadline, go_on)
            for name, entry in theirs["optical_switches"].items():
                for key in ("address", "rest"):
                    if key in entry:
                        host, port = self._door.to_tcp(
                            other.pulse.place, f"{key}-{name}"
                        )
                        entry[key] = f"{host}:{port}"
                if (password := entry.pop(_PASSWORD, None)) is not None:
                    entry["password_file"] = str(
                        self._secret(f"{name}.password", password)
                    )
            where = {"elsewhere": other.elsewhere, "lab": theirs["lab"]}
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
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            file.write(text)
        return path

    def _inventory_of(
        self, other: OtherPart, deadline: float, go_on: Callable[[], None]
    ) -> dict[str, Any]:
        why = "it was not up in time"
        while time.monotonic() < deadline:
            go_on()
            if other.pulse.lost:
                own = self._parts.places[self._parts.own].host
                raise JoinError(
                    f"{own} to {other.host}: no answer any more while the lab came up"
                )
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
            pulse.place.host: {"offset_s": pulse.offset_s, "error_s": pulse.error_s}
            for pulse in self._pulses
        }

    def _loads(self) -> dict[str, dict[str, float]]:
        """Load of the processors of each other host that answers, since the last call."""
        loads = {}
        for other in self._others:
            with suppress(AgentError):
                loads[other.host] = other.ask("GET", "/v1/load", timeout_s=2.0)
        return loads

    def _lose(self, place: Place) -> None:
        self._open.deaths.ended(
            "host", place.host, "it does not answer any more", asked=False
        )

    def routers(
        self, own: Workers, inventory: Callable[[], Mapping[str, Any]]
    ) -> Sequence[APIRouter]:
        router = APIRouter()

        @router.get(STATES + "{job}/{iteration}")
        def state(job: Annotated[str, Name], iteration: int) -> Response:
            return Response(
                own.states.content(job, iteration),
                media_type="application/octet-stream",
            )

        @router.put(STATES + "{job}/{iteration}")
        async def take(
            job: Annotated[str, Name], iteration: int, request: Request
        ) -> dict[str, Any]:
            own.states.take(job, iteration, await request.body())
            return {"job": job, "iteration": iteration}

        @router.get("/v1/inventory")
        def get_inventory() -> JSONResponse:
            document = inventory()
            if not document:
                return JSONResponse({"detail": "it is being built"}, status_code=503)
            return JSONResponse(
                {
                    **document,
                    "optical_switches": _with_passwords(document["optical_switches"]),
                }
            )

        @router.get("/v1/deaths")
        def deaths(known: int = 0) -> list[dict[str, Any]]:
            return [
                asdict(death) for death in DeathLog(self._state / FILE).read()[known:]
            ]

        @router.post("/v1/run")
        def run(request: RunRequest) -> dict[str, Any]:
            return ran(request)

        @router.post("/v1/hosts/{host}/run")
        def run_elsewhere(host: str, request: RunRequest) -> Any:
            other = next((other for other in self._others if other.host == host), None)
            if other is None:
                raise AgentError(404, f"there is no other host {host}")
            return other.ask(
                "POST",
                "/v1/run",
                request.model_dump(),
                timeout_s=request.timeout_s + ANSWER_S,
            )

        @router.get("/v1/log")
        def get_log() -> Response:
            return Response(tail(self._state / LOG), media_type="text/plain")

        @router.get("/v1/load")
        def load() -> dict[str, float]:
            return asdict(self._open.load.shares())

        @router.get("/v1/hosts/load")
        def loads() -> dict[str, dict[str, float]]:
            return self._loads()

        @router.get("/v1/hosts/clocks")
        def clocks() -> dict[str, dict[str, float]]:
            return self.clocks()

        return [router]

    def _await_forgotten(self) -> None:
        """Have this part end once the first one has not been heard from for too long."""
        while not self._closing.wait(FORGOTTEN_S):
            if time.monotonic() - self._door.heard_s > LEASE_S:
                log.warning(
                    "nothing was heard from the lab's first host for too long; it ends here"
                )
                self._open.stop()
                return

    def end(self) -> None:
        """Have the other parts end, without waiting for it.

        What they have said is kept here, as nobody may be left to bring it.
        """
        for other in self._others:
            with suppress(AgentError, OSError):
                (self._state / log_of_part(other.host)).write_bytes(
                    other.fetch("/v1/log", timeout_s=3.0)
                )
        for pulse in self._pulses:
            pulse.end()

    def _follow(self) -> None:
        """Note what ends on other hosts, until the door closes."""
        while not self._closing.wait(DEATHS_S):
            for other in self._others:
                # It is asked again.
                with suppress(AgentError):
                    take_deaths(other, self._open.deaths)

    def close(self) -> None:
        """Wait for the others' end, close the door, remove what it made."""
        self._closing.set()
        if self._opened is None:
            return
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
        name: {
            **entry,
            _PASSWORD: Path(entry["password_file"]).read_text(encoding="utf-8"),
        }
        if "password_file" in entry
        else entry
        for name, entry in switches.items()
    }


def take_deaths(other: OtherPart, noted: Deaths) -> None:
    """Note what has ended, or is back, at another part since the last time. Raises AgentError."""
    for death in other.ask("GET", f"/v1/deaths?known={other.deaths}"):
        other.deaths += 1
        noted.add(Death(**other.here(death)))
