"""Plain values that the plane accepts and returns, free of os-ken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Command = Literal["add", "modify", "modify_strict", "delete", "delete_strict"]


@dataclass(frozen=True)
class FlowMod:
    """Change of a flow table. ``match`` uses OXM names (``in_port``, ``eth_type``, ``ipv4_dst``, …).

    ``out_ports``: port numbers to output to, in order; none means drop. ``cookie``: mark of the owner.
    """

    command: Command
    priority: int
    match: Mapping[str, int | str]
    out_ports: tuple[int, ...] = ()
    cookie: int = 0
    table_id: int = 0


@dataclass(frozen=True)
class Wire:
    """Flow in the switch's own encoding, which can be compared, kept and written again.

    Timeouts in seconds.
    """

    idle_s: int
    hard_s: int
    flags: int
    match: bytes
    instructions: bytes


@dataclass(frozen=True)
class Rewrite:
    """Flow of a switch that is written again unchanged, or removed."""

    command: Literal["add", "delete_strict"]
    priority: int
    table_id: int
    cookie: int
    wire: Wire


@dataclass(frozen=True)
class FlowEntry:
    """Flow as the switch reports it. ``duration_s``: seconds since it was installed.

    A masked match value reads ``"value/mask"``. ``plain``: the flow has no timeouts, and does nothing but
    output.
    """

    priority: int
    match: Mapping[str, int | str]
    out_ports: tuple[int, ...]
    cookie: int
    table_id: int
    packets: int
    bytes: int
    duration_s: float
    plain: bool = True
    wire: Wire = Wire(0, 0, 0, b"", b"")


@dataclass(frozen=True)
class PortStats:
    """Counters of one switch port since it was added; rx is what the switch received."""

    port_no: int
    rx_packets: int
    tx_packets: int
    rx_bytes: int
    tx_bytes: int
    rx_dropped: int
    tx_dropped: int
    rx_errors: int
    tx_errors: int


@dataclass(frozen=True)
class PortDescription:
    """A port of a switch. ``up``: administratively up and with carrier."""

    number: int
    name: str
    mac: str
    up: bool


@dataclass(frozen=True)
class Description:
    """Manufacturer's description of a switch (OpenFlow description statistics)."""

    manufacturer: str
    hardware: str
    software: str
    serial_number: str
    datapath: str


@dataclass(frozen=True)
class SwitchEvent:
    """Something that a switch did by itself. ``t``: CLOCK_MONOTONIC seconds.

    ``refused``: another switch with this datapath id was turned away, as the first one still answers.
    ``flows_changed``: flows that others wrote, or that ran out (:meth:`.OpenFlowPlane.monitor_flows`).
    """

    kind: Literal[
        "connected",
        "disconnected",
        "refused",
        "port_added",
        "port_changed",
        "port_removed",
        "flows_changed",
    ]
    dpid: int
    t: float
    port: PortDescription | None = field(default=None)
