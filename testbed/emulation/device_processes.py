"""Processes of a lab's devices, each in the namespace of its node."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from ringlight.testbed import deaths
from ringlight.testbed.devices import NodeProcess, NodeProcesses
from ringlight.testbed.emulation.kept_processes import Kept, KeptProcesses
from ringlight.testbed.emulation.kernel import namespaces
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.process_start import Process


class DeviceProcesses:
    """The processes of the devices that a network has. Methods raise TestbedError."""

    def __init__(self, processes: KeptProcesses, network: LabNetwork) -> None:
        self._processes, self._network = processes, network
        self._groups = network.node_processes()

    def launch(self) -> None:
        """Start them."""
        for group in self._groups:
            starts = {
                name: partial(self._start_node, name, process)
                for name, process in group.by_node.items()
            }
            self._processes.keep(group.kind, group.kind, starts, group.part)

    def _start_node(self, name: str, process: NodeProcess) -> Process:
        # A child inherits the namespace of the thread that forks it.
        return namespaces.in_namespace(
            self._network.namespace(name),
            partial(self._processes.spawn, process.command(), process.log),
        )

    def await_ready(self) -> None:
        """Wait until every process of a device answers."""
        for group in self._groups:
            deadline = time.monotonic() + group.start_s
            for name, process in group.by_node.items():
                kept = self._processes.by_part[group.part]
                self._processes.await_ready(
                    kept, name, process.answers, process.log, deadline
                )

    def kept(self) -> dict[deaths.ProcessKind, Kept]:
        """Return the supervised processes, by what the fabric and faults call them."""
        there = self._processes.by_part
        return {
            group.kind: Kept(there[group.part], partial(_answers, group))
            for group in self._groups
            if group.part in there
        }

    def inventory(self) -> dict[str, Any]:
        """Return the parts of the lab's inventory."""
        return {
            group.part: {
                name: {"pid": life.pid, **group.by_node[name].entry}
                for name, life in lives.items()
            }
            for group in self._groups
            if (lives := self._processes.lives(group.part))
        }


def _answers(group: NodeProcesses, name: str) -> bool:
    return group.by_node[name].answers()
