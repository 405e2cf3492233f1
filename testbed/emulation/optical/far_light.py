"""Light that other switches of the lab send to this one, and the power that it leaves receivers.

Light is continuous, packets are not: what reaches a switch is not learnt from packets but from the maps of
the switches before it, which every switch of a lab may read. Whoever changes a path says to the last switch
on it, in that one's own map, whether the receiver gets enough.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ringlight.fabric.light import (
    Fibres,
    Optics,
    Wires,
    arriving_dbm,
    dimness,
    most_loss_db,
)
from ringlight.fabric.optical_profiles import profiles
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.kernel import ebpf
from ringlight.testbed.emulation.optical.datapath import Datapath
from ringlight.testbed.emulation.optical.device import OpticalDevice


@dataclass(frozen=True)
class LightPlan:
    """Facts about the lab's light that a switch needs.

    ``pins``: directory in bpffs of each switch. ``scarce``: the light of some path might be too weak for its
    receiver, so that every change must be followed.
    """

    fibres: Fibres
    pins: Mapping[str, Path]
    scarce: bool

    def write(self, path: Path) -> None:
        written = {
            "optics": asdict(self.fibres.optics),
            "size": dict(self.fibres.size),
            "far": [[*near, *far] for near, far in self.fibres.far.items()],
            "pins": {name: str(pins) for name, pins in self.pins.items()},
            "scarce": self.scarce,
        }
        path.write_text(json.dumps(written), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LightPlan:
        """Read a plan from a file and return it. Raises OSError or ValueError."""
        written = json.loads(path.read_text(encoding="utf-8"))
        far = {(a, p): (b, q) for a, p, b, q in written["far"]}
        fibres = Fibres(Optics(**written["optics"]), written["size"], far)
        return cls(
            fibres,
            {name: Path(pins) for name, pins in written["pins"].items()},
            written["scarce"],
        )


def light_plan(fabric: Fabric, directory: Path) -> LightPlan:
    """Plan the light of a fabric's lab and return the plan. ``directory``: in bpffs, with a directory of each
    switch."""
    switches = {
        name: s for name, s in fabric.optical_switches.items() if s.has_datapath
    }
    far = {
        (near.node, near.number): (end.node, end.number)
        for link in fabric.links
        for near, end in ((link.a, link.b), (link.b, link.a))
        if near.node in switches and end.node in switches
    }
    losses = [profiles()[s.profile].losing(s.loss_db) for s in switches.values()]
    optics = fabric.optics
    longest = losses if far else sorted(losses, key=lambda p: p.loss_max_db)[-1:]
    worst = most_loss_db(
        optics, [profile.loss_max_db + profile.repeatability_db for profile in longest]
    )
    return LightPlan(
        Fibres(optics, {name: s.size for name, s in switches.items()}, far),
        {name: directory / name for name in switches},
        not optics.is_enough(optics.launch_dbm - worst),
    )


class FarLight:
    """The lab's light as one switch sees it: its own cross-connects, and the others' in their maps."""

    def __init__(
        self, plan: LightPlan, name: str, device: OpticalDevice, datapath: Datapath
    ) -> None:
        self._plan, self._name = plan, name
        self._device, self._datapath = device, datapath
        self._others: dict[str, Datapath] = {}
        receivers = [
            device.size + port
            for port in range(1, device.size + 1)
            if (name, port) not in plan.fibres.far
        ]
        optics = plan.fibres.optics
        device.arriving_dbm = self.arriving_dbm
        device.least_dbm = dict.fromkeys(
            receivers, optics.sensitivity_dbm + optics.fibre_db
        )

    def close(self) -> None:
        for datapath in self._others.values():
            datapath.close()

    def arriving_dbm(self, ingress: int, wavelength: int | None) -> float | None:
        """Return the power (dBm) that arrives at an ingress, None without light. No light arrives from a
        switch that is not up yet."""
        return arriving_dbm(
            self._plan.fibres, self._wires, self._name, ingress, wavelength
        )

    def follow(self) -> None:
        """Say which receivers get too little, after a change that this switch's maps need not have yet."""
        if not self._plan.scarce:
            return
        read: dict[str, Wires] = {}

        def wires(name: str) -> Wires:
            if name not in read:
                read[name] = self._wires(name)
            return read[name]

        for name in self._plan.pins:
            datapath = self._datapath if name == self._name else self._other(name)
            if datapath is not None:
                datapath.set_dim(dimness(self._plan.fibres, wires, name))

    def _wires(self, name: str) -> Wires:
        if name == self._name:
            return self._device.wires()
        datapath = self._other(name)
        return {} if datapath is None else datapath.wires()

    def _other(self, name: str) -> Datapath | None:
        if name not in self._others:
            try:
                self._others[name] = Datapath.resume(self._plan.pins[name])
            except ebpf.EbpfError:
                return None
        return self._others[name]
