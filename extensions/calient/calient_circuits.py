"""Shared parts of the drivers of Calient's switches over TL1 and REST.

A cross-connect is a one-way circuit from the IN half of a port to the OUT half of another; ports are numbered
1..N (ingress) and N+1..2N (egress) in the order of the names that the switch gives them (``1.1.1``,
``1.1.2``, … or plain numbers). Of a two-way circuit, which others may have made, both directions are removed
together or none. Conflicts are resolved by the driver, which deletes before it adds: the switch needs up to
500 ms if it must resolve them, and 200 ms if not (S320 hardware guide, p. 44).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import ProtocolError, Refused
from ringlight.controller.optical.model import PortStatus, Snapshot
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

#: Circuits of a bulk write: a whole S320.
MAX_BATCH = 320
#: Group of circuits.
GROUP = "SYSTEM"
#: State of a port by the state of its circuit, if that determines it.
PORT_STATES = {
    CrossConnectState.CONNECTED: PortState.TUNED,
    CrossConnectState.PENDING_CONNECTION: PortState.TUNING,
}
PORT_NAME = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}")
_LEAST_DBM, _MOST_DBM = -200.0, 100.0


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of ports (``1.1.2``, ``1.1.10``, or numbers) in the order of their numbers."""
    return tuple(
        sorted(names, key=lambda name: [int(part) for part in name.split(".")])
    )


def circuit_state(admin: str, operation: str, capability: str) -> CrossConnectState:
    """Return the state of a circuit with these words for AS, OS and OC."""
    if capability.upper().startswith("FAIL"):
        return CrossConnectState.FAILED
    if not admin.upper().startswith("IS"):
        # Reserved and not activated: it holds its ports and has no light.
        return CrossConnectState.INVALID
    if operation.upper().startswith("IS"):
        return CrossConnectState.CONNECTED
    return CrossConnectState.PENDING_CONNECTION


def parse_power(text: str) -> float:
    """Return the dBm of ``-1.70``; -inf for ``NONE``, which is no light. Raises ProtocolError."""
    if text.strip().upper() == "NONE":
        return -math.inf
    try:
        power = float(text)
    except ValueError:
        power = math.nan
    if not _LEAST_DBM < power < _MOST_DBM:
        raise ProtocolError("not an optical power", text)
    return power


@dataclass(frozen=True)
class Half:
    """Direction of a circuit: its IN and OUT port by name.

    ``received`` and ``sent``: power in dBm, -inf for no light, None if not reported.
    """

    source: str
    destination: str
    state: CrossConnectState
    received: float | None = None
    sent: float | None = None


@dataclass(frozen=True)
class Circuit:
    """``conn`` is its identifier, ``name`` what it is called, in ``group``; ``halves`` are one or, two-way,
    two."""

    conn: str
    halves: tuple[Half, ...]
    group: str = ""
    name: str = ""


class CalientDriver(OpticalSwitchDriver):
    """A switch of N ports, each with an IN and an OUT half."""

    #: Names of the ports, in order, and their numbers.
    _names: tuple[str, ...] = ()
    _numbers: Mapping[str, int] = {}
    #: By cross-connect: the circuit that it belongs to, as read last.
    _circuits: Mapping[CrossConnect, Circuit] = {}

    def _learn(self, names: Iterable[str]) -> None:
        """Store the names of the ports, given in any order. Raises ProtocolError."""
        ordered = in_order(names)
        if len(set(ordered)) != len(ordered):
            raise ProtocolError("a port is listed twice", str(ordered[:8]))
        if len(ordered) != self.size:
            raise ProtocolError(
                f"the switch has {len(ordered)} ports, the fabric says {self.size}"
            )
        self._names, self._numbers = (
            ordered,
            {name: number for number, name in enumerate(ordered, start=1)},
        )

    def _cross_connect(self, half: Half) -> CrossConnect:
        try:
            return CrossConnect(
                self._numbers[half.source], self.size + self._numbers[half.destination]
            )
        except KeyError as error:
            raise ProtocolError(
                f"a circuit of port {error.args[0]}, which is not among the ports"
            ) from None

    def _ends(self, xc: CrossConnect) -> tuple[str, str]:
        """Return a cross-connect's IN and OUT port by name."""
        return self._names[xc.ingress - 1], self._names[xc.egress - self.size - 1]

    def _snapshot(
        self, circuits: Iterable[Circuit], ports: dict[int, PortStatus]
    ) -> Snapshot:
        """Return a reading of these circuits. ``ports``: port states as known without the circuits."""
        states: dict[CrossConnect, CrossConnectState] = {}
        circuit_of: dict[CrossConnect, Circuit] = {}
        for circuit in circuits:
            for half in circuit.halves:
                xc = self._cross_connect(half)
                if xc in states:
                    raise ProtocolError(f"{xc} is listed twice", circuit.conn)
                states[xc], circuit_of[xc] = half.state, circuit
        self._circuits = circuit_of
        for xc, state in states.items():
            for port in (xc.ingress, xc.egress):
                usable = (
                    ports[port].state is not PortState.FAILED and ports[port].enabled
                )
                if usable and state in PORT_STATES:
                    ports[port] = PortStatus(PORT_STATES[state])
        return Snapshot(self.name, states, ports)

    def _whole_circuits(self, batch: Sequence[CrossConnect]) -> list[Circuit]:
        """Return the circuits of these cross-connects.

        Raises Refused for a part of a circuit, and for a cross-connect that is not present.
        """
        if any(xc not in self._circuits for xc in batch):
            raise Refused("a circuit to be removed is not in the switch")
        by_conn = {self._circuits[xc].conn: self._circuits[xc] for xc in batch}
        requested = set(batch)
        for xc, circuit in self._circuits.items():
            if circuit.conn in by_conn and xc not in requested:
                raise Refused(
                    f"{circuit.conn} is a two-way circuit; it can only be removed together with {xc}"
                )
        return list(by_conn.values())

    def _numbered(
        self, powers: Mapping[str, tuple[float | None, float | None]]
    ) -> dict[int, float | None]:
        """Return received and sent powers (dBm), given by port name, by port number; None if not reported.

        Received power is at the ingress number, sent power at the egress number. Raises ProtocolError.
        """
        by_number: dict[int, float | None] = {}
        for name, (received, sent) in powers.items():
            if name not in self._numbers:
                raise ProtocolError(
                    f"the power of port {name}, which is not among the ports"
                )
            (
                by_number[self._numbers[name]],
                by_number[self._numbers[name] + self.size],
            ) = received, sent
        return by_number
