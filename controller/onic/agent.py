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
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from ringlight.controller.onic.agent_settings import (
    FLOW_SOCKET,
    MANAGE_SOCKET,
    Address,
    AgentError,
    AgentSettings,
    Routes,
)
from ringlight.controller.onic.control_messages import KINDS, Message
from ringlight.controller.onic.effects import (
    Closed,
    Dark,
    Effect,
    Extend,
    Failed,
    Finished,
    FlowLit,
    Lost,
    Send,
    Tune,
)
from ringlight.controller.onic.flow_clients import FlowClients
from ringlight.controller.onic.flow_trace import FlowTrace
from ringlight.controller.onic.kept_files import EPOCH_FILE, MapFile, next_epoch
from ringlight.controller.onic.lasers import Laser, Lasers
from ringlight.controller.onic.manage_clients import ManageClients, Operation
from ringlight.controller.onic.protocol import Onic
from ringlight.controller.onic.reach import Reach
from ringlight.controller.onic.sockets import Sockets
from ringlight.controller.onic.wavelength_map import PeerEntry, WavelengthMap, parse_map
from ringlight.controller.onic.wire import (
    MESSAGE_BYTES,
    VERSION,
    VERSION_MESSAGE,
    OtherVersion,
    decode,
    encode,
)

if TYPE_CHECKING:
    from ringlight.controller.onic.datagram_faults import DatagramFaults


class Agent:
    """Made, it holds its sockets and is dark; :meth:`run` serves until :meth:`stop`. Raises AgentError."""

    def __init__(self, settings: AgentSettings, laser: Laser, routes: Routes) -> None:
        self.settings = settings
        self._lasers, self._routes = Lasers(settings, laser), routes
        self._map: WavelengthMap | None = None
        self._ip_of: dict[Address, str] = {}
        self._map_file = MapFile(settings.directory, settings.ports)
        self._trace = FlowTrace()
        self._sent = [0] * (max(KINDS) + 1)
        self._received = [0] * (max(KINDS) + 1)
        self._counts = dict.fromkeys(
            (
                "malformed",
                "other_version",
                "send_errors",
                "laser_errors",
                "refused_clients",
            ),
            0,
        )
        self._faults: DatagramFaults | None = None
        if settings.allow_faults:
            from ringlight.controller.onic.datagram_faults import DatagramFaults

            self._faults = DatagramFaults()
        self._stopping = False
        self._sockets = Sockets()
        #: Function to call when a descriptor can be read, or written.
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._workers = FlowClients(
            self._readers, self._counts, self._peers, self._open_flow, self._close_flow
        )
        self._managers = ManageClients(
            settings.gpu, self._operations(), self._readers, self._writers, self._counts
        )
        directory = settings.directory
        directory.mkdir(parents=True, exist_ok=True)
        self._lasers.darken()
        epoch, first = next_epoch(directory / EPOCH_FILE)
        self.core = Onic(
            epoch,
            settings.times,
            time.monotonic(),
            ports=settings.ports,
            quarantine=not first,
        )
        self._started_s = time.monotonic()
        try:
            self._restore_map()
            self._wake, self._waker = self._sockets.pair()
            self._udp = self._sockets.bind(
                socket.AF_INET, socket.SOCK_DGRAM, settings.listen
            )
            bind = partial(self._sockets.bind, socket.AF_UNIX)
            manage = bind(socket.SOCK_STREAM, directory / MANAGE_SOCKET, 0o600)
            flow = bind(socket.SOCK_SEQPACKET, directory / FLOW_SOCKET, 0o666)
        except (OSError, ValueError) as error:
            self.close()
            raise AgentError(f"O-NIC {settings.gpu}: {error}") from error
        self._readers[self._wake.fileno()] = lambda: None
        self._readers[self._udp.fileno()] = self._receive
        self._readers[manage.fileno()] = partial(self._managers.accept, manage)
        self._readers[flow.fileno()] = partial(self._workers.accept, flow)

    # Life.

    @property
    def address(self) -> Address:
        """Address at which the agent listens on the control network."""
        host, port = self._udp.getsockname()
        return host, port

    def run(self) -> None:
        """Serve until :meth:`stop`. Then the lasers are dark and the sockets removed."""
        clock, core, readers, writers = (
            time.monotonic,
            self.core,
            self._readers,
            self._writers,
        )
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
                self._workers.drop_doomed()
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
            self._workers.drop_all()
        except AgentError as error:
            self._log(str(error))
        self._managers.drop_all()
        for failure in self._lasers.let_go():
            self._log(failure)
        self._sockets.close()

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
            ready_s = self._lasers.tune(port, effect.wavelength, effect.until_s)
        except OSError as error:
            self._counts["laser_errors"] += 1
            self._do(
                self.core.untuned(
                    time.monotonic(), port, f"laser of port {port}: {error}"
                )
            )
            return
        self._do(self.core.tuned(time.monotonic(), port, ready_s))

    def _extend(self, effect: Extend) -> None:
        port = effect.port
        try:
            self._lasers.extend(port, effect.wavelength, effect.until_s)
        except OSError as error:
            self._counts["laser_errors"] += 1
            self._do(
                self.core.untuned(
                    time.monotonic(), port, f"laser of port {port}: {error}"
                )
            )

    def _dark(self, effect: Dark) -> None:
        self._lasers.dark(effect.port)

    def _finished(self, effect: Finished) -> None:
        self._trace.add(effect, self._ip_of.get(effect.peer))

    def _lit(self, effect: FlowLit) -> None:
        self._workers.tell(effect.flow, "lit", False)

    def _closed(self, effect: Closed) -> None:
        self._workers.tell(effect.flow, "closed", True)

    def _failed(self, effect: Failed) -> None:
        later = (
            {}
            if effect.retry_after_s is None
            else {"retry_after_s": effect.retry_after_s}
        )
        self._workers.tell(
            effect.flow, "failed", True, {"reason": self._reason(effect), **later}
        )

    def _lost(self, effect: Lost) -> None:
        self._workers.tell(effect.flow, "lost", True, {"reason": self._reason(effect)})

    def _reason(self, effect: Failed | Lost) -> str:
        host, port = effect.peer
        ip = self._ip_of.get((host, port))
        return (
            f"{ip} (O-NIC {host}:{port}): {effect.reason}"
            if ip
            else f"O-NIC {host}:{port}: {effect.reason}"
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
            self._do(
                self.core.other_version(
                    time.monotonic(), peer, message.version, VERSION
                )
            )
        else:
            self._counts["malformed"] += 1

    # Flows of workers.

    def _peers(self) -> Mapping[str, PeerEntry] | None:
        return None if self._map is None else self._map.peers

    def _open_flow(self, flow: Any, peer: Address) -> None:
        self._do(self.core.open(time.monotonic(), flow, peer))

    def _close_flow(self, flow: Any) -> None:
        self._do(self.core.close(time.monotonic(), flow))

    # Management.

    def _status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        counters: dict[str, Any] = {**self.core.counts, **self._counts}
        counters["flows_done"] = counters.pop("done")
        for name, counts in (("sent", self._sent), ("received", self._received)):
            counters[name] = {KINDS[kind]: counts[kind] for kind in KINDS}
        if self._faults is not None:
            counters["faults"] = dict(self._faults.counts)
        flows = [
            {
                "worker": flow[0],
                "flow": flow[1],
                "peer": self._ip_of.get(peer),
                "port": port,
                "state": state,
            }
            for flow, peer, port, state in self.core.flows()
        ]
        receivers = [
            {
                "granted_to": self._peer_name(self.core.holder(port)),
                "waiting": [self._peer_name(peer) for peer in self.core.waiting(port)],
            }
            for port in range(self.settings.ports)
        ]
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
            "lasers": self._lasers.read(),
            "workers": len(self._workers),
            "counters": counters,
            "timings": {
                **asdict(self.settings.times),
                "tuning_s": self._lasers.tuning_s,
            },
        }

    def _peer_name(self, peer: Any) -> str | None:
        return None if peer is None else self._ip_of.get(peer, f"{peer[0]}:{peer[1]}")

    def _set_map(self, request: Mapping[str, Any]) -> dict[str, Any]:
        new_map = parse_map(request, self.settings.ports)
        held = self._map
        if held is not None and held.job != new_map.job:
            raise ValueError(f"holds the map of job {held.job}; clear that first")
        if held is not None and new_map.version < held.version:
            raise ValueError(
                f"holds version {held.version} of the map, newer than {new_map.version}"
            )
        self._map_file.write(new_map)
        self._take_map(self._map_file.read())
        assert self._map is not None
        return {"map": self._map.document()}

    def _clear_map(self, request: Mapping[str, Any]) -> dict[str, Any]:
        held, job = self._map, request.get("job")
        if held is not None and held.job != job:
            raise ValueError(f"holds the map of job {held.job}, not of {job}")
        self._map_file.remove()
        self._take_map(None)
        return {"map": None}

    def _restore_map(self) -> None:
        try:
            stored = self._map_file.read()
        except ValueError as error:
            # Without a map it can still be asked, and given one.
            self._log(f"goes on without its map: {error}")
            stored = None
        self._take_map(stored)

    def _take_map(self, new_map: WavelengthMap | None) -> None:
        peers = {} if new_map is None else new_map.peers
        self._routes.replace({ip: reach.port for ip, reach in peers.items()})
        reach = {
            reach.agent: Reach(reach.port, reach.wavelength) for reach in peers.values()
        }
        self._do(self.core.set_map(time.monotonic(), reach))
        self._map = new_map
        self._ip_of = {reach.agent: ip for ip, reach in peers.items()}

    def _emulate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._faults is None:
            raise ValueError("was started without --allow-faults")
        fault_settings = {
            name: value for name, value in request.items() if name != "op"
        }
        tuning_s = fault_settings.pop("tuning_s", self._lasers.tuning_s)
        if (
            isinstance(tuning_s, bool)
            or not isinstance(tuning_s, int | float)
            or not 0 <= tuning_s <= 60
        ):
            raise ValueError("tuning_s must be from 0 to 60 seconds")
        self._faults.change(fault_settings)
        self._lasers.tuning_s = float(tuning_s)
        return {
            "emulate": {**self._faults.document(), "tuning_s": self._lasers.tuning_s}
        }

    def _read_trace(self, request: Mapping[str, Any]) -> dict[str, Any]:
        read = self._trace.read(request)
        lit_flows = [
            {"peer": self._ip_of.get(peer), "port": port}
            for _, peer, port, state in self.core.flows()
            if state == "lit"
        ]
        return {**read, "lit": lit_flows}

    def _operations(self) -> dict[str, Operation]:
        return {
            "status": self._status,
            "set_map": self._set_map,
            "clear_map": self._clear_map,
            "emulate": self._emulate,
            "trace": self._read_trace,
        }


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
