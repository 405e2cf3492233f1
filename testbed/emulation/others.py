"""Other writers of packet switches' tables: programs of the lab, and other controllers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.supervision import Life, Supervisor

#: What Open vSwitch says of connections is asked for once in so many seconds, however many ask.
_FRESH_S = 0.5


class Others:
    """State of those who write tables beside our controller.

    ``bridges``: bridge and controller's address, as the fabric has it, of each packet switch that connects to
    a foreign controller, by switch. ``programs``: supervisors of the lab's programs, by name.
    """

    def __init__(
        self, bridges: Mapping[str, tuple[str, str]], programs: Mapping[str, Supervisor]
    ) -> None:
        self._bridges = bridges
        self._programs = programs
        self._lock = threading.Lock()
        self._read: tuple[float, list[openvswitch.Connection]] = (-_FRESH_S, [])

    def document(self) -> dict[str, Any]:
        """Return the state of each program's process as ``programs``, and of the connection of each packet
        switch to its foreign controller as ``controllers``.

        Raises OpenVSwitchError.
        """
        programs = {
            name: _process(kept.lives()[name]) for name, kept in self._programs.items()
        }
        return {"programs": programs, "controllers": self._connections()}

    def _connections(self) -> dict[str, Any]:
        with self._lock:
            read_s, connections = self._read
            if time.monotonic() - read_s > _FRESH_S:
                connections = openvswitch.connections(
                    [bridge for bridge, _ in self._bridges.values()]
                )
                self._read = time.monotonic(), connections
        return {
            name: {"controller": controller, **asdict(connection)}
            for (name, (_, controller)), connection in zip(
                self._bridges.items(), connections, strict=True
            )
        }


def _process(life: Life) -> dict[str, Any]:
    return {
        "alive": life.runs,
        "pid": life.pid,
        "since": life.since,
        "restarts": life.restarts,
        "last_error": life.ended,
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
