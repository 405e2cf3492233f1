"""The OpenFlow plane: switches connect to it, and it reads and writes their flow tables.

Every write is confirmed by a barrier and every read is a question to the switch, never a cache. All
methods are synchronous with a deadline and may be called from any thread except a subscriber's.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from os_ken.controller.handler import MAIN_DISPATCHER
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from ringlight.controller.openflow.carried import CarriedTraffic
from ringlight.controller.openflow.errors import ListenError, NotConnectedError, OpenFlowError
from ringlight.controller.openflow.handshake import MONITOR, Handlers, flow_instructions, flow_match
from ringlight.controller.openflow.messages import (
    Description,
    FlowEntry,
    FlowMod,
    PortDescription,
    PortStats,
    Rewrite,
    SwitchEvent,
    Wire,
)
from ringlight.controller.openflow.port import open_port
from ringlight.controller.openflow.switch import Pending, Switch
from ringlight.controller.openflow.tls import TlsFront
from ringlight.controller.waiting_room import SentAway, share_of_descriptors

__all__ = [
    "Description",
    "FlowEntry",
    "FlowMod",
    "OpenFlowError",
    "OpenFlowPlane",
    "PortDescription",
    "PortStats",
    "SwitchEvent",
]

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Connections, those that are no switch yet, how long one of these may take to become one, and how long it
#: is not closed for another, seconds.
_MOST, _MOST_NEW, _NEW_S, _LEAST_S = 1024, 128, 10.0, 0.25
#: Time for a connected switch to answer before another one may have its datapath id, seconds.
_STILL_THERE_S = 1.0
#: For how long a refused switch is told of; Open vSwitch tries again every 8 s at the latest.
_REFUSED_S = 30.0

#: Properties of the connection that are needed to write a message.
_PROTOCOL = ProtocolDesc(ofp.OFP_VERSION)
_COMMANDS = {
    "add": ofp.OFPFC_ADD,
    "modify": ofp.OFPFC_MODIFY,
    "modify_strict": ofp.OFPFC_MODIFY_STRICT,
    "delete": ofp.OFPFC_DELETE,
    "delete_strict": ofp.OFPFC_DELETE_STRICT,
}
#: Flags that a flow keeps once it is written.
_KEPT_FLAGS = ofp.OFPFF_SEND_FLOW_REM | ofp.OFPFF_NO_PKT_COUNTS | ofp.OFPFF_NO_BYT_COUNTS
#: All flows of all tables, and each change that we have not made. os-ken writes a match without its head
#: here, which Open vSwitch refuses.
_MONITORED = struct.pack(
    ofp.ONF_FLOW_MONITOR_REQUEST_PACK_STR + "HH4x",
    *(0, ofp.ONFFMF_ADD | ofp.ONFFMF_DELETE | ofp.ONFFMF_MODIFY, 4, ofp.OFPP_ANY, ofp.OFPTT_ALL),
    *(ofp.OFPMT_OXM, 4),
)
_PORT_EVENTS = {
    ofp.OFPPR_ADD: "port_added",
    ofp.OFPPR_MODIFY: "port_changed",
    ofp.OFPPR_DELETE: "port_removed",
}


class OpenFlowPlane:
    """Server for switches on ``host:port``, using OpenFlow 1.3.

    ``start`` raises ListenError naming the port if it is taken. ``stop`` leaves every flow where it is.
    ``tls``: context with which switches must present a certificate; None for plain TCP. ``listener``: the
    port's socket, if it is already open.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._tls = tls
        #: Traffic that is carried past the switches, if there is any.
        self.carried: CarriedTraffic | None = None
        self._front: TlsFront | None = None
        self._handlers = Handlers(self._port_status, self._flows_changed)
        self._switches: dict[int, Switch] = {}
        self._connections: dict[Switch, threading.Thread] = {}
        #: When each that is no switch yet came, the earliest first.
        self._new: dict[Switch, float] = {}
        self._sent_away = SentAway("OpenFlow")
        self._refused: dict[int, tuple[float, str]] = {}
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[SwitchEvent], None]] = []
        self._events: queue.SimpleQueue[SwitchEvent | None] = queue.SimpleQueue()
        self._listener = listener
        self._stopping = False
        self._threads: list[threading.Thread] = []

    # Life

    def start(self) -> None:
        """Open the port and accept switches. Port 0 picks a free one, then found in ``self.port``."""
        listener = self._listener
        if listener is None:
            listener = open_port(*((self.host, self.port) if self._tls is None else ("127.0.0.1", 0)))
        if self._tls is not None:
            within = listener.getsockname()[1]
            self._front = TlsFront(self.host, self.port, self._tls, within, self._sent_away)
            try:
                self._front.start()
            except ListenError:
                listener.close()
                raise
        self.port = listener.getsockname()[1] if self._front is None else self._front.port
        self._listener = listener
        self._threads = [
            threading.Thread(target=self._accept, args=(listener,), name="openflow-accept", daemon=True),
            threading.Thread(target=self._deliver, name="openflow-events", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Close the port and every connection; flows stay. Safe to call twice."""
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        if self.carried is not None:
            self.carried.close()
        if self._front is not None:
            self._front.stop()
        if self._listener is not None:
            # Closing alone does not wake a thread that waits in accept().
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._changed:
            connections = dict(self._connections)
        for switch in connections:
            switch.hang_up()
        self._events.put(None)
        for thread in [*connections.values(), *self._threads]:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("thread %s did not end within %g s", thread.name, timeout_s)
        self._threads = []

    def wait_for(self, dpids: Iterable[int], timeout_s: float) -> None:
        """Wait until all these switches are connected. Raises NotConnectedError naming the missing ones."""
        expected = frozenset(dpids)
        with self._changed:
            if not self._changed.wait_for(lambda: expected <= self._switches.keys(), timeout_s):
                missing = ", ".join(str(d) for d in sorted(expected - self._switches.keys()))
                raise NotConnectedError(
                    f"switch {missing} did not connect to {self.host}:{self.port} within {timeout_s:g} s"
                )

    def connected(self) -> frozenset[int]:
        """Return the datapath ids of the switches that are connected now."""
        with self._changed:
            return frozenset(self._switches)

    def refused(self) -> dict[int, str]:
        """Return the datapath ids that a second switch claimed in the last 30 s, with
        that switch's address.
        """
        since = time.monotonic() - _REFUSED_S
        with self._changed:
            return {dpid: address for dpid, (t, address) in self._refused.items() if t > since}

    def subscribe(self, callback: Callable[[SwitchEvent], None]) -> Callable[[], None]:
        """Call back on connect, disconnect and port changes; one event at a time, in order.

        Returns the function that ends the subscription. The callback must not block for long.
        """
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    # Flow tables and statistics

    def send_flows(self, dpid: int, mods: Sequence[FlowMod | Rewrite], *, timeout_s: float) -> None:
        """Write all the changes, then a barrier, and wait for it. A masked match value is ``"value/mask"``.

        Raises SwitchRefusedError naming the first change that the switch refused (later ones may have
        taken effect), SwitchTimeoutError, NotConnectedError.
        """
        for error in self.send_all({dpid: mods}, timeout_s=timeout_s).values():
            raise error

    def send_all(
        self, mods: Mapping[int, Sequence[FlowMod | Rewrite]], *, timeout_s: float
    ) -> dict[int, OpenFlowError]:
        """Send flows to several switches at once, like :meth:`send_flows`. Return the failures by switch.

        The flows are in effect when this returns, also for packets that are carried past the switches.
        """

        def messages(switch: Switch, dpid: int) -> list[Any]:
            changes = [_flow_mod(m) if isinstance(m, FlowMod) else _rewrite(m) for m in mods[dpid]]
            return [*changes, parser.OFPBarrierRequest(switch)]

        failed = self._at_once(mods, messages, timeout_s, lambda *_: None)[1]
        self.settle()
        return failed

    def flows(self, dpid: int, *, timeout_s: float, counted: bool = False) -> list[FlowEntry]:
        """Return every flow of every table, as the switch has them now.

        ``counted``: the counters include the traffic that was carried past the switches. Raises
        OpenFlowError.
        """
        tables, failed = self.flow_tables([dpid], timeout_s=timeout_s, counted=counted)
        for error in failed.values():
            raise error
        return tables[dpid]

    def flow_tables(
        self, dpids: Iterable[int], *, timeout_s: float, counted: bool = False
    ) -> tuple[dict[int, list[FlowEntry]], dict[int, OpenFlowError]]:
        """Read several switches at once, like :meth:`flows`. Return the flows and the failures by switch.

        ``counted``: the counters include the traffic that was carried past the switches.
        """

        def request(switch: Switch, _: int) -> list[Any]:
            everything = (0, ofp.OFPTT_ALL, ofp.OFPP_ANY, ofp.OFPG_ANY, 0, 0, parser.OFPMatch())
            return [parser.OFPFlowStatsRequest(switch, *everything)]

        def entries(dpid: int, replies: list[Any]) -> list[FlowEntry]:
            if counted:
                self.amend(dpid, replies)
            return [_flow_entry(s) for reply in replies for s in reply.body]

        return self._at_once(dpids, request, timeout_s, entries)

    def monitor_flows(self, dpid: int, *, timeout_s: float) -> None:
        """Make a switch report others' changes of its flow tables at once, as event ``flows_changed``.

        Lasts until the switch disconnects. Raises SwitchRefusedError if the switch has no flow monitor (ONF
        extension 187).
        """
        switch = self.switch(dpid)
        switch.transact([parser.OFPExperimenterStatsRequest(switch, 0, *MONITOR, _MONITORED)], timeout_s)

    def _at_once(
        self,
        dpids: Iterable[int],
        messages: Callable[[Switch, int], list[Any]],
        timeout_s: float,
        take: Callable[[int, list[Any]], T],
    ) -> tuple[dict[int, T], dict[int, OpenFlowError]]:
        """Return the values that ``take`` makes of each switch's replies to its last message, and the errors
        by switch.

        The messages to all switches are sent before any reply is awaited.
        """
        deadline = time.monotonic() + timeout_s
        begun: dict[int, tuple[Switch, Pending]] = {}
        results: dict[int, T] = {}
        failed: dict[int, OpenFlowError] = {}
        for dpid in dpids:
            try:
                switch = self.switch(dpid)
                begun[dpid] = switch, switch.begin(messages(switch, dpid), timeout_s)
            except OpenFlowError as error:
                failed[dpid] = error
        for dpid, (switch, pending) in begun.items():
            try:
                results[dpid] = take(dpid, switch.finish(pending, max(0.0, deadline - time.monotonic())))
            except OpenFlowError as error:
                failed[dpid] = error
        return results, failed

    def port_stats(self, dpid: int, *, timeout_s: float) -> list[PortStats]:
        """Return the counters of every port except the switch's own local port. Raises OpenFlowError."""
        stats, failed = self.all_port_stats([dpid], timeout_s=timeout_s)
        for error in failed.values():
            raise error
        return stats[dpid][1]

    def all_port_stats(
        self, dpids: Iterable[int], *, timeout_s: float
    ) -> tuple[dict[int, tuple[float, list[PortStats]]], dict[int, OpenFlowError]]:
        """Read the port counters of several switches at once. Return the counters and the errors by switch.

        Each switch's counters come with the time of their arrival, CLOCK_MONOTONIC seconds. The switches' own
        local ports are left out.
        """

        def request(switch: Switch, _: int) -> list[Any]:
            return [parser.OFPPortStatsRequest(switch, 0, ofp.OFPP_ANY)]

        def counters(dpid: int, replies: list[Any]) -> tuple[float, list[PortStats]]:
            t = time.monotonic()
            self.amend(dpid, replies)
            return t, [_counted(s) for reply in replies for s in reply.body if s.port_no <= ofp.OFPP_MAX]

        return self._at_once(dpids, request, timeout_s, counters)

    def ports(self, dpid: int, *, timeout_s: float = 5.0) -> list[PortDescription]:
        """Return the ports of a switch by number, without its own local port. Raises OpenFlowError."""
        switch = self.switch(dpid)
        replies = switch.transact([parser.OFPPortDescStatsRequest(switch, 0)], timeout_s)
        descriptions = [_port(p) for reply in replies for p in reply.body if p.port_no <= ofp.OFPP_MAX]
        return sorted(descriptions, key=lambda port: port.number)

    def desc(self, dpid: int, *, timeout_s: float = 5.0) -> Description:
        """Return the manufacturer's description of the switch. Raises OpenFlowError."""
        switch = self.switch(dpid)
        body = switch.transact([parser.OFPDescStatsRequest(switch, 0)], timeout_s)[0].body
        texts = (body.mfr_desc, body.hw_desc, body.sw_desc, body.serial_num, body.dp_desc)
        return Description(*(t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in texts))

    def settle(self) -> None:
        """Wait until what the switches have confirmed acts also on what is carried past them."""
        if self.carried is not None:
            try:
                self.carried.settle()
            except NotConnectedError as error:
                # The flows are written nevertheless.
                log.warning("%s", error)

    def amend(self, dpid: int, replies: Sequence[Any]) -> None:
        """Add the traffic that was carried past a switch to its counters. Raises NotConnectedError."""
        if self.carried is not None:
            self.carried.add_to(dpid, replies)

    def switch(self, dpid: int) -> Switch:
        """Return the connected switch of this datapath id. Raises NotConnectedError."""
        with self._changed:
            switch = self._switches.get(dpid)
        if switch is None:
            raise NotConnectedError(f"switch {dpid} is not connected")
        return switch

    # Threads

    @property
    def complaint(self) -> str | None:
        """One line about connections that were closed because there were too many; None without any."""
        return self._sent_away.complaint

    def _accept(self, listener: socket.socket) -> None:
        # A switch that comes by TLS has three descriptors.
        most = share_of_descriptors(_MOST, 4 if self._front is None else 12)
        while not self._stopping:
            self._make_room(min(_MOST_NEW, most // 2))
            try:
                connection, address = listener.accept()
            except OSError as error:
                if self._stopping:
                    return
                log.error("OpenFlow port %s: accept failed: %s", self.port, error)
                time.sleep(0.1)
                continue
            with self._changed:
                full = len(self._connections) >= most
            if full:
                self._sent_away.count()
                log.warning("%d OpenFlow connections: the one from %s is turned away", most, address)
                connection.close()
                continue
            try:
                switch = Switch(connection, address, self._handlers, self._state_changed)
            except OSError as error:
                log.warning("connection from %s ended at once: %s", address, error)
                connection.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(switch,), name=f"openflow-{address[1]}", daemon=True
            )
            with self._changed:
                self._connections[switch] = thread
                self._new[switch] = time.monotonic()
            thread.start()

    def _make_room(self, most: int) -> None:
        """Close the earliest of ``most`` connections that are no switch, once it has had its time."""
        while not self._stopping:
            with self._changed:
                if len(self._new) < most:
                    return
                first, came = next(iter(self._new.items()))
                left_s = came + _LEAST_S - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                del self._new[first]
            self._sent_away.count()
            log.warning("%d connections that are no switch: the first one is closed", most)
            first.hang_up()

    def _serve(self, switch: Switch) -> None:
        try:
            switch.serve()
        except Exception:
            # A malformed message must end that connection and nothing else.
            log.exception("connection of switch %s failed", switch.id)
        finally:
            switch.hang_up()
            with self._changed:
                self._connections.pop(switch, None)
                self._new.pop(switch, None)
                self._changed.notify_all()

    def _state_changed(self, switch: Switch, state: str) -> None:
        dpid = switch.id
        if dpid is None:
            return
        replaced: Switch | None = None
        if state == MAIN_DISPATCHER and self._is_taken(dpid):
            self._refuse(switch, dpid)
            return
        with self._changed:
            self._new.pop(switch, None)
            if state == MAIN_DISPATCHER:
                replaced = self._switches.get(dpid)
                self._switches[dpid] = switch
                kind = "connected"
            elif self._switches.get(dpid) is switch:
                del self._switches[dpid]
                kind = "disconnected"
            else:
                return
            self._changed.notify_all()
        if replaced is not None:
            log.warning("switch %s connected again; its old connection is closed", dpid)
            replaced.hang_up()
        log.info("switch %s %s", dpid, kind)
        self._events.put(SwitchEvent(kind, dpid, time.monotonic()))  # type: ignore[arg-type]

    def _is_taken(self, dpid: int) -> bool:
        """Return whether a switch with this datapath id is connected and answers; a stale connection does
        not.
        """
        with self._changed:
            older = self._switches.get(dpid)
        if older is None:
            return False
        try:
            older.transact([parser.OFPBarrierRequest(older)], _STILL_THERE_S)
        except OpenFlowError:
            return False
        return True

    def _refuse(self, switch: Switch, dpid: int) -> None:
        """Two switches with one datapath id would get each other's flows: the first one stays."""
        address = ":".join(map(str, switch.address[:2]))
        now = time.monotonic()
        with self._changed:
            last, _ = self._refused.get(dpid, (-_REFUSED_S, ""))
            self._refused[dpid] = (now, address)
        if now - last >= _REFUSED_S:
            log.error("a second switch, at %s, claims datapath id %s; refused", address, dpid)
            self._events.put(SwitchEvent("refused", dpid, now))
        switch.hang_up()

    def _port_status(self, switch: Any, reason: int, description: Any) -> None:
        kind = _PORT_EVENTS.get(reason)
        if kind is not None and description.port_no <= ofp.OFPP_MAX:
            event = SwitchEvent(kind, switch.id, time.monotonic(), _port(description))  # type: ignore[arg-type]
            self._events.put(event)

    def _flows_changed(self, switch: Any) -> None:
        self._events.put(SwitchEvent("flows_changed", switch.id, time.monotonic()))

    def _deliver(self) -> None:
        while (event := self._events.get()) is not None:
            for callback in list(self._subscribers):
                try:
                    callback(event)
                except Exception:
                    log.exception("a subscriber failed on %s", event)


class _Written:
    """A message of os-ken's in writing; each sending only gets its own number."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.xid = 0
        self.buf = text

    def set_xid(self, xid: int) -> None:
        self.xid = xid

    def serialize(self) -> None:
        self.buf = self._text[:4] + self.xid.to_bytes(4, "big") + self._text[8:]


def _flow_mod(mod: FlowMod) -> _Written:
    match = tuple(sorted(mod.match.items()))
    return _Written(_flow_mod_text(mod.command, mod.priority, match, mod.out_ports, mod.cookie, mod.table_id))


@functools.lru_cache(maxsize=8192)
def _flow_mod_text(
    command: str,
    priority: int,
    match: tuple[tuple[str, int | str], ...],
    out_ports: tuple[int, ...],
    cookie: int,
    table_id: int,
) -> bytes:
    """Return a flow change in wire format, cached.

    os-ken takes 0.3 ms to write a flow change, and changing light needs the same rules again.
    """
    actions = [parser.OFPActionOutput(port) for port in out_ports]
    adds = command in ("add", "modify", "modify_strict")
    instructions = (
        [parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions)] if actions and adds else []
    )
    message = parser.OFPFlowMod(
        _PROTOCOL,
        cookie=cookie,
        table_id=table_id,
        command=_COMMANDS[command],
        priority=priority,
        out_port=ofp.OFPP_ANY,
        out_group=ofp.OFPG_ANY,
        match=parser.OFPMatch(**{key: _match_value(value) for key, value in match}),
        instructions=instructions,
    )
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


def _rewrite(flow: Rewrite) -> _Written:
    head = struct.pack(
        ofp.OFP_FLOW_MOD_PACK_STR0,
        *(flow.cookie if flow.command == "add" else 0, 0, flow.table_id, _COMMANDS[flow.command]),
        *(flow.wire.idle_s, flow.wire.hard_s, flow.priority, ofp.OFP_NO_BUFFER, ofp.OFPP_ANY, ofp.OFPG_ANY),
        flow.wire.flags,
    )
    text = head + flow.wire.match + (flow.wire.instructions if flow.command == "add" else b"")
    return _Written(struct.pack("!BBHI", ofp.OFP_VERSION, ofp.OFPT_FLOW_MOD, 8 + len(text), 0) + text)


def _match_value(value: int | str) -> Any:
    """Return ``"value/mask"`` as os-ken expects it; any other value unchanged."""
    if not isinstance(value, str) or "/" not in value:
        return value
    parts = value.split("/", 1)
    return tuple(int(part) if part.isdigit() else part for part in parts)


def _flow_entry(stats: Any) -> FlowEntry:
    match, outputs, outputs_only = _meaning(stats.wire_match, stats.wire_instructions)
    return FlowEntry(
        stats.priority,
        match,
        outputs,
        stats.cookie,
        stats.table_id,
        stats.packet_count,
        stats.byte_count,
        stats.duration_sec + stats.duration_nsec * 1e-9,
        outputs_only and not (stats.idle_timeout or stats.hard_timeout),
        Wire(
            stats.idle_timeout,
            stats.hard_timeout,
            stats.flags & _KEPT_FLAGS,
            stats.wire_match,
            stats.wire_instructions,
        ),
    )


@functools.lru_cache(maxsize=8192)
def _meaning(match: bytes, instructions: bytes) -> tuple[Mapping[str, int | str], tuple[int, ...], bool]:
    """Return a flow's match, its output ports, and whether it does nothing else."""
    fields = {
        key: f"{value[0]}/{value[1]}" if isinstance(value, tuple) else value
        for key, value in flow_match(match).items()
    }
    parsed = flow_instructions(instructions)
    actions = [action for flow in parsed for action in getattr(flow, "actions", ())]
    outputs = tuple(action.port for action in actions if isinstance(action, parser.OFPActionOutput))
    at_once = all(flow.type == ofp.OFPIT_APPLY_ACTIONS for flow in parsed)
    return MappingProxyType(fields), outputs, at_once and len(outputs) == len(actions)


def _counted(stats: Any) -> PortStats:
    return PortStats(*(getattr(stats, name) for name in PortStats.__dataclass_fields__))


def _port(description: Any) -> PortDescription:
    name = description.name
    up = not description.config & ofp.OFPPC_PORT_DOWN and not description.state & ofp.OFPPS_LINK_DOWN
    return PortDescription(
        description.port_no,
        name.decode("utf-8", "replace") if isinstance(name, bytes) else name,
        description.hw_addr,
        up,
    )
