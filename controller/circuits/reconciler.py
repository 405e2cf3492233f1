"""The reconciler: brings back what a switch lost while it was away, moves packets off a link that is down.

One thread, which compares what the switches carry with what they should.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from controller.bus import EventBus
from controller.circuits.manager import CircuitManager
from controller.circuits.optical_site import OpticalSite
from controller.errors import UnavailableError
from controller.openflow.errors import OpenFlowError
from controller.openflow.messages import SwitchEvent
from controller.openflow.plane import OpenFlowPlane
from controller.packets.forwarding import Forwarding
from fabric.topology import Fabric, Port

log = logging.getLogger(__name__)

_STATE = {True: "up", False: "down"}


class Reconciler:
    """Reads every optical switch once per ``period_s``; mends rules when a packet switch connects, or says
    that a port went down or came up."""

    def __init__(
        self,
        fabric: Fabric,
        plane: OpenFlowPlane,
        site: OpticalSite,
        circuits: CircuitManager,
        forwarding: Forwarding,
        bus: EventBus,
        *,
        period_s: float = 1.0,
    ) -> None:
        self._fabric = fabric
        self._names = {switch.dpid: name for name, switch in fabric.packet_switches.items()}
        self._plane = plane
        self._site = site
        self._circuits = circuits
        self._forwarding = forwarding
        self._bus = bus
        self._period_s = period_s
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._connected = threading.Event()
        self._unread: set[str] = set()
        self._unread_lock = threading.Lock()
        self._unsubscribe = plane.subscribe(self._switch_event)
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._unsubscribe()
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)

    def _switch_event(self, event: SwitchEvent) -> None:
        name = self._names.get(event.dpid)
        if event.kind == "refused":
            text = f"a second switch claims datapath id {event.dpid}; it was refused"
            self._bus.publish("packet_switch_alarm", switch=name, dpid=event.dpid, text=text)
            return
        if name is None:
            return
        if event.kind in ("connected", "disconnected"):
            up = event.kind == "connected"
            self._bus.publish("packet_switch", switch=name, state="up" if up else "down")
            if up:
                self._connected.set()
                self._read_ports_of(name)
        elif event.port is not None and self._forwarding.is_between_switches(Port(name, event.port.number)):
            self._read_ports_of(name)

    def _read_ports_of(self, switch: str) -> None:
        # What the event says may be old by the time it is acted on: the switch is asked.
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
        with self._circuits.quiet() as quiet:
            if not quiet:
                # A change is under way; it reads and writes all this by itself.
                if self._connected.is_set() or self._unread:
                    self._wake.set()
                    self._stop.wait(0.05)
                return revision
            if self._learn_ports():
                self._forwarding.reconcile(self._circuits.cross_connects())
            for name, view in self._site.views().items():
                if self._site.holder(name) is not None:
                    # Its conductor reads it; a second reader would only be in the way of the next step.
                    continue
                with contextlib.suppress(UnavailableError):
                    self._site.look(name, with_alarms=True, timeout_s=2.0)
                    if not view.reachable:
                        self._circuits.forget_met(name)
            self._circuits.mend()
            now, lit = self._site.revision, self._circuits.cross_connects()
            # A change of ours has brought the rules with it, or left those it did not need to touch.
            if self._connected.is_set() or (now != revision and not self._forwarding.stands(lit)):
                self._connected.clear()
                self._forwarding.reconcile(lit)
            return now

    def _learn_ports(self) -> bool:
        """Ask the switches that said something of their ports; whether anything is new."""
        with self._unread_lock:
            names, self._unread = self._unread, set()
        changed = False
        for name in sorted(names):
            # One that cannot be asked is gone; it is asked when it connects again.
            with contextlib.suppress(OpenFlowError):
                for port, up in sorted(self._forwarding.learn_ports(name).items()):
                    changed = True
                    peer = str(self._fabric.link_at[port].other(port))
                    log.log(logging.INFO if up else logging.WARNING, "port %s is %s", port, _STATE[up])
                    self._bus.publish(
                        "packet_switch_port", switch=name, port=port.number, peer=peer, state=_STATE[up]
                    )
        return changed
