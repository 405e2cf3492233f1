"""An Open vSwitch bridge as a patch panel, for hosts that cannot run the eBPF datapath.

Bridge port p stands for faceplate port p. One flow is one cross-connect: what comes in at ingress i goes
out at faceplate e - size; its cookie names the owner. Everything else meets a drop flow. A kept flow is
never written again, so its counters go on.

A bridge forwards as soon as a flow is there, so the dark window is made here: the driver waits before it
adds. While it waits the ports' old flows are gone and the drop flow swallows what arrives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ringlight.controller.openflow.errors import (
    NotConnectedError,
    OpenFlowError,
    SwitchRefusedError,
    SwitchTimeoutError,
)
from ringlight.controller.openflow.messages import FlowEntry, FlowMod
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    DeadlineExceeded,
    Indeterminate,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.model import (
    Alarm,
    Capabilities,
    Identity,
    PortStatus,
    Snapshot,
    Timing,
    dual_sided,
)
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

if TYPE_CHECKING:
    from ringlight.controller.openflow.plane import OpenFlowPlane

#: Cookie of the flows that Ringlight makes ("RLXC").
OWNER = 0x524C5843
PRIORITY = 100
DROP_PRIORITY = 1
MAX_BATCH = 256
#: OFPP_IN_PORT: back out of the port it came in by, which OpenFlow does only when told in so many words.
IN_PORT = 0xFFFFFFF8


# Flows and cross-connects


def flow_of(
    cross_connect: CrossConnect,
    size: int,
    command: Literal["add", "delete_strict"] = "add",
) -> FlowMod:
    """Return the flow change that adds (or deletes) this cross-connect."""
    ingress, out = cross_connect.ingress, cross_connect.egress - size
    return FlowMod(
        command,
        PRIORITY,
        {"in_port": ingress},
        (IN_PORT if out == ingress else out,),
        OWNER,
    )


def is_drop(flow: FlowEntry | FlowMod) -> bool:
    return (
        flow.priority == DROP_PRIORITY
        and not flow.match
        and not flow.out_ports
        and flow.table_id == 0
    )


def cross_connect_of(flow: FlowEntry, size: int) -> CrossConnect | None:
    """Return the cross-connect that a flow makes; None for a flow that the drop flow hides.

    Raises ProtocolError for a flow that a patch panel does not have.
    """
    if flow.table_id == 0 and (flow.priority < DROP_PRIORITY or is_drop(flow)):
        return None
    ingress = flow.match.get("in_port")
    if (
        flow.table_id != 0
        or flow.priority != PRIORITY
        or set(flow.match) != {"in_port"}
        or not isinstance(ingress, int)
        or len(flow.out_ports) != 1
    ):
        raise ProtocolError(
            f"a flow that is no cross-connect: table {flow.table_id}, priority {flow.priority}, "
            f"match {dict(flow.match)}, output {flow.out_ports}, cookie {flow.cookie:#x}"
        )
    out = ingress if flow.out_ports[0] == IN_PORT else flow.out_ports[0]
    return CrossConnect(ingress, size + out)


def cross_connects_of(
    flows: Iterable[FlowEntry], size: int
) -> tuple[dict[CrossConnect, CrossConnectState], frozenset[CrossConnect]]:
    """Return the cross-connects that flows are with their states, and those of other owners.

    A bridge may hold flows from two ingress ports to one egress port, which no optical switch has: then the
    older one stands, and the other one is INVALID. Raises ProtocolError as :func:`cross_connect_of`.
    """
    states: dict[CrossConnect, CrossConnectState] = {}
    foreign, taken = set[CrossConnect](), set[int]()
    for flow in sorted(flows, key=lambda flow: -flow.duration_s):
        cross_connect = cross_connect_of(flow, size)
        if cross_connect is None:
            continue
        second = cross_connect.egress in taken
        states[cross_connect] = (
            CrossConnectState.INVALID if second else CrossConnectState.CONNECTED
        )
        taken.add(cross_connect.egress)
        if flow.cookie != OWNER:
            foreign.add(cross_connect)
    return states, frozenset(foreign)


# The driver


class OpenFlowDriver(OpticalSwitchDriver):
    """The bridge of the inventory entry ``{"dpid": 257, "profile": {…}}`` on the plane that it connects to.
    Flows with another cookie belong to another owner."""

    def __init__(
        self,
        name: str,
        keys: Mapping[str, Any],
        size: int,
        openflow: OpenFlowPlane | None,
    ) -> None:
        if openflow is None:
            raise ValueError(
                f"optical switch {name}: the driver openflow needs an OpenFlow plane"
            )
        # A bridge takes a command at once; only the dark window of the profile is made here.
        timing = Timing(dark=Timing.from_profile(keys.get("profile", {})).dark)
        super().__init__(
            name, Capabilities(*dual_sided(size), MAX_BATCH, timing, ownership=True)
        )
        self._plane = openflow
        self._dpid = int(keys["dpid"])
        self._drop_seen = False

    def _open(self, deadline: Deadline) -> Identity:
        with self._asking():
            self._plane.wait_for([self._dpid], deadline.check())
            who = self._plane.desc(self._dpid, timeout_s=deadline.check())
        self._read(deadline)
        if not self._drop_seen:
            self._write([], deadline)
        return Identity(who.manufacturer, who.hardware, who.serial_number, who.software)

    def _read(self, deadline: Deadline) -> Snapshot:
        with self._asking():
            flows = self._plane.flows(self._dpid, timeout_s=deadline.check())
        self._drop_seen = any(is_drop(flow) for flow in flows)
        cross_connects, foreign = cross_connects_of(flows, self.size)
        used = {port for xc in cross_connects for port in (xc.ingress, xc.egress)}
        ports = {
            port: PortStatus(PortState.TUNED if port in used else PortState.BLOCKED)
            for port in self._capabilities.ports
        }
        return Snapshot(self.name, cross_connects, ports, foreign)

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._write([flow_of(xc, self.size, "delete_strict") for xc in batch], deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        deadline.sleep_until(
            time.monotonic() + self._capabilities.timing.dark.typical_s
        )
        self._write([flow_of(xc, self.size) for xc in batch], deadline)

    def _write(self, mods: Sequence[FlowMod], deadline: Deadline) -> None:
        """Send flow changes and their barrier; the drop flow first if a restarted bridge lost it.

        Raises Unreachable, Refused, Indeterminate.
        """
        if self._dpid not in self._plane.connected():
            raise Unreachable(f"bridge {self._dpid:#x} is not connected")
        drop = [] if self._drop_seen else [FlowMod("add", DROP_PRIORITY, {}, (), OWNER)]
        timeout_s = deadline.check()
        try:
            self._plane.send_flows(self._dpid, [*drop, *mods], timeout_s=timeout_s)
        except SwitchRefusedError as error:
            raise Refused(str(error)) from error
        except OpenFlowError as error:
            raise Indeterminate(str(error)) from error
        self._drop_seen = True

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except NotConnectedError as error:
            raise Unreachable(str(error)) from error
        except SwitchTimeoutError as error:
            raise DeadlineExceeded(str(error)) from error
        except OpenFlowError as error:
            raise ProtocolError(str(error)) from error

    def _alarms(self, snapshot: Snapshot, deadline: Deadline) -> Iterable[Alarm]:
        with self._asking():
            plugged = {
                port.number: port.up
                for port in self._plane.ports(self._dpid, timeout_s=deadline.check())
            }
        if not self._drop_seen:
            yield Alarm(
                "SWITCH", None, "the drop flow is missing: the bridge was restarted"
            )
        for port in sorted(xc.ingress for xc in snapshot.cross_connects):
            if not plugged.get(port, False):
                what = "is down" if port in plugged else "has nothing plugged in"
                yield Alarm("LOS", port, f"port {port} {what}: no light")
