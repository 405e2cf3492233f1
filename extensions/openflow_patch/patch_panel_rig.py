"""A bridge of Open vSwitch as an optical switch, under the OpenFlow driver."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ringlight.controller.openflow.errors import SwitchTimeoutError
from ringlight.controller.openflow.messages import FlowEntry, FlowMod
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.openflow_patch import driver as openflow
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.kernel.netns import set_ipv6_off
from ringlight.testbed.lab import new_lab
from ringlight.testbed.rigs.emulated import HOSTS, PROFILE, SIZE, START_S, forget
from ringlight.testbed.rigs.network import NamespaceNetwork, run
from ringlight.testbed.rigs.rig import Rig


class FaultyPlane:
    """The real plane, with its writes counted and faults on demand."""

    def __init__(self, plane: OpenFlowPlane) -> None:
        self.inner = plane
        self.seen: list[str] = []
        self.lose: bool | None = None
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send_flows(
        self, dpid: int, mods: Sequence[FlowMod], *, timeout_s: float
    ) -> None:
        self.seen.append(f"{[(m.command, dict(m.match), m.out_ports) for m in mods]}")
        lose, self.lose = self.lose, None
        if lose is not False:
            self.inner.send_flows(dpid, mods, timeout_s=timeout_s)
        if lose is not None:
            raise SwitchTimeoutError("no barrier reply")

    def flows(self, dpid: int, *, timeout_s: float) -> list[FlowEntry]:
        if self.broken:
            raise SwitchTimeoutError("no reply")
        return self.inner.flows(dpid, timeout_s=timeout_s)


_FLOW = re.compile(
    r"duration=([\d.]+)s.* n_packets=(\d+).* priority=(\d+),in_port=(\d+) actions=(\S+)"
)


class OpenFlowRig(Rig):
    """A bridge of Open vSwitch's userspace datapath under an OpenFlow plane in this process."""

    DPID = 0x100
    addition, removal = "'add'|'modify", "'delete"
    inputs, outputs = range(1, SIZE + 1), range(SIZE + 1, 2 * SIZE + 1)

    def __init__(self) -> None:
        self._lab = new_lab()
        self._held = self._lab.hold()
        self._bridge = self._lab.bridge("ocs0")
        self._network: NamespaceNetwork | None = None
        self._plane: OpenFlowPlane | None = None
        try:
            ends = [self._lab.interface("ocs0", p) for p in range(1, HOSTS + 1)]
            self._network = NamespaceNetwork(self._lab, ends)
            self.hosts = self._network.hosts
            self._plane = OpenFlowPlane("127.0.0.1", 0)
            self._plane.start()
            self.plane = FaultyPlane(self._plane)
            self._make_bridge(ends)
            self._plane.wait_for([self.DPID], START_S)
            self.wipe()
        except BaseException:
            self.close()
            raise

    def _make_bridge(self, ends: Iterable[str]) -> None:
        br = self._bridge
        command = [
            "add-br",
            br,
            "--",
            "set",
            "bridge",
            br,
            "datapath_type=netdev",
            "fail_mode=secure",
        ]
        command += [
            f"other_config:datapath-id={self.DPID:016x}",
            "other_config:disable-in-band=true",
        ]
        command += ["protocols=OpenFlow13", f"external_ids:ringlight={self._lab.id}"]
        for port, end in enumerate(ends, start=1):
            # An IPv6 stack at the switch's end would send neighbour discovery down the fibre by itself.
            set_ipv6_off(end)
            run("ip", "link", "set", end, "up")
            command += [
                "--",
                "add-port",
                br,
                end,
                "--",
                "set",
                "interface",
                end,
                f"ofport_request={port}",
            ]
        run("ovs-vsctl", "--timeout=15", *command)
        assert self._plane is not None
        run(
            "ovs-vsctl",
            "--timeout=15",
            "set-controller",
            br,
            f"tcp:127.0.0.1:{self._plane.port}",
        )

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            run("ovs-vsctl", "--timeout=15", "--if-exists", "del-br", self._bridge)
        if self._plane is not None:
            self._plane.stop()
        if self._network is not None:
            self._network.close()
        forget(self._lab.state_dir)
        self._held.close()

    def _make(self, dpid: int, plane: Any) -> OpticalSwitchDriver:
        entry = {
            "driver": "openflow",
            "dpid": dpid,
            "profile": profiles()[PROFILE].declared(),
        }
        return make_driver("ocs0", entry, SIZE, plane)

    def driver(self, direct: bool = False) -> OpticalSwitchDriver:
        return self._make(self.DPID, self._plane if direct else self.plane)

    def unreachable(self) -> OpticalSwitchDriver:
        return self._make(0xDEAD, self._plane)

    def _flows(self) -> dict[CrossConnect, tuple[float, int]]:
        """Return duration (seconds) and packets of each cross-connect's flow."""
        flows = {}
        for line in self._ofctl("dump-flows").splitlines():
            match = _FLOW.search(line)
            if match is None:
                continue
            assert int(match[3]) == openflow.PRIORITY, line
            ingress, action = int(match[4]), match[5]
            out = (
                ingress if action == "IN_PORT" else int(action.removeprefix("output:"))
            )
            flows[CrossConnect(ingress, SIZE + out)] = (float(match[1]), int(match[2]))
        return flows

    def truth(self) -> set[CrossConnect]:
        return set(self._flows())

    def lit_since(self, cross_connect: CrossConnect) -> float:
        """Return the time of the last write of a cross-connect, in monotonic seconds."""
        return time.monotonic() - self._flows()[cross_connect][0]

    def packets(self, cross_connect: CrossConnect) -> int:
        return self._flows()[cross_connect][1]

    def external_connect(self, cross_connect: CrossConnect) -> None:
        flow = (
            f"cookie=0x99,priority={openflow.PRIORITY},in_port={cross_connect.ingress},"
            f"actions=output:{cross_connect.egress - SIZE}"
        )
        self._ofctl("add-flow", flow)

    def wipe(self) -> None:
        """Leave the bridge as Open vSwitch starts it without a controller: flooding."""
        self._ofctl("del-flows")
        self._ofctl("add-flow", "priority=0,actions=NORMAL")

    def _ofctl(self, verb: str, *arguments: str) -> str:
        return run(
            "ovs-ofctl",
            "-O",
            "OpenFlow13",
            "--no-names",
            verb,
            self._bridge,
            *arguments,
        )

    def writes(self) -> list[str]:
        seen, self.plane.seen = self.plane.seen, []
        return seen

    def lose_next_reply(self, effect: bool) -> None:
        self.plane.lose = effect

    @contextmanager
    def broken_reads(self) -> Iterator[None]:
        self.plane.broken = True
        try:
            yield
        finally:
            self.plane.broken = False

    def plug(self, faceplate: int, plugged: bool) -> None:
        self.hosts[faceplate].plug(plugged)

    def drop_sessions(self) -> None:
        # Taking the controller's address from the bridge would flush its flows; a controller that dies
        # and comes back does not.
        assert self._plane is not None
        self._plane.stop()
        self._plane = OpenFlowPlane("127.0.0.1", self._plane.port)
        self._plane.start()
        self.plane.inner = self._plane
        self._plane.wait_for([self.DPID], START_S)
