"""Agents of a lab's emulated O-NICs as processes, each in the namespace of its O-NIC."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ringlight.fabric.topology import Fabric
from ringlight.testbed import deaths
from ringlight.testbed.emulation.fault_courses import Kept
from ringlight.testbed.emulation.kept_processes import START_S, KeptProcesses
from ringlight.testbed.emulation.kernel import namespaces
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.onic.wiring import (
    control_ip,
    laser_ids,
    onic_directory,
)
from ringlight.testbed.emulation.settings import Settings
from ringlight.testbed.process_start import Process
from ringlight.testbed.supervision import answers

#: Where every O-NIC's agent listens on the control network.
AGENT_PORT = 7900


class OnicProcesses:
    """The agents of a lab's O-NICs. Methods raise TestbedError."""

    def __init__(
        self,
        settings: Settings,
        processes: KeptProcesses,
        network: LabNetwork,
        undo: ExitStack,
    ) -> None:
        self._settings, self._processes = settings, processes
        self._network, self._undo = network, undo

    def launch(self) -> None:
        """Make the O-NICs' directories, and start their agents. Raises OSError."""
        fabric, state = self._settings.fabric, self._settings.state
        agents = _asked(fabric)
        if not agents:
            return
        if self._settings.runtime == "namespace":
            # Workers are users of this machine then, and pass through here to their flow sockets.
            for directory in {state, self._settings.lab.state_dir}:
                directory.chmod(0o711)
        self._undo.callback(shutil.rmtree, state / "onics", ignore_errors=True)
        for gpu in agents:
            onic_directory(state, gpu).mkdir(mode=0o755, parents=True)
        starts = {gpu: partial(self._start_agent, gpu) for gpu in fabric.agents}
        self._processes.keep("O-NIC agent", "the agent of O-NIC", starts, "onics")

    def _start_agent(self, gpu: str) -> Process:
        """One agent in its O-NIC's namespace."""
        settings = self._settings
        node = self._network.places.onics[gpu]
        directory = onic_directory(settings.state, gpu)
        command = [
            *(
                sys.executable,
                "-S",
                "-m",
                "ringlight.testbed.emulation.onic",
                "--gpu",
                gpu,
            ),
            *(
                "--listen",
                f"{control_ip(node.gpu)}:{AGENT_PORT}",
                "--directory",
                str(directory),
            ),
            *("--pins", str(node.pins), "--lasers", str(laser_pin(settings))),
            *("--laser-ids", ",".join(map(str, laser_ids(settings.fabric, gpu)))),
            *("--tuning", repr(settings.fabric.onics[gpu].tuning_s)),
            *("--lease", repr(settings.onic_lease_s)),
            *("--time-dilation", repr(settings.emulation.time_dilation)),
            *(["--allow-faults"] if settings.onic_faults else []),
        ]
        assert node.namespace is not None
        # A child inherits the namespace of the thread that forks it.
        return namespaces.in_namespace(
            node.namespace,
            partial(self._processes.spawn, command, directory / "agent.log"),
        )

    def await_ready(self) -> None:
        """Wait until every agent answers on its management socket."""
        deadline = time.monotonic() + START_S
        for gpu in self._settings.fabric.agents:
            directory = onic_directory(self._settings.state, gpu)
            ready = partial(answers, directory / "manage.sock")
            self._processes.await_ready(
                self._processes.by_part["onics"],
                gpu,
                ready,
                directory / "agent.log",
                deadline,
            )

    def disturbable(self) -> dict[str, Path] | None:
        """Return the management sockets of agents that can be ordered to lose messages, None if none can."""
        if not self._settings.onic_faults:
            return None
        return {
            gpu: onic_directory(self._settings.state, gpu) / "manage.sock"
            for gpu in self._settings.fabric.agents
        }

    def _flow_socket(self, gpu: str) -> str:
        """The socket of the agent, or of a ring's controller, for flows, as the GPU's worker sees it."""
        if self._settings.runtime == "docker":
            return "/onic/flow.sock"
        return str(onic_directory(self._settings.state, gpu) / "flow.sock")

    def kept(self) -> dict[deaths.ProcessKind, Kept]:
        """Return the supervised processes, if there are any, by what faults call them."""
        kept = self._processes.by_part.get("onics")
        return {} if kept is None else {"agent": Kept(kept, self._answers)}

    def _answers(self, gpu: str) -> bool:
        return answers(onic_directory(self._settings.state, gpu) / "manage.sock")

    def inventory(self) -> dict[str, Any]:
        """Return the part of the lab's inventory with all O-NICs."""
        fabric, state = self._settings.fabric, self._settings.state
        lives = self._processes.lives("onics")
        onics: dict[str, dict[str, Any]] = {
            gpu: {
                "transmitters": onic.transmitters,
                **({"standing": True} if onic.standing else {}),
            }
            for gpu, onic in fabric.onics.items()
        }
        for gpu in _asked(fabric):
            onics[gpu] |= {
                "flow": self._flow_socket(gpu),
                "directory": str(onic_directory(state, gpu)),
            }
        for gpu in fabric.agents:
            onics[gpu] |= {
                "manage": str(onic_directory(state, gpu) / "manage.sock"),
                "control": f"{control_ip(fabric.gpus[gpu])}:{AGENT_PORT}",
                "laser_ids": list(laser_ids(fabric, gpu)),
                "pid": lives[gpu].pid,
            }
        return {"onics": onics}


def _asked(fabric: Fabric) -> tuple[str, ...]:
    """GPUs whose O-NICs somebody asks for light, at a socket in the O-NIC's directory."""
    return tuple(gpu for gpu, onic in fabric.onics.items() if not onic.standing)


def laser_pin(settings: Settings) -> Path:
    """Return where the table of all lasers of a lab is pinned."""
    return settings.lab.bpf_dir / "lasers"
