"""Controllers of a lab's packet switches: where each switch finds the controller that writes its tables."""

from __future__ import annotations

from collections.abc import Mapping

from ringlight.fabric.parts import OURS
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.bridges import (
    RECONNECT_MS,
    ControllerAddress,
    PacketSwitch,
)
from ringlight.testbed.emulation.node_ports import NodePorts
from ringlight.testbed.emulation.port_states import PortStates


class SwitchControllers:
    """``ours``: address of our controller. ``programs``: addresses of the programs that write tables, by the
    controller's name in the fabric."""

    def __init__(
        self,
        places: NodePorts,
        states: PortStates,
        ours: ControllerAddress,
        programs: Mapping[str, ControllerAddress],
    ) -> None:
        self._places, self._states = places, states
        self.ours, self._programs = ours, programs

    def target_of(self, name: str) -> str | None:
        """Return the controller that a switch's bridge connects to, as Open vSwitch writes it, or None
        without one."""
        bridge = self._places.nodes[name]
        assert isinstance(bridge, PacketSwitch)
        return next((where.target for where in self._controllers_of(bridge)), None)

    def _controllers_of(self, bridge: PacketSwitch) -> list[ControllerAddress]:
        """Address of the controller that writes a bridge's tables: one, or none."""
        match bridge.controller:
            case "none":
                return []
            case controller if controller == OURS:
                return [self.ours]
            case other:
                return [self._programs.get(other) or ControllerAddress.parse(other)]

    def handed_over(self) -> dict[str, tuple[str, str]]:
        """Return the bridge and the controller's address in the fabric of each packet switch here
        that connects to a foreign controller, by switch."""
        return {
            name: (
                self._places.lab.bridge(name),
                self._places.fabric.packet_switches[name].controller,
            )
            for name in self._places.fabric.foreign_switches
            if self._places.share.is_here(name) and self.target_of(name) is not None
        }

    def hand_over(self) -> None:
        """Have the switches that are left to others look for their controllers.

        Last, when the cables between switches are up: Faucet has a switch tell nothing of its ports between
        its question for them and the end of its set-up, and never learns of one that comes up just then.
        """
        words: list[str] = []
        for name, (bridge, _) in self.handed_over().items():
            self._states.await_carriers(name)
            words += [
                "--",
                f"--id=@{name}",
                "create",
                "Controller",
                f'target="{self.target_of(name)}"',
            ]
            words += [
                f"max_backoff={RECONNECT_MS}",
                "--",
                "set",
                "Bridge",
                bridge,
                f"controller=@{name}",
            ]
        if words:
            openvswitch.vsctl(*words[1:])
