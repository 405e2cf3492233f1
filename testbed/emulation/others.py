"""Other writers of packet switches' tables: the process of applications, and other controllers."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.nodes import ControllerAddress
from ringlight.testbed.forkserver import Process, start_process
from ringlight.testbed.lab import Lab
from ringlight.testbed.supervision import Supervisor

#: Its name among supervised processes: there is one for all applications.
NAME = "applications"
#: What Open vSwitch says of connections is asked for once in so many seconds, however many ask.
_FRESH_S = 0.5


@dataclass(frozen=True)
class Applications:
    """Files of applications of others. ``openflow`` and ``rest``: where they wait for switches and for calls,
    ``host:port``. ``controller``: URL of our REST API, ``token_file``: with the token that it asks for,
    ``cacert``: what its certificate is checked with. ``observe_links``: they discover links between switches.
    """

    files: tuple[str, ...]
    openflow: str
    rest: str
    controller: str
    log: Path
    token_file: Path | None
    cacert: str | None = None
    observe_links: bool = False

    @classmethod
    def read(cls, path: Path) -> Applications:
        """Read settings from a file that :meth:`write` wrote, and return them. Raises OSError, ValueError."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    @property
    def address(self) -> ControllerAddress:
        return ControllerAddress.parse(self.openflow)

    def start(self, lab: Lab, ready: Path) -> Process:
        """Start the process of the applications and return it. The process writes ``ready`` once the
        applications run. Raises OSError."""
        ready.unlink(missing_ok=True)
        environment = {**lab.environment(), "RINGLIGHT_REST": self.controller}
        if self.token_file is not None:
            environment["RINGLIGHT_TOKEN"] = self.token_file.read_text(encoding="utf-8").strip()
        if self.cacert is not None:
            environment["RINGLIGHT_CACERT"] = self.cacert
        words = ["--openflow", self.openflow, "--rest", self.rest, "--ready", str(ready)]
        words += ["--observe-links"] if self.observe_links else []
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", "ringlight.controller.openflow.apps", *words, *self.files]
            return start_process(command, environment, output)


class Others:
    """State of foreign applications and controllers.

    ``bridges``: bridge and controller's address, as the fabric has it, of each packet switch that connects to
    a foreign controller, by switch. ``apps``: supervisor of the applications' process.
    """

    def __init__(self, bridges: Mapping[str, tuple[str, str]], apps: Supervisor | None) -> None:
        self._bridges = bridges
        self._apps = apps
        self._lock = threading.Lock()
        self._read: tuple[float, list[openvswitch.Connection]] = (-_FRESH_S, [])

    def document(self) -> dict[str, Any]:
        """Return the state of the applications' process as ``applications``, None without any, and of the
        connection of each packet switch to its foreign controller as ``controllers``.

        Raises OpenVSwitchError.
        """
        return {"applications": self._process(), "controllers": self._connections()}

    def _process(self) -> dict[str, Any] | None:
        if self._apps is None:
            return None
        life = self._apps.lives()[NAME]
        return {
            "alive": life.runs,
            "pid": life.pid,
            "since": life.since,
            "restarts": life.restarts,
            "last_error": life.ended,
        }

    def _connections(self) -> dict[str, Any]:
        with self._lock:
            read_s, connections = self._read
            if time.monotonic() - read_s > _FRESH_S:
                connections = openvswitch.connections([bridge for bridge, _ in self._bridges.values()])
                self._read = time.monotonic(), connections
        return {
            name: {"controller": controller, **asdict(connection)}
            for (name, (_, controller)), connection in zip(self._bridges.items(), connections, strict=True)
        }


def others_routes(state: Callable[[], dict[str, Any]]) -> APIRouter:
    """Return the route ``/v1/others`` of a server agent."""
    router = APIRouter()

    @router.get("/v1/others")
    def get_state() -> JSONResponse:
        try:
            return JSONResponse(state())
        except openvswitch.OpenVSwitchError as error:
            return JSONResponse({"detail": str(error)}, status_code=503)

    return router
