"""A lab that runs in other processes: what it is made of, and where each of its nodes and ports is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed import services
from ringlight.testbed.emulation.__main__ import load_fabric
from ringlight.testbed.faults import FaultClient, FaultError
from ringlight.testbed.lab import NIC, SECOND_NIC, STATE_ROOT, Lab, LabError
from ringlight.testbed.standing_labs import dead_labs, gone


@dataclass(frozen=True)
class OtherMachine:
    """Another machine of a lab. ``name``: as messages have it. ``run``: route of the lab's server agent that
    runs commands there."""

    name: str
    run: str


@dataclass(frozen=True)
class NodePlace:
    """Place of a node's interfaces. ``namespace``: path of its network namespace, None: the machine's own.

    ``container``: of the job that holds the GPU. ``elsewhere``: the machine, if it is another.
    """

    namespace: str | None
    container: str | None = None
    elsewhere: OtherMachine | None = None

    def command(self, words: Sequence[str]) -> list[str]:
        """Return ``words`` as a command in this network, with the machine's programs and files.

        Raises LabError if the network is on another machine.
        """
        if self.elsewhere is not None:
            raise LabError(
                f"{words[0]}: only on {self.elsewhere.name} itself, where that node is"
            )
        return (
            [*words]
            if self.namespace is None
            else ["nsenter", f"--net={self.namespace}", "--", *words]
        )


@dataclass(frozen=True)
class Spot:
    """An interface: what it is called, and where."""

    place: NodePlace
    interface: str


@dataclass(frozen=True)
class Attached:
    """A lab that is up. Methods raise LabError with one line.

    ``rest``, ``scenario``: where its controller listens and what it is of, where ``up`` has left that;
    ``cacert``: its certificate, if it has one.
    """

    lab: Lab
    inventory: Mapping[str, Any]
    fabric: Fabric
    rest: str | None
    scenario: str | None
    cacert: str | None = None

    @cached_property
    def nodes(self) -> dict[str, str]:
        """Every node by name, with its kind, in the order of the fabric."""
        fabric = self.fabric
        kinds = (
            (fabric.gpus, "gpu"),
            ([f"onic-{gpu}" for gpu in fabric.onics], "o-nic"),
            (fabric.packet_switches, "packet switch"),
            (
                {
                    n: s
                    for n, s in fabric.optical_switches.items()
                    if s.wavelengths is None
                },
                "optical switch",
            ),
            (
                {
                    n: s
                    for n, s in fabric.optical_switches.items()
                    if s.wavelengths is not None
                },
                "wss",
            ),
        )
        return {name: kind for names, kind in kinds for name in names} | dict(
            fabric.devices
        )

    @property
    def scale(self) -> float:
        """Real over emulated bits per second."""
        return float(self.inventory["time_dilation"]) * float(
            self.inventory["payload_scale"]
        )

    def hosts(self, *, fill: bool = True) -> dict[str, dict[str, Any]]:
        """Return the host at each GPU's NIC, by GPU. ``fill``: create an idle host for each GPU without a
        host. Raises LabError."""
        try:
            with FaultClient(str(self.inventory["agent"])) as agent:
                return {entry["gpu"]: entry for entry in agent.hosts(fill=fill)}
        except FaultError as error:
            raise LabError(f"lab {self.lab.id}: {error}") from None

    def place(self, name: str) -> NodePlace:
        """Return the place of a node. A GPU that no job holds gets an idle host. Raises LabError."""
        kind = self.nodes.get(name)
        if kind is None:
            raise LabError(f"there is no node {name}; there is {_listed(self.nodes)}")
        if kind == "gpu":
            return self._of_host(self.hosts()[name])
        optical = self.fabric.optical_switches.get(name)
        is_bridge = optical is not None and optical.is_bridge
        namespace = (
            None
            if kind == "packet switch" or is_bridge
            else f"/run/netns/{self._lab_of(name).namespace(name)}"
        )
        return NodePlace(namespace, elsewhere=_elsewhere(self._entry(name)))

    def bridge(self, switch: str) -> str:
        """Return the name of a packet switch's Open vSwitch bridge on the machine of the switch."""
        return self._lab_of(switch).bridge(switch)

    def _entry(self, node: str) -> Mapping[str, Any]:
        """Return the inventory's entry of a switch, empty for another node."""
        there = (
            self.inventory.get(part, {})
            for part in ("packet_switches", "optical_switches")
        )
        return next((entries[node] for entries in there if node in entries), {})

    def _lab_of(self, node: str) -> Lab:
        """The lab by which things of a node are named: another machine's has an id of its own."""
        return Lab(self._entry(node).get("lab", self.lab.id))

    def _of_host(self, entry: Mapping[str, Any]) -> NodePlace:
        if entry["namespace"] is None:
            plugged = Port(entry["gpu"], 0) in self.fabric.link_at
            why = (
                f"job {entry.get('job')} starts or ends there"
                if plugged
                else "it is not plugged into anything"
            )
            raise LabError(f"nothing is at {entry['gpu']}'s NIC: {why}")
        return NodePlace(entry["namespace"], entry.get("container"), _elsewhere(entry))

    def places(self) -> dict[str, NodePlace]:
        """Return the place of each GPU's host, for GPUs that have a host."""
        hosts = self.hosts()
        return {
            gpu: self._of_host(entry)
            for gpu, entry in hosts.items()
            if entry["namespace"] is not None
        }

    def owner(self, port: Port) -> str:
        """Return the node that has a port's interface. A GPU's fibre port belongs to its O-NIC."""
        return f"onic-{port.node}" if port.node in self.fabric.onics else port.node

    def interface(self, port: Port) -> str:
        """Return the name that the interface of a port of the fabric has in its own network."""
        node = self.owner(port)
        kind = self.nodes[node]
        if kind == "gpu":
            return SECOND_NIC if port.number else NIC
        return (
            self._lab_of(node).interface(node, port.number)
            if self._is_bridge(node)
            else f"p{port.number}"
        )

    def _is_bridge(self, node: str) -> bool:
        optical = self.fabric.optical_switches.get(node)
        return node in self.fabric.packet_switches or (
            optical is not None and optical.is_bridge
        )

    def environment(self) -> dict[str, str]:
        """Return the environment for commands in the lab. It marks their processes, so that they end when the
        lab is removed."""
        return self.lab.environment()

    def run(
        self, place: NodePlace, words: Sequence[str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run one command in a node's network, on any machine. Return the finished command with its captured
        output. Raises TimeoutExpired, OSError, and LabError if another machine reports a failure."""
        if (there := place.elsewhere) is not None:
            try:
                with FaultClient(str(self.inventory["agent"])) as agent:
                    reply = agent.run(there.run, place.namespace, words, timeout_s)
            except FaultError as error:
                raise LabError(str(error)) from None
            return subprocess.CompletedProcess(
                list(words), reply["code"], reply["stdout"], reply["stderr"]
            )
        return subprocess.run(
            place.command(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self.environment(),
        )


def _elsewhere(entry: Mapping[str, Any]) -> OtherMachine | None:
    """Return the machine that an entry of the inventory, or of the hosts at NICs, names; None: this."""
    there = entry.get("elsewhere")
    return None if there is None else OtherMachine(**there)


def attach(lab_id: str | None) -> Attached:
    """Return the lab with that id, or the only lab that is up. Raises LabError."""
    if os.geteuid() != 0:
        raise LabError(services.root_needed("look into a lab"))
    up = labs_up()
    if lab_id is not None:
        lab = Lab(lab_id)
        if lab in dead_labs():
            raise LabError(gone(lab))
        if lab_id not in up:
            raise LabError(
                f"lab {lab_id} is not up; there is {', '.join(up) or 'none'}"
            )
    elif len(up) == 1:
        lab = Lab(up[0])
    elif up:
        raise LabError(f"several labs are up; name one of {', '.join(up)}")
    elif dead := dead_labs():
        raise LabError(f"no lab is up; {gone(dead[0])}")
    else:
        raise LabError("no lab is up; start one with: ringlight up SCENARIO")
    return of_lab(lab)


def of_lab(lab: Lab) -> Attached:
    """Return a lab as described by its files. Raises LabError if the files cannot be read."""
    try:
        inventory = json.loads(
            (lab.state_dir / "inventory.json").read_text(encoding="utf-8")
        )
        fabric = load_fabric(lab.state_dir / "fabric.json")
        standing = lab.state_dir / "standing.json"
        known = (
            json.loads(standing.read_text(encoding="utf-8"))
            if standing.exists()
            else {}
        )
    except (OSError, ValueError, KeyError) as error:
        raise LabError(f"lab {lab.id} cannot be read: {error}") from None
    return Attached(
        lab,
        inventory,
        fabric,
        known.get("rest"),
        known.get("scenario"),
        known.get("cacert"),
    )


def labs_up() -> list[str]:
    """Return the ids of labs that are built and alive."""
    built = sorted(path.parent.name for path in STATE_ROOT.glob("*/inventory.json"))
    return [name for name in built if Lab(name).is_alive()]


def _listed(names: Mapping[str, str]) -> str:
    return (
        ", ".join(names)
        if len(names) <= 24
        else f"{', '.join([*names][:24])} … ({len(names)})"
    )
