"""Keeps the kernel's tables equal to Open vSwitch's, on one thread.

Open vSwitch tells each change of a bridge's flows, groups and ports on the bridge's management socket. A
bridge is carried while that connection stands and everything has been heard; otherwise its packets are all
Open vSwitch's. Who wants to know what was carried asks on a socket in the lab's directory, a line of text
each: ``settle`` is answered when all that Open vSwitch has told acts, ``counts DPID`` with counters of flows
and groups, ``ports DPID`` with what the kernel's counters of ports lack.
"""

from __future__ import annotations

import json
import logging
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyroute2.iproute import IPRoute

from ringlight.extensions.fast_path import openflow
from ringlight.extensions.fast_path.datapath import Datapath, SwitchMaps
from ringlight.extensions.fast_path.openflow import (
    Group,
    MalformedError,
    PortDescription,
    Reader,
    TableFlow,
    Told,
)
from ringlight.extensions.fast_path.table import compile_table
from ringlight.testbed.devices import Device, Forwarder
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.kernel import ebpf, netlink, network_errors

log = logging.getLogger(__name__)

#: Pause before a bridge that does not answer is tried again, seconds.
RETRY_S = 0.1
#: A table that did not fit is tried again so much later, seconds: it changes when somebody removes rules.
FULL_S = 5.0
STOP_S = 5.0
#: Longest wait for Open vSwitch's sockets once its process is back, seconds.
BACK_S = 10.0
#: Longest wait for Open vSwitch's answer about groups while somebody waits, seconds.
SETTLE_S = 0.5
_READ_BYTES = 1 << 18
#: Longest line that somebody may ask, and how many may ask at once.
_LONGEST, _CLIENTS = 256, 16
_SEND_S = 1.0
_LARGEST_PORT = 0xFFFFFF00
#: OFPPC_NO_RECV and OFPPC_NO_FWD: what Open vSwitch does at such a port is its own matter.
_HELD_BACK = 1 << 2 | 1 << 5


class BridgeTable:
    """One bridge: the connection to it, and what it has said. Used on the carrier's thread alone."""

    def __init__(self, name: str, maps: SwitchMaps) -> None:
        self.name, self._maps = name, maps
        self._left: frozenset[str] = frozenset()
        self.connection: socket.socket | None = None
        self.retry_at = 0.0
        self._forget()

    def _forget(self) -> None:
        self._reader = Reader()
        self._flows: dict[tuple[int, int, bytes], TableFlow] = {}
        self._groups: dict[int, Group] = {}
        self._new_groups: list[Group] = []
        self._ports: dict[int, PortDescription] = {}
        #: Whether a question is under way whose answer changes the table.
        self.asked = False
        self._complete = self._changed = False
        self._xid = 100

    def connect(self) -> bool:
        """Connect and request everything. Return whether the bridge is there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(openvswitch.management_socket(self.name)))
            connection.sendall(openflow.greeting() + openflow.questions(self._xid))
        except OSError:
            connection.close()
            self.retry_at = time.monotonic() + RETRY_S
            return False
        connection.setblocking(False)
        self.connection = connection
        return True

    def lose(self, for_s: float = RETRY_S) -> None:
        """Leave all of its packets to Open vSwitch, and its connection, for so many seconds."""
        self._maps.open_ports({})
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self._forget()
        self.retry_at = time.monotonic() + for_s

    def read(self) -> None:
        """Take in all that has come. Raises OSError or MalformedError when the connection is of no use."""
        connection = self.connection
        while connection is not None:
            try:
                data = connection.recv(_READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError(f"{self.name} hung up")
            for message in self._reader.feed(data):
                self._take(message, connection)

    def _take(self, message: Told, connection: socket.socket) -> None:
        match message.kind:
            case "echo":
                connection.sendall(openflow.echo(message))
            case "error":
                raise MalformedError(
                    f"{self.name} refuses a question: {message.body[:4].hex()}"
                )
            case "lost":
                raise MalformedError(f"{self.name} has more changes than it could tell")
            case "barrier":
                self._complete = True
            case "group changed":
                self._xid += 1
                self.asked = True
                connection.sendall(openflow.ask_groups(self._xid))
                return
            case "flows":
                for key in message.removed:
                    self._flows.pop(key, None)
                self._flows.update((flow.key, flow) for flow in message.put)
            case "groups":
                self._new_groups += message.groups
                if message.more:
                    return
                self._groups = {group.number: group for group in self._new_groups}
                self._new_groups = []
                self.asked = self.asked and message.xid != self._xid
            case "ports" | "ports gone":
                for port in message.ports:
                    if message.kind == "ports gone":
                        self._ports.pop(port.number, None)
                    elif port.number < _LARGEST_PORT:
                        self._ports[port.number] = port
        self._changed = True

    def act(self, left: frozenset[str] = frozenset()) -> None:
        """Make the kernel carry what has been heard, once all has been, but nothing out by the interfaces
        ``left``."""
        if not (self._complete and (self._changed or left != self._left)):
            return
        self._changed, self._left = False, left
        interfaces = {}
        for port in self._ports.values():
            if not port.config & _HELD_BACK:
                # It may be gone by now; Open vSwitch will say so.
                with suppress(OSError):
                    interfaces[port.number] = socket.if_nametoindex(port.name)
        ways = [number for number in interfaces if self._ports[number].name not in left]
        self._maps.write(
            compile_table(self._flows.values(), self._groups.values(), ways), interfaces
        )
        self._maps.open_ports(interfaces)

    def counts(self) -> Mapping[str, object]:
        """Return the packets and bytes carried, as a document."""
        flows, groups = self._maps.counts()
        return {
            "flows": [
                [priority, match.hex(), packets, size]
                for (priority, match), (packets, size) in flows.items()
                if packets
            ],
            "groups": [
                [group, bucket, packets, size]
                for (group, bucket), (packets, size) in groups.items()
                if packets
            ],
        }

    def extras(self) -> Mapping[str, object]:
        """Return what is missing in the kernel's counters of ports, as a document."""
        return {
            "ports": [
                [number, *counts] for number, counts in self._maps.extras().items()
            ]
        }


class Carrier(Device):
    """The fast path of a lab. ``bridges``: datapath id by bridge; ``path``: of the socket for questions.
    ``smoother``: names for the pair of interfaces through which frames are left to Open vSwitch; it goes with
    the lab's.

    Raises EbpfError, BuildError or OSError where this machine cannot do it.
    """

    def __init__(
        self,
        bridges: Mapping[str, int],
        path: Path,
        smoother: tuple[str, str],
        group: int = 0,
    ) -> None:
        self._datapath = Datapath()
        self._smoother, self._group = smoother, group
        self._tables = {
            name: BridgeTable(name, SwitchMaps(self._datapath, index))
            for index, name in enumerate(bridges)
        }
        self._by_dpid = {
            str(dpid): self._tables[name] for name, dpid in bridges.items()
        }
        self._interfaces: set[str] = set()
        self._path = path
        self._listener: socket.socket | None = None
        self._clients: dict[socket.socket, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._left: frozenset[str] = frozenset()
        self._obeyed = threading.Event()
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="fast path", daemon=True)

    def start(self) -> None:
        """Begin to carry; the bridges are there. Raises NetworkError."""
        near, far = self._smoother
        with IPRoute() as here:
            netlink.create_veth(here, near, far, group=self._group)
            netlink.set_burst(here, netlink.index_of(near))
            netlink.set_checksum_offload(near, False)
            self._datapath.smooth(*(netlink.set_up(here, name) for name in (near, far)))
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._listener.listen(_CLIENTS)
        self._listener.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Leave everything to Open vSwitch."""
        self._stop.set()
        os.write(self._wake_write, b"!")
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._datapath.close()

    @property
    def forwarder(self) -> Forwarder:
        return self

    @property
    def bridges(self) -> Collection[str]:
        return self._tables.keys()

    def take_up(self, interfaces: Iterable[str]) -> None:
        """Attach the programs to ports of Open vSwitch. Raises NetworkError, OpenVSwitchError."""
        new = set(interfaces)
        self._interfaces |= new
        for name in sorted(new):
            with network_errors.failing(f"{name}: fast path"):
                ebpf.attach_ingress(socket.if_nametoindex(name), self._datapath.carry)
        openvswitch.filter_received(new, self._datapath.claim)

    def leave(self, interfaces: Iterable[str]) -> None:
        """Leave what goes out by these ports to Open vSwitch from now on, and by no others."""
        left = frozenset(interfaces)
        with self._lock:
            if left == self._left:
                return
            self._left = left
            self._obeyed.clear()
        os.write(self._wake_write, b"!")
        if self._thread.ident is not None and not self._obeyed.wait(STOP_S):
            log.warning("the fast path has not left what it should within %g s", STOP_S)

    def open_vswitch_is_back(self) -> None:
        """Attach the filter to the sockets of another process of Open vSwitch, as soon as it has opened them:
        until then what hosts leave to be computed never is. Raises OpenVSwitchError."""
        deadline = time.monotonic() + BACK_S
        while True:
            self._interfaces &= {name for _, name in socket.if_nameindex()}
            try:
                openvswitch.filter_received(self._interfaces, self._datapath.claim)
                return
            except openvswitch.OpenVSwitchError:
                if time.monotonic() > deadline or self._stop.wait(RETRY_S):
                    raise

    def inventory(self) -> dict[str, Any]:
        return {"fast_path": str(self._path)}

    # -- the thread

    def _run(self) -> None:
        assert self._listener is not None
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not self._stop.is_set():
                self._connect()
                for key, _ in self._selector.select(self._pause()):
                    if isinstance(key.data, BridgeTable):
                        self._read(key.data)
                    elif key.fileobj == self._wake_read:
                        os.read(self._wake_read, 64)
                    elif key.fileobj is self._listener:
                        self._welcome()
                    elif isinstance(key.fileobj, socket.socket):
                        self._serve(key.fileobj)
                self._act()
        finally:
            for table in self._tables.values():
                table.lose()
            for client in self._clients:
                client.close()

    def _connect(self) -> None:
        now = time.monotonic()
        for table in self._tables.values():
            if table.connection is None and now >= table.retry_at and table.connect():
                assert table.connection is not None
                self._selector.register(table.connection, selectors.EVENT_READ, table)

    def _pause(self) -> float | None:
        """Seconds until a bridge is to be tried again; None while all are connected."""
        due = [
            table.retry_at
            for table in self._tables.values()
            if table.connection is None
        ]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _read(self, table: BridgeTable) -> None:
        try:
            table.read()
        except (OSError, MalformedError) as error:
            log.warning("%s is left to Open vSwitch for a while: %s", table.name, error)
            if table.connection is not None:
                self._selector.unregister(table.connection)
            table.lose()

    def _hear(self, table: BridgeTable) -> None:
        """Read what a bridge has said, and is about to say."""
        deadline = time.monotonic() + SETTLE_S
        while table.connection is not None:
            self._read(table)
            if (
                table.connection is None
                or not table.asked
                or time.monotonic() > deadline
            ):
                return
            # Not select(), which knows no descriptor beyond 1023: a lab of many bridges has some.
            poll = select.poll()
            poll.register(table.connection, select.POLLIN)
            poll.poll(SETTLE_S * 1e3)

    def _act(self) -> None:
        with self._lock:
            left = self._left
        for table in self._tables.values():
            try:
                table.act(left)
            except ebpf.EbpfError as error:
                log.error(
                    "%s is left to Open vSwitch for %g s: %s", table.name, FULL_S, error
                )
                if table.connection is not None:
                    self._selector.unregister(table.connection)
                table.lose(FULL_S)
        with self._lock:
            if left == self._left:
                self._obeyed.set()

    # -- questions

    def _welcome(self) -> None:
        assert self._listener is not None
        with suppress(BlockingIOError):
            client, _ = self._listener.accept()
            if len(self._clients) >= _CLIENTS:
                client.close()
                return
            client.settimeout(_SEND_S)
            self._clients[client] = b""
            self._selector.register(client, selectors.EVENT_READ)

    def _serve(self, client: socket.socket) -> None:
        try:
            data = client.recv(_LONGEST)
            *lines, rest = (self._clients[client] + data).split(b"\n")
            if not data or len(rest) > _LONGEST:
                raise ConnectionResetError
            self._clients[client] = rest
            for line in lines:
                client.sendall(
                    json.dumps(self._answer(line.decode("ascii", "replace"))).encode()
                    + b"\n"
                )
        except OSError:
            self._selector.unregister(client)
            del self._clients[client]
            client.close()

    def _answer(self, line: str) -> Mapping[str, object]:
        what, _, dpid = line.partition(" ")
        bridge_table = self._by_dpid.get(dpid)
        if what == "ports":
            return bridge_table.extras() if bridge_table is not None else {}
        for table in self._tables.values():
            self._hear(table)
        self._act()
        return (
            bridge_table.counts()
            if what == "counts" and bridge_table is not None
            else {}
        )
