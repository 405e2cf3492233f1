"""The OpenFlow plane: switches connect to it, and it reads and writes their flow tables.

Every write is confirmed by a barrier and every read is a question to the switch, never a cache. All
methods are synchronous with a deadline and may be called from any thread except a subscriber's.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from os_ken.controller.handler import MAIN_DISPATCHER
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from ringlight.controller.openflow.carried import CarriedTraffic
from ringlight.controller.openflow.connections import Connections
from ringlight.controller.openflow.encoding import (
    MONITORED,
    flow_entry,
    flow_mod,
    port_counters,
    port_description,
    rewrite,
)
from ringlight.controller.openflow.errors import (
    ListenError,
    NotConnectedError,
    OpenFlowError,
)
from ringlight.controller.openflow.handshake import MONITOR, Handlers
from ringlight.controller.openflow.messages import (
    Description,
    FlowEntry,
    FlowMod,
    PortDescription,
    PortStats,
    Rewrite,
    SwitchEvent,
)
from ringlight.controller.openflow.port import open_port
from ringlight.controller.openflow.switch import Pending, Switch
from ringlight.controller.openflow.tls import TlsFront
from ringlight.controller.waiting_room import SentAway

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Time for a connected switch to answer before another one may have its datapath id, seconds.
_STILL_THERE_S = 1.0
#: For how long a refused switch is told of; Open vSwitch tries again every 8 s at the latest.
_REFUSED_S = 30.0

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
        self._sent_away = SentAway("OpenFlow")
        self._connections = Connections(
            self._handlers, self._state_changed, self._sent_away
        )
        self._refused: dict[int, tuple[float, str]] = {}
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[SwitchEvent], None]] = []
        self._events: queue.SimpleQueue[SwitchEvent | None] = queue.SimpleQueue()
        self._listener = listener
        self._threads: list[threading.Thread] = []

    # Life

    def start(self) -> None:
        """Open the port and accept switches. Port 0 picks a free one, then found in ``self.port``."""
        listener = self._listener
        if listener is None:
            listener = open_port(
                *((self.host, self.port) if self._tls is None else ("127.0.0.1", 0))
            )
        if self._tls is not None:
            within = listener.getsockname()[1]
            self._front = TlsFront(
                self.host, self.port, self._tls, within, self._sent_away
            )
            try:
                self._front.start()
            except ListenError:
                listener.close()
                raise
        self.port = (
            listener.getsockname()[1] if self._front is None else self._front.port
        )
        self._listener = listener
        self._threads = [
            threading.Thread(
                target=self._connections.accept,
                # A switch that comes by TLS has three descriptors.
                args=(listener, self.port, 4 if self._front is None else 12),
                name="openflow-accept",
                daemon=True,
            ),
            threading.Thread(target=self._deliver, name="openflow-events", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Close the port and every connection; flows stay. Safe to call twice."""
        deadline = time.monotonic() + timeout_s
        self._connections.stop()
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
        receiving = self._connections.hang_up()
        self._events.put(None)
        for thread in [*receiving, *self._threads]:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("thread %s did not end within %g s", thread.name, timeout_s)
        self._threads = []

    def wait_for(self, dpids: Iterable[int], timeout_s: float) -> None:
        """Wait until all these switches are connected. Raises NotConnectedError naming the missing ones."""
        expected = frozenset(dpids)
        with self._changed:
            if not self._changed.wait_for(
                lambda: expected <= self._switches.keys(), timeout_s
            ):
                missing = ", ".join(
                    str(d) for d in sorted(expected - self._switches.keys())
                )
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
            return {
                dpid: address
                for dpid, (t, address) in self._refused.items()
                if t > since
            }

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

    def send_flows(
        self, dpid: int, mods: Sequence[FlowMod | Rewrite], *, timeout_s: float
    ) -> None:
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
            changes = [
                flow_mod(m) if isinstance(m, FlowMod) else rewrite(m)
                for m in mods[dpid]
            ]
            return [*changes, parser.OFPBarrierRequest(switch)]

        failed = self._at_once(mods, messages, timeout_s, lambda *_: None)[1]
        self.settle()
        return failed

    def flows(
        self, dpid: int, *, timeout_s: float, counted: bool = False
    ) -> list[FlowEntry]:
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
            everything = (
                0,
                ofp.OFPTT_ALL,
                ofp.OFPP_ANY,
                ofp.OFPG_ANY,
                0,
                0,
                parser.OFPMatch(),
            )
            return [parser.OFPFlowStatsRequest(switch, *everything)]

        def entries(dpid: int, replies: list[Any]) -> list[FlowEntry]:
            if counted:
                self.amend(dpid, replies)
            return [flow_entry(s) for reply in replies for s in reply.body]

        return self._at_once(dpids, request, timeout_s, entries)

    def monitor_flows(self, dpid: int, *, timeout_s: float) -> None:
        """Make a switch report others' changes of its flow tables at once, as event ``flows_changed``.

        Lasts until the switch disconnects. Raises SwitchRefusedError if the switch has no flow monitor (ONF
        extension 187).
        """
        switch = self.switch(dpid)
        switch.transact(
            [parser.OFPExperimenterStatsRequest(switch, 0, *MONITOR, MONITORED)],
            timeout_s,
        )

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
                results[dpid] = take(
                    dpid, switch.finish(pending, max(0.0, deadline - time.monotonic()))
                )
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
            return t, [
                port_counters(s)
                for reply in replies
                for s in reply.body
                if s.port_no <= ofp.OFPP_MAX
            ]

        return self._at_once(dpids, request, timeout_s, counters)

    def ports(self, dpid: int, *, timeout_s: float = 5.0) -> list[PortDescription]:
        """Return the ports of a switch by number, without its own local port. Raises OpenFlowError."""
        switch = self.switch(dpid)
        replies = switch.transact(
            [parser.OFPPortDescStatsRequest(switch, 0)], timeout_s
        )
        descriptions = [
            port_description(p)
            for reply in replies
            for p in reply.body
            if p.port_no <= ofp.OFPP_MAX
        ]
        return sorted(descriptions, key=lambda port: port.number)

    def desc(self, dpid: int, *, timeout_s: float = 5.0) -> Description:
        """Return the manufacturer's description of the switch. Raises OpenFlowError."""
        switch = self.switch(dpid)
        body = switch.transact([parser.OFPDescStatsRequest(switch, 0)], timeout_s)[
            0
        ].body
        texts = (
            body.mfr_desc,
            body.hw_desc,
            body.sw_desc,
            body.serial_num,
            body.dp_desc,
        )
        return Description(
            *(
                t.decode("utf-8", "replace") if isinstance(t, bytes) else t
                for t in texts
            )
        )

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

    def _state_changed(self, switch: Switch, state: str) -> None:
        dpid = switch.id
        if dpid is None:
            return
        replaced: Switch | None = None
        if state == MAIN_DISPATCHER and self._is_taken(dpid):
            self._refuse(switch, dpid)
            return
        self._connections.settled(switch)
        with self._changed:
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
            log.error(
                "a second switch, at %s, claims datapath id %s; refused", address, dpid
            )
            self._events.put(SwitchEvent("refused", dpid, now))
        switch.hang_up()

    def _port_status(self, switch: Any, reason: int, description: Any) -> None:
        kind = _PORT_EVENTS.get(reason)
        if kind is not None and description.port_no <= ofp.OFPP_MAX:
            described = port_description(description)
            now_s = time.monotonic()
            event = SwitchEvent(kind, switch.id, now_s, described)  # type: ignore[arg-type]
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
