"""The process of one O-NIC: the protocol core on sockets, in one thread.

``flow.sock`` (Unix, SOCK_SEQPACKET) is for the workers of its GPU, ``manage.sock`` (Unix, SOCK_STREAM, JSON
lines) for the controller and people, UDP on the control network for the other agents. Formats:
``docs/onic-protocol.md``. Lasers and routes are handed in; the agent of a test has a dictionary for them.

The only clock is CLOCK_MONOTONIC: setting the wall clock changes nothing here. A new life begins dark: lasers
are darkened and read back before any socket opens, and no receiver is granted for one lease and guard,
because a grant of the life before may still be in use. The wavelength map is kept in a file, so that flows go
on without the controller.

Starts quickly and imports little, because a host may have 64 of these.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ringlight.controller.onic.protocol import (
    KINDS,
    Closed,
    Dark,
    Effect,
    Extend,
    Failed,
    Finished,
    FlowLit,
    Lost,
    Message,
    Onic,
    Send,
    Times,
    Tune,
)
from ringlight.controller.onic.reach import Reach
from ringlight.controller.onic.wire import (
    MESSAGE_BYTES,
    PORTS,
    VERSION,
    VERSION_MESSAGE,
    OtherVersion,
    decode,
    encode,
    parse_address,
)

if TYPE_CHECKING:
    from ringlight.controller.onic.datagram_faults import DatagramFaults

Address = tuple[str, int]

FLOW_SOCKET, MANAGE_SOCKET, MAP_FILE, EPOCH_FILE = "flow.sock", "manage.sock", "map.json", "epoch"
MAX_CLIENTS = 64
MAX_FLOWS_PER_CLIENT = 4096
MAX_PACKET_BYTES = 4096
MAX_LINE_BYTES = 1 << 20
#: A client of manage.sock that does not read its replies is dropped when this much waits for it.
MAX_UNREAD_BYTES = 1 << 24
TRACE_FLOWS = 8192
MAX_WAVELENGTH = 4096
_PEER_CREDENTIALS = struct.Struct("3i")
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_raw_decoded = json.JSONDecoder().raw_decode


class AgentError(RuntimeError):
    """The agent cannot start or carry out a request; one line with the reason."""


class Laser(Protocol):
    """The tunable transmitters of one O-NIC. Times: CLOCK_MONOTONIC seconds. Methods raise OSError."""

    def tune(self, port: int, wavelength: int, ready_in_s: float, until_s: float) -> float:
        """Light from ``ready_in_s`` after now, dark again at ``until_s`` by itself; returns when it is lit.

        Light that is on with this wavelength and ``ready_in_s`` 0 goes on without a gap.
        """

    def dark(self, port: int) -> None:
        """No light from now on."""

    def read(self, port: int) -> int | None:
        """Return the wavelength on which the laser emits, or is about to emit, light; None if it is dark."""


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


@dataclass(frozen=True)
class PeerEntry:
    """Line of the wavelength map: port and wavelength that reach a GPU, and its agent's address."""

    port: int
    wavelength: int
    agent: Address


@dataclass(frozen=True)
class WavelengthMap:
    job: str
    version: int
    peers: dict[str, PeerEntry]

    def document(self) -> dict[str, Any]:
        peers = {
            ip: {
                "port": entry.port,
                "wavelength": entry.wavelength,
                "agent": f"{entry.agent[0]}:{entry.agent[1]}",
            }
            for ip, entry in self.peers.items()
        }
        return {"job": self.job, "version": self.version, "peers": peers}


def parse_map(document: Mapping[str, Any], ports: int = PORTS) -> WavelengthMap:
    """Return the wavelength map in a document. Raises ValueError naming the key that is wrong."""
    if not isinstance(document, Mapping):
        raise ValueError("the map must be an object")
    job, version, peers = document.get("job"), document.get("version"), document.get("peers")
    if not isinstance(job, str) or not job:
        raise ValueError("job must be a name")
    if not _whole(version, 0, 1 << 62):
        raise ValueError("version must be a whole number")
    if not isinstance(peers, dict):
        raise ValueError("peers must be an object")
    entries: dict[str, PeerEntry] = {}
    for ip, reach in peers.items():
        if not isinstance(reach, dict):
            raise ValueError(f"peers.{ip} must be an object")
        if not _whole(reach.get("port"), 0, ports - 1):
            raise ValueError(f"peers.{ip}.port must be from 0 to {ports - 1}")
        if not _whole(reach.get("wavelength"), 0, MAX_WAVELENGTH):
            raise ValueError(f"peers.{ip}.wavelength must be from 0 to {MAX_WAVELENGTH}")
        try:
            agent = parse_address(reach.get("agent"))
        except ValueError as error:
            raise ValueError(f"peers.{ip}.agent: {error}") from None
        entries[str(ip)] = PeerEntry(reach["port"], reach["wavelength"], agent)
    if len({reach.agent for reach in entries.values()}) < len(entries):
        raise ValueError("two peers have the same agent")
    assert isinstance(version, int)
    return WavelengthMap(job, version, entries)


def flow_name(request: Mapping[str, Any], key: str) -> int | str:
    """Return the worker's name of the flow that it opens or closes. Raises ValueError."""
    name = request[key]
    # A bool would be equal to the number 0 or 1.
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise ValueError(f"{key} must be a number or a text")
    return name


def _parsed(packet: bytes) -> Any:
    """Return a packet's JSON, without the layers of ``json.loads``. Raises ValueError or RecursionError."""
    text = packet.decode().strip()
    document, end = _raw_decoded(text)
    if end < len(text):
        raise ValueError(f"more than one JSON document: {text[end:][:20]!r} follows")
    return document


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@dataclass
class _Worker:
    connection: socket.socket
    number: int
    flows: dict[tuple[int, Any], None] = field(default_factory=dict)


@dataclass
class _Manager:
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)


class Agent:
    """Made, it holds its sockets and is dark; :meth:`run` serves until :meth:`stop`. Raises AgentError."""

    def __init__(self, settings: AgentSettings, laser: Laser, routes: Routes) -> None:
        self.settings = settings
        self._laser, self._routes = laser, routes
        self._tuning_s = settings.tuning_s
        self._ready_s = [0.0] * settings.ports
        self._map: WavelengthMap | None = None
        self._ip_of: dict[Address, str] = {}
        self._workers: dict[int, _Worker] = {}
        self._next_worker = 0
        self._doomed: list[_Worker] = []
        self._managers: dict[int, _Manager] = {}
        self._trace: deque[dict[str, Any]] = deque(maxlen=TRACE_FLOWS)
        self._traced = 0
        self._sent = [0] * (max(KINDS) + 1)
        self._received = [0] * (max(KINDS) + 1)
        self._counts = dict.fromkeys(
            ("malformed", "other_version", "send_errors", "laser_errors", "refused_clients"), 0
        )
        self._faults: DatagramFaults | None = None
        if settings.allow_faults:
            from ringlight.controller.onic.datagram_faults import DatagramFaults

            self._faults = DatagramFaults()
        self._stopping = False
        self._sockets: list[socket.socket] = []
        #: Function to call when a descriptor can be read, or written.
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        directory = settings.directory
        directory.mkdir(parents=True, exist_ok=True)
        self._darken()
        epoch, first = _next_epoch(directory / EPOCH_FILE)
        self.core = Onic(epoch, settings.times, time.monotonic(), ports=settings.ports, quarantine=not first)
        self._started_s = time.monotonic()
        try:
            self._restore_map()
            self._wake, self._waker = socket.socketpair()
            self._sockets += [self._wake, self._waker]
            self._udp = self._open(socket.AF_INET, socket.SOCK_DGRAM, settings.listen)
            manage = self._open(socket.AF_UNIX, socket.SOCK_STREAM, directory / MANAGE_SOCKET, 0o600)
            flow = self._open(socket.AF_UNIX, socket.SOCK_SEQPACKET, directory / FLOW_SOCKET, 0o666)
        except (OSError, ValueError) as error:
            self.close()
            raise AgentError(f"O-NIC {settings.gpu}: {error}") from error
        self._readers[self._wake.fileno()] = lambda: None
        self._readers[self._udp.fileno()] = self._receive
        self._readers[manage.fileno()] = lambda: self._accept_manager(manage)
        self._readers[flow.fileno()] = lambda: self._accept_worker(flow)

    # Life.

    def _darken(self) -> None:
        """Darkens every laser and reads it back. Raises AgentError."""
        for port in range(self.settings.ports):
            try:
                self._laser.dark(port)
                still = self._laser.read(port)
            except OSError as error:
                raise AgentError(f"O-NIC {self.settings.gpu}: laser of port {port}: {error}") from error
            if still is not None:
                raise AgentError(
                    f"O-NIC {self.settings.gpu}: laser of port {port} stays lit on wavelength {still}"
                )

    def _open(
        self, family: socket.AddressFamily, kind: socket.SocketKind, where: Address | Path, mode: int = 0
    ) -> socket.socket:
        """Return a bound socket. Raises OSError naming the address."""
        opened = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._sockets.append(opened)
        try:
            if isinstance(where, Path):
                where.unlink(missing_ok=True)
                opened.bind(str(where))
                where.chmod(mode)
                opened.listen(MAX_CLIENTS)
            else:
                opened.bind(where)
        except OSError as error:
            raise OSError(error.errno, f"{where}: {error.strerror or error}") from error
        return opened

    @property
    def address(self) -> Address:
        """Address at which the agent listens on the control network."""
        host, port = self._udp.getsockname()
        return host, port

    def run(self) -> None:
        """Serve until :meth:`stop`. Then the lasers are dark and the sockets removed."""
        clock, core, readers, writers = time.monotonic, self.core, self._readers, self._writers
        try:
            while not self._stopping:
                deadline = core.next_deadline()
                faults = self._faults
                if faults is not None:
                    flying = faults.next_deadline()
                    if flying is not None and (deadline is None or flying < deadline):
                        deadline = flying
                wait_s = None if deadline is None else max(0.0, deadline - clock())
                # Not epoll: it waits in whole milliseconds, and lasers and delays may be shorter than that.
                # Nor a selector, which would take longer than many a message.
                ready, writable, _ = select.select([*readers], [*writers], (), wait_s)
                for descriptors, among in ((ready, readers), (writable, writers)):
                    for descriptor in descriptors:
                        # A call before this one may have closed the descriptor.
                        if (call := among.get(descriptor)) is not None:
                            call()
                if deadline is not None and deadline <= (now := clock()):
                    if faults is not None:
                        for data, peer in faults.due(now):
                            self._transmit(data, peer)
                    self._do(core.timer(now))
                while self._doomed:
                    self._drop_worker(self._doomed.pop())
        finally:
            self.close()

    def stop(self) -> None:
        """Ends :meth:`run`; may be called from a signal handler or another thread."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def close(self) -> None:
        """Lets go of everything: flows are released, lasers darkened, sockets and their files removed."""
        try:
            for worker in list(self._workers.values()):
                self._drop_worker(worker)
        except AgentError as error:
            self._log(str(error))
        for manager in list(self._managers.values()):
            self._drop_manager(manager)
        for port in range(self.settings.ports):
            try:
                self._laser.dark(port)
            except OSError as error:
                # The laser's watchdog ends it when the lease does.
                self._log(f"laser of port {port} not darkened: {error}")
        for opened in self._sockets:
            name = opened.getsockname() if opened.family == socket.AF_UNIX and opened.fileno() >= 0 else None
            opened.close()
            if isinstance(name, str) and name:
                Path(name).unlink(missing_ok=True)
        self._sockets = []

    def _log(self, text: str) -> None:
        sys.stderr.write(f"onic {self.settings.gpu}: {text}\n")
        sys.stderr.flush()

    # Effects of the core.

    def _do(self, effects: list[Effect]) -> None:
        """Carries out what the core wants, in order."""
        for effect in effects:
            if not isinstance(effect, Send):
                _ACTIONS[type(effect)](self, effect)
                continue
            self._sent[effect.message.kind] += 1
            data = encode(effect.message)
            if self._faults is None:
                self._transmit(data, effect.peer)
            else:
                now = time.monotonic()
                self._faults.send(now, data, effect.peer)
                for datagram, to in self._faults.due(now):
                    self._transmit(datagram, to)

    def _transmit(self, data: bytes, peer: Address) -> None:
        try:
            self._udp.sendto(data, peer)
        except OSError:
            # As good as lost on the way, and repaired the same: by sending it again.
            self._counts["send_errors"] += 1

    def _tune(self, effect: Tune) -> None:
        port = effect.port
        try:
            ready_s = self._laser.tune(port, effect.wavelength, self._tuning_s, effect.until_s)
        except OSError as error:
            self._counts["laser_errors"] += 1
            self._do(self.core.untuned(time.monotonic(), port, f"laser of port {port}: {error}"))
            return
        self._ready_s[port] = ready_s
        self._do(self.core.tuned(time.monotonic(), port, ready_s))

    def _extend(self, effect: Extend) -> None:
        port = effect.port
        try:
            left_s = max(0.0, self._ready_s[port] - time.monotonic())
            self._laser.tune(port, effect.wavelength, left_s, effect.until_s)
        except OSError as error:
            self._counts["laser_errors"] += 1
            self._do(self.core.untuned(time.monotonic(), port, f"laser of port {port}: {error}"))

    def _dark(self, effect: Dark) -> None:
        try:
            self._laser.dark(effect.port)
        except OSError as error:
            # Whoever gets the receiver next would meet this light: better dead, dark at the lease's end and
            # started anew, than going on.
            raise AgentError(f"laser of port {effect.port} cannot be darkened: {error}") from error

    def _tell(self, flow: Any, what: str, over: bool, more: Mapping[str, object] | None = None) -> None:
        number, name = flow
        worker = self._workers.get(number)
        if worker is None:
            return
        if over:
            worker.flows.pop(flow, None)
        if more is None and isinstance(name, int):
            # Nearly all are so, and the encoder is much code for it.
            self._write(worker, f'{{"{what}":{name}}}')
        else:
            self._write(worker, _encoded({what: name, **(more or {})}))

    def _lit(self, effect: FlowLit) -> None:
        self._tell(effect.flow, "lit", False)

    def _closed(self, effect: Closed) -> None:
        self._tell(effect.flow, "closed", True)

    def _failed(self, effect: Failed) -> None:
        later = {} if effect.retry_after_s is None else {"retry_after_s": effect.retry_after_s}
        self._tell(effect.flow, "failed", True, {"reason": self._reason(effect), **later})

    def _lost(self, effect: Lost) -> None:
        self._tell(effect.flow, "lost", True, {"reason": self._reason(effect)})

    def _reason(self, effect: Failed | Lost) -> str:
        host, port = effect.peer
        ip = self._ip_of.get((host, port))
        return (
            f"{ip} (O-NIC {host}:{port}): {effect.reason}" if ip else f"O-NIC {host}:{port}: {effect.reason}"
        )

    def _finished(self, effect: Finished) -> None:
        self._traced += 1
        self._trace.append(
            {
                "flow": effect.flow[1],
                "peer": self._ip_of.get(effect.peer),
                "port": effect.port,
                "wavelength": effect.wavelength,
                "t_open": effect.opened_s,
                "t_request": effect.request_s,
                "t_grant": effect.grant_s,
                "t_lit": effect.lit_s,
                "t_close": effect.close_s,
                "t_released": effect.released_s,
                "waited": effect.waited,
            }
        )

    # Control network.

    def _receive(self) -> None:
        """Take one datagram: to look whether there is another would cost as much as to wait for it."""
        try:
            data, peer = self._udp.recvfrom(MESSAGE_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            # The error is the network's about an earlier message, which is sent again in time.
            self._counts["send_errors"] += 1
            return
        if self._faults is not None and self._faults.blocks(peer):
            return
        message = decode(data)
        if isinstance(message, Message):
            self._received[message.kind] += 1
            self._do(self.core.receive(time.monotonic(), peer, message))
        elif isinstance(message, OtherVersion):
            self._counts["other_version"] += 1
            if message.answer:
                self._transmit(VERSION_MESSAGE, peer)
            self._do(self.core.other_version(time.monotonic(), peer, message.version, VERSION))
        else:
            self._counts["malformed"] += 1

    # Workers.

    def _accept_worker(self, listener: socket.socket) -> None:
        connection = self._accepted(listener, len(self._workers))
        if connection is None:
            return
        self._next_worker += 1
        worker = self._workers[self._next_worker] = _Worker(connection, self._next_worker)
        self._readers[connection.fileno()] = partial(self._read_worker, worker)

    def _accepted(self, listener: socket.socket, present: int) -> socket.socket | None:
        try:
            connection, _ = listener.accept()
        except OSError:
            # The client is gone already.
            return None
        if present >= MAX_CLIENTS:
            self._counts["refused_clients"] += 1
            connection.close()
            return None
        connection.setblocking(False)
        return connection

    def _read_worker(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(MAX_PACKET_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_worker(worker)
            return
        try:
            if len(data) > MAX_PACKET_BYTES:
                raise ValueError(f"longer than {MAX_PACKET_BYTES} bytes")
            request = _parsed(data)
            if not isinstance(request, dict):
                raise ValueError("not a JSON object")
            if "open" in request:
                self._open_flow(worker, flow_name(request, "open"), request.get("peer"))
            elif "close" in request:
                self._close_flow(worker, flow_name(request, "close"))
            else:
                raise ValueError('neither "open" nor "close"')
        except (ValueError, RecursionError) as error:
            self._write(worker, _encoded({"error": str(error)}))

    def _open_flow(self, worker: _Worker, name: int | str, peer: object) -> None:
        flow = (worker.number, name)
        if flow in worker.flows:
            raise ValueError(f"flow {name!r} is already open")
        if len(worker.flows) >= MAX_FLOWS_PER_CLIENT:
            raise ValueError(f"more than {MAX_FLOWS_PER_CLIENT} flows are open")
        entry = None if self._map is None else self._map.peers.get(str(peer))
        if entry is None:
            reason = (
                "this O-NIC has no wavelength map" if self._map is None else "is not in the wavelength map"
            )
            self._write(worker, _encoded({"failed": name, "reason": f"{peer}: {reason}"}))
            return
        worker.flows[flow] = None
        self._do(self.core.open(time.monotonic(), flow, entry.agent))

    def _close_flow(self, worker: _Worker, name: int | str) -> None:
        flow = (worker.number, name)
        if flow not in worker.flows:
            raise ValueError(f"flow {name!r} is not open")
        self._do(self.core.close(time.monotonic(), flow))

    def _write(self, worker: _Worker, text: str) -> None:
        try:
            worker.connection.send(text.encode())
        except OSError:
            # Gone, or it does not read what it is told, and then does not know about its light. Dropped when
            # the effects at hand are carried out: its flows' closing must come after them.
            self._doomed.append(worker)

    def _drop_worker(self, worker: _Worker) -> None:
        """Ends a worker's connection and closes all its flows."""
        if self._workers.pop(worker.number, None) is None:
            return
        del self._readers[worker.connection.fileno()]
        worker.connection.close()
        now = time.monotonic()
        for flow in list(worker.flows):
            self._do(self.core.close(now, flow))

    # Management.

    def _accept_manager(self, listener: socket.socket) -> None:
        connection = self._accepted(listener, len(self._managers))
        if connection is None:
            return
        if not _from_here(connection):
            self._counts["refused_clients"] += 1
            connection.close()
            return
        descriptor = connection.fileno()
        manager = self._managers[descriptor] = _Manager(connection)
        self._readers[descriptor] = lambda: self._serve(manager, True)

    def _serve(self, manager: _Manager, readable: bool) -> None:
        try:
            if readable:
                data = manager.connection.recv(65536)
                if not data:
                    raise ConnectionError
                manager.received += data
                while b"\n" in manager.received:
                    line, _, rest = bytes(manager.received).partition(b"\n")
                    manager.received = bytearray(rest)
                    manager.unread += json.dumps(self._answer(line)).encode() + b"\n"
                if len(manager.received) > MAX_LINE_BYTES or len(manager.unread) > MAX_UNREAD_BYTES:
                    raise ConnectionError
            if manager.unread:
                del manager.unread[: manager.connection.send(manager.unread)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop_manager(manager)
            return
        if manager.unread:
            self._writers[manager.connection.fileno()] = lambda: self._serve(manager, False)
        else:
            self._writers.pop(manager.connection.fileno(), None)

    def _drop_manager(self, manager: _Manager) -> None:
        descriptor = manager.connection.fileno()
        del self._managers[descriptor], self._readers[descriptor]
        self._writers.pop(descriptor, None)
        manager.connection.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("not a JSON object")
            operation = _OPERATIONS.get(str(request.get("op")))
            if operation is None:
                raise ValueError(f"there is no operation {request.get('op')!r}")
            return {"ok": True, **operation(self, request)}
        except (ValueError, RecursionError, OSError) as error:
            return {"ok": False, "error": f"O-NIC {self.settings.gpu}: {error}"}

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        counters: dict[str, Any] = {**self.core.counts, **self._counts}
        counters["flows_done"] = counters.pop("done")
        for name, counts in (("sent", self._sent), ("received", self._received)):
            counters[name] = {KINDS[kind]: counts[kind] for kind in KINDS}
        if self._faults is not None:
            counters["faults"] = dict(self._faults.counts)
        flows = [
            {"worker": flow[0], "flow": flow[1], "peer": self._ip_of.get(peer), "port": port, "state": state}
            for flow, peer, port, state in self.core.flows()
        ]
        receivers = [
            {"granted_to": self._peer_name(self.core.holder(port)),
             "waiting": [self._peer_name(peer) for peer in self.core.waiting(port)]}
            for port in range(self.settings.ports)
        ]  # fmt: skip
        return {
            "version": VERSION,
            "gpu": self.settings.gpu,
            "pid": os.getpid(),
            "epoch": self.core.epoch,
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "job": None if self._map is None else self._map.job,
            "map_version": None if self._map is None else self._map.version,
            "peers": {} if self._map is None else self._map.document()["peers"],
            "flows": flows,
            "receivers": receivers,
            "lasers": [self._laser.read(port) for port in range(self.settings.ports)],
            "workers": len(self._workers),
            "counters": counters,
            "timings": {**asdict(self.settings.times), "tuning_s": self._tuning_s},
        }

    def _peer_name(self, peer: Any) -> str | None:
        return None if peer is None else self._ip_of.get(peer, f"{peer[0]}:{peer[1]}")

    def _set_map(self, request: Mapping[str, Any]) -> dict[str, Any]:
        new_map = parse_map(request, self.settings.ports)
        held = self._map
        if held is not None and held.job != new_map.job:
            raise ValueError(f"holds the map of job {held.job}; clear that first")
        if held is not None and new_map.version < held.version:
            raise ValueError(f"holds version {held.version} of the map, newer than {new_map.version}")
        _write_file(self._map_path, json.dumps(new_map.document()))
        self._take_map(self._stored_map())
        assert self._map is not None
        return {"map": self._map.document()}

    def _clear_map(self, request: Mapping[str, Any]) -> dict[str, Any]:
        held, job = self._map, request.get("job")
        if held is not None and held.job != job:
            raise ValueError(f"holds the map of job {held.job}, not of {job}")
        self._map_path.unlink(missing_ok=True)
        self._take_map(None)
        return {"map": None}

    @property
    def _map_path(self) -> Path:
        return self.settings.directory / MAP_FILE

    def _stored_map(self) -> WavelengthMap | None:
        """Return the stored map; None without a file. Raises ValueError or OSError naming the file."""
        try:
            return parse_map(json.loads(self._map_path.read_bytes()), self.settings.ports)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{self._map_path}: {error}") from error

    def _restore_map(self) -> None:
        try:
            stored = self._stored_map()
        except ValueError as error:
            # Without a map it can still be asked, and given one.
            self._log(f"goes on without its map: {error}")
            stored = None
        self._take_map(stored)

    def _take_map(self, new_map: WavelengthMap | None) -> None:
        peers = {} if new_map is None else new_map.peers
        self._routes.replace({ip: reach.port for ip, reach in peers.items()})
        reach = {reach.agent: Reach(reach.port, reach.wavelength) for reach in peers.values()}
        self._do(self.core.set_map(time.monotonic(), reach))
        self._map = new_map
        self._ip_of = {reach.agent: ip for ip, reach in peers.items()}

    def _emulate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._faults is None:
            raise ValueError("was started without --allow-faults")
        fault_settings = {name: value for name, value in request.items() if name != "op"}
        tuning_s = fault_settings.pop("tuning_s", self._tuning_s)
        if isinstance(tuning_s, bool) or not isinstance(tuning_s, int | float) or not 0 <= tuning_s <= 60:
            raise ValueError("tuning_s must be from 0 to 60 seconds")
        self._faults.change(fault_settings)
        self._tuning_s = float(tuning_s)
        return {"emulate": {**self._faults.document(), "tuning_s": self._tuning_s}}

    def _read_trace(self, request: Mapping[str, Any]) -> dict[str, Any]:
        cursor = request.get("cursor", 0)
        if not _whole(cursor, 0, 1 << 62):
            raise ValueError("cursor must be a whole number")
        first = self._traced - len(self._trace)
        flows = list(self._trace)[max(0, cursor - first) :]
        lit_flows = [
            {"peer": self._ip_of.get(peer), "port": port}
            for _, peer, port, state in self.core.flows()
            if state == "lit"
        ]
        return {"flows": flows, "lit": lit_flows, "cursor": self._traced, "dropped": max(0, first - cursor)}


_ACTIONS: dict[type, Callable[[Agent, Any], None]] = {
    Tune: Agent._tune,
    Extend: Agent._extend,
    Dark: Agent._dark,
    FlowLit: Agent._lit,
    Closed: Agent._closed,
    Failed: Agent._failed,
    Lost: Agent._lost,
    Finished: Agent._finished,
}
_OPERATIONS: dict[str, Callable[[Agent, Mapping[str, Any]], dict[str, Any]]] = {
    "status": Agent._status,
    "set_map": Agent._set_map,
    "clear_map": Agent._clear_map,
    "emulate": Agent._emulate,
    "trace": Agent._read_trace,
}


def _next_epoch(path: Path) -> tuple[int, bool]:
    """Return a number greater than in any earlier life, kept in ``path``, and whether this is the first life.

    The clock makes the number grow even if the file is lost, until the machine is rebooted. Raises
    AgentError.
    """
    try:
        before = int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        before = None
    except ValueError as error:
        raise AgentError(f"{path}: {error}") from error
    epoch = max(time.monotonic_ns(), 0 if before is None else before + 1)
    _write_file(path, str(epoch))
    return epoch, before is None


def _write_file(path: Path, text: str) -> None:
    """Replaces a file in one go, so that a kill leaves the old or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _from_here(connection: socket.socket) -> bool:
    """Return whether a client of a Unix socket shares this process's PID namespace, so is
    not in a container.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, _, _ = _PEER_CREDENTIALS.unpack(data)
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return False
