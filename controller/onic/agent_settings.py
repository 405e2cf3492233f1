"""Settings of an O-NIC's agent, and the routes that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ringlight.controller.onic.lease_times import Times
from ringlight.controller.onic.wire import PORTS

Address = tuple[str, int]

FLOW_SOCKET, MANAGE_SOCKET = "flow.sock", "manage.sock"


class AgentError(RuntimeError):
    """The agent cannot start or carry out a request; one line with the reason."""


class Routes(Protocol):
    """Routing table from destination IP addresses to output ports."""

    def replace(self, routes: Mapping[str, int]) -> None:
        """Destination IP address → port, all of them. Raises OSError."""


@dataclass(frozen=True)
class AgentSettings:
    """Settings of an agent.

    ``directory``: directory of sockets and files. ``listen``: address on the control network. ``tuning_s``:
    seconds from the command to the laser until there is light. ``allow_faults``: accept ``emulate``.
    """

    gpu: str
    directory: Path
    listen: Address
    tuning_s: float = 0.0
    times: Times = field(default_factory=Times)
    ports: int = PORTS
    allow_faults: bool = False
