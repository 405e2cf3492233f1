"""Detect changes that optical switches make by themselves, and move packets off dead links.

One thread, which compares what the switches carry with what they should. All optical switches are read at the
same time, beside any change of light, so that neither a slow switch nor a change delays the word of another.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import UnavailableError
from ringlight.controller.openflow.errors import OpenFlowError
from ringlight.controller.openflow.messages import SwitchEvent
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.watching import TableWatch
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

_STATE = {True: "up", False: "down"}
#: Optical switches that are read at the same time.
_PARALLEL = 32
#: Longest reading of one that counts, and longest that a round waits for readings, seconds.
_READ_S, _ROUND_S = 2.0, 0.5
#: Longest wait for a change to end before a switch that is not as it should be is read again, seconds.
_QUIET_S = 0.3
#: Optical power is measured for Prometheus once in so many seconds.
_POWER_S = 10.0


class Reconciler:
    """Thread that reads every optical switch once per ``period_s`` seconds and repairs forwarding rules.

    Rules are repaired when a packet switch connects, or reports that a port went down or came up, or that
    another client wrote its flows.
    """

    def __init__(
        self,
        fabric: Fabric,
        plane: OpenFlowPlane,
        site: OpticalSite,
        circuits: CircuitManager,
        forwarding: Forwarding,
        tables: TableWatch,
        bus: EventBus,
        *,
        period_s: float = 1.0,
    ) -> None:
        self._fabric = fabric
        self._names = {
            switch.dpid: name for name, switch in fabric.packet_switches.items()
        }
        self._site = site
        self._circuits = circuits
        self._forwarding = forwarding
        self._tables = tables
        self._bus = bus
        self._period_s = period_s
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._connected = threading.Event()
        self._pool = ThreadPoolExecutor(
            max(1, min(_PARALLEL, len(fabric.optical_switches))),
            thread_name_prefix="watch",
        )
        self._reading: dict[str, Future[None]] = {}
        self._power_at = dict.fromkeys(fabric.optical_switches, 0.0)
        self._unread: set[str] = set()
        self._unread_lock = threading.Lock()
        self._unsubscribe = plane.subscribe(self._switch_event)
        self._thread = threading.Thread(
            target=self._run, name="reconciler", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._unsubscribe()
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _switch_event(self, event: SwitchEvent) -> None:
        name = self._names.get(event.dpid)
        if event.kind == "refused":
            text = f"a second switch claims datapath id {event.dpid}; it was refused"
            self._bus.publish(
                "packet_switch_alarm", switch=name, dpid=event.dpid, text=text
            )
            return
        if name is None:
            return
        if event.kind in ("connected", "disconnected"):
            up = event.kind == "connected"
            self._bus.publish(
                "packet_switch", switch=name, state="up" if up else "down"
            )
            if up:
                self._tables.connected(name)
                self._connected.set()
                self._read_ports_of(name)
        elif event.kind == "flows_changed":
            if self._tables.touch(name):
                self._wake.set()
        elif event.port is not None and self._forwarding.is_between_switches(
            Port(name, event.port.number)
        ):
            self._read_ports_of(name)

    def _read_ports_of(self, switch: str) -> None:
        # The state in the event may be outdated when it is processed: the switch is read.
        with self._unread_lock:
            self._unread.add(switch)
        self._wake.set()

    def _run(self) -> None:
        revision = self._site.revision
        while True:
            self._wake.wait(self._period_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                revision = self._round(revision)
            except Exception:
                # The watch must outlive whatever one round ran into.
                log.exception("a round of the reconciler failed")

    def _round(self, revision: int) -> int:
        self._read_switches()
        odd = [
            name
            for name in self._site.drivers
            if not self._circuits.is_as_intended(name)
        ]
        with self._circuits.quiet(_QUIET_S if odd else 0.0) as quiet:
            if not quiet:
                # A change is under way; it reads and writes all this by itself.
                if self._connected.is_set() or self._unread:
                    self._wake.set()
                    self._stop.wait(0.05)
                return revision
            if self._learn_ports():
                self._forwarding.reconcile(self._circuits.cross_connects())
            if odd:
                # Read again: what was read beside a change may have been half of it.
                self._circuits.reconcile(odd)
            now, cross_connects = self._site.revision, self._circuits.cross_connects()
            # A change of ours has brought the rules with it, or left those it did not need to touch.
            if self._connected.is_set() or (
                now != revision and not self._forwarding.stands(cross_connects)
            ):
                self._connected.clear()
                self._forwarding.reconcile(cross_connects)
            self._tables.look(cross_connects)
            # Others may have changed the light, too.
            self._circuits.tell_followers()
            return now

    def _read_switches(self) -> None:
        """Read every optical switch at the same time. A slow reading continues during the next rounds."""
        for name in self._site.drivers:
            # A provider of light reads those of its jobs; a second reader would delay the next step.
            under_way = name in self._reading and not self._reading[name].done()
            if self._site.holder(name) is None and not under_way:
                self._reading[name] = self._pool.submit(self._read_switch, name)
        wait(self._reading.values(), _ROUND_S)

    def _read_switch(self, name: str) -> None:
        with contextlib.suppress(UnavailableError):
            self._site.look(name, with_alarms=True, timeout_s=_READ_S)
            if (
                self._site.driver(name).capabilities().power
                and time.monotonic() >= self._power_at[name]
            ):
                self._power_at[name] = time.monotonic() + _POWER_S
                self._site.power_dbm(name, timeout_s=_READ_S)

    def _learn_ports(self) -> bool:
        """Read the ports of the switches that reported a change. Return whether any port has changed."""
        with self._unread_lock:
            names, self._unread = self._unread, set()
        changed = False
        for name in sorted(names):
            # One that cannot be asked is gone; it is asked when it connects again.
            with contextlib.suppress(OpenFlowError):
                for port, up in sorted(self._forwarding.learn_ports(name).items()):
                    changed = True
                    peer = str(self._fabric.link_at[port].other(port))
                    log.log(
                        logging.INFO if up else logging.WARNING,
                        "port %s is %s",
                        port,
                        _STATE[up],
                    )
                    self._bus.publish(
                        "packet_switch_port",
                        switch=name,
                        port=port.number,
                        peer=peer,
                        state=_STATE[up],
                    )
        return changed
