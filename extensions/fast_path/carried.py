"""Read the traffic that a testbed's fast path carries past the switches, by their flow tables.

The switches' own counters do not include this traffic, so it is added to their answers. The fast path answers
on a Unix socket, one line of JSON for each line of text.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from os_ken.ofproto import ofproto_v1_3_parser as parser

from ringlight.controller.openflow.errors import NotConnectedError

_ANSWER_S = 2.0
_READ_BYTES, _LONGEST = 1 << 16, 64 << 20


class Carried:
    """The fast path at the socket ``path``. Any thread may call; raises NotConnectedError if it is silent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def settle(self) -> None:
        """Wait until it acts by all that the switches had confirmed before."""
        self._ask("settle")

    def add_to(self, dpid: int, replies: Sequence[Any]) -> None:
        """Add what was carried to a switch's answers about flows, groups, tables or ports."""
        of_ports = isinstance(replies[0], parser.OFPPortStatsReply)
        counters = self._ask(f"{'ports' if of_ports else 'counts'} {dpid}")
        flows = {
            (row[0], bytes.fromhex(row[1])): row[2:]
            for row in counters.get("flows", ())
        }
        groups = {(row[0], row[1]): row[2:] for row in counters.get("groups", ())}
        ports = {row[0]: row[1:] for row in counters.get("ports", ())}
        matched = sum(packets for packets, _ in flows.values())
        for reply in replies:
            if isinstance(reply, parser.OFPFlowStatsReply):
                for flow in reply.body:
                    if flow.table_id == 0:
                        _add(flow, flows.get((flow.priority, flow.wire_match), ()))
            elif isinstance(reply, parser.OFPGroupStatsReply):
                for group in reply.body:
                    _add(group, groups.get((group.group_id, None), ()))
                    for index, bucket in enumerate(group.bucket_stats):
                        _add(bucket, groups.get((group.group_id, index), ()))
            elif isinstance(reply, parser.OFPTableStatsReply):
                reply.body = [_more_matched(table, matched) for table in reply.body]
            elif isinstance(reply, parser.OFPPortStatsReply):
                reply.body = [
                    _more_passed(port, ports.get(port.port_no)) for port in reply.body
                ]

    def close(self) -> None:
        with self._lock:
            self._hang_up()

    def _ask(self, line: str) -> dict[str, Any]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    self._connection.settimeout(_ANSWER_S)
                    self._connection.connect(str(self._path))
                self._connection.sendall(f"{line}\n".encode())
                received = bytearray()
                while not received.endswith(b"\n"):
                    part = self._connection.recv(_READ_BYTES)
                    if not part or len(received) > _LONGEST:
                        raise ConnectionResetError("it hung up")
                    received += part
                reply: dict[str, Any] = json.loads(received)
            except (OSError, ValueError) as error:
                self._hang_up()
                raise NotConnectedError(
                    f"the fast path at {self._path} does not answer: {error}"
                ) from error
            return reply

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


def _add(entry: Any, count: Sequence[int]) -> None:
    if count:
        entry.packet_count += count[0]
        entry.byte_count += count[1]


def _more_matched(table: Any, packets: int) -> Any:
    """Return a table's counters, increased by packets that met one of its flows."""
    if table.table_id:
        return table
    return table._replace(
        lookup_count=table.lookup_count + packets,
        matched_count=table.matched_count + packets,
    )


def _more_passed(port: Any, lacks: Sequence[int] | None) -> Any:
    """Return a port's counters, increased by packets and bytes received, and sent, past the switch."""
    if lacks is None:
        return port
    names = ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes")
    return port._replace(
        **{
            name: getattr(port, name) + more
            for name, more in zip(names, lacks, strict=True)
        }
    )
