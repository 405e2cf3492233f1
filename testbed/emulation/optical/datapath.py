"""The light paths of one device: BPF maps, their pins, and the faceplate interfaces that use them.

Port numbers are those of the device; this module gives them no meaning beyond "light enters here" and
"light leaves there", so that any switch that steers light by (port, wavelength) can use it. Times are
CLOCK_MONOTONIC nanoseconds, the clock of the kernel program.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ringlight.testbed.emulation.kernel import ebpf
from ringlight.testbed.emulation.kernel.build import build_object
from ringlight.testbed.emulation.kernel.survival import POWERS, survival
from ringlight.testbed.emulation.optical.commands import (
    Admin,
    Recovery,
    Spot,
    Stored,
    TunedEgress,
)

#: The program of a switch that passes every colour alike, of one that tells wavelengths apart by the lasers
#: plugged into it, and of one that does by the light itself.
PROGRAM, SELECTIVE_PROGRAM, TAGGED_PROGRAM = (
    "cross_connect_ingress",
    "wavelength_ingress",
    "tagged_ingress",
)
#: Raise when a map's shape changes: a device never resumes maps that it would misread.
LAYOUT = 4
#: Most faceplate ports of a WSS: the kernel program looks at each when light is newly tuned.
MAX_SELECTIVE_PORTS = 128

#: Ports begin at 1.
_NO_PORT = 0

_U32 = struct.Struct("=I")
_LIGHT = struct.Struct("=II")
_CROSS_CONNECT = struct.Struct("=IIQQ")
_PORT = struct.Struct("=II")
#: Whether it is dark; shares of survival.
_DIM = struct.Struct(f"={1 + POWERS}Q")
_LABEL = struct.Struct("=64s")
_IDENTITY = struct.Struct("=IIII64s")
SOURCE = Path(__file__).with_name("crossconnect.c")
_SOURCE = struct.Struct("=IIQ")


@dataclass(frozen=True)
class Counters:
    """Counters of one port since the device was first switched on. None of the counts ever falls.

    ``rx_*`` and the drops count at the ingress where light entered, ``tx_*`` at the egress where it left.
    ``dark_drops``: the cross-connect was not ready. ``unset_drops``: there was no cross-connect.
    ``blocked_drops``: a port on the way is disabled or failed. ``unplugged_drops``: no interface at the
    egress. ``dim_drops``: the light would be too weak at its receiver. ``error_drops``: it would be weak
    there, and a bit was wrong.

    Times are in nanoseconds, 0 for never. ``last_ns``: the last packet passed. ``gone_ns`` and ``lit_ns``:
    the last packet before and the first after the latest change of this port's cross-connect, so that
    :attr:`dark_s` is the dark time seen on the wire.

    A WSS counts as ``dark_drops`` also packets without light from the transmitter or without a colour, and as
    ``unset_drops`` those on a wavelength that has no cross-connect. If it knows the lasers, it counts at its
    egresses, when a newly tuned ingress sends its first packet there, the other ingresses that are lit
    towards the egress at that moment: ``receiver_overlaps``, and ``collisions`` if they have the same
    wavelength.
    """

    rx_packets: int = 0
    rx_bytes: int = 0
    tx_packets: int = 0
    tx_bytes: int = 0
    dark_drops: int = 0
    unset_drops: int = 0
    blocked_drops: int = 0
    unplugged_drops: int = 0
    gone_ns: int = 0
    lit_ns: int = 0
    last_ns: int = 0
    collisions: int = 0
    receiver_overlaps: int = 0
    dim_drops: int = 0
    error_drops: int = 0

    @property
    def dark_s(self) -> float | None:
        """Seconds without a packet at the latest change; None before a change between two packets."""
        return (self.lit_ns - self.gone_ns) / 1e9 if self.gone_ns else None


_COUNTERS = struct.Struct(f"={len(fields(Counters))}Q")

_SIZES = {
    "port_of_ifindex": (_U32.size, _U32.size),
    "cross_connects": (_LIGHT.size, _CROSS_CONNECT.size),
    "dim": (_LIGHT.size, _DIM.size),
    "ports": (_U32.size, _PORT.size),
    "counters": (_U32.size, _COUNTERS.size),
    "labels": (_U32.size, _LABEL.size),
    "identity": (_U32.size, _IDENTITY.size),
    "sources": (_U32.size, _SOURCE.size),
}


@dataclass(frozen=True)
class Selective:
    """Traits of a WSS: its number of wavelengths, the lab's lasers (descriptor of their map), and the laser
    that is plugged into each ingress.

    Without lasers each packet carries its colour itself: its 802.1Q tag is channel + 1.
    """

    wavelengths: int
    lasers: int | None = None
    laser_of_ingress: Mapping[int, int] = field(default_factory=dict)

    @property
    def tagged(self) -> bool:
        return self.lasers is None


def _wire_wavelength(wavelength: int | None) -> int:
    return 0 if wavelength is None else wavelength + 1


class Datapath:
    """The maps and the program of one device.

    ``resumed`` tells that they were already there: the light has burnt on and nothing was changed.
    """

    def __init__(
        self, program: int, maps: Mapping[str, ebpf.Map], resumed: bool
    ) -> None:
        self._program = program
        self._maps = maps
        self.resumed = resumed

    @classmethod
    def open(
        cls,
        pins: Path,
        name: str,
        ports: int,
        selective: Selective | None = None,
    ) -> Datapath:
        """Open the datapath pinned in ``pins``, creating it if necessary, and return it. ``ports``: highest
        port number.

        Raises EbpfError or BuildError, and ValueError if the pins belong to another device.
        """
        ebpf.ensure_bpffs()
        wavelengths = selective.wavelengths if selective else 0
        tagged = selective is not None and selective.tagged
        # The program is pinned last, so that its pin says that all the rest is complete.
        if (pins / "program").exists():
            datapath = cls.resume(pins)
            identity = datapath._maps["identity"]
            layout, size, colours, by_tag, label = _IDENTITY.unpack(
                identity.lookup(_U32.pack(0)) or b""
            )
            owner = label.rstrip(b"\0").decode(errors="replace")
            if (layout, size, colours, bool(by_tag), owner) != (
                LAYOUT,
                ports,
                wavelengths,
                tagged,
                name,
            ):
                datapath.close()
                way = ("", " by tag")
                raise ValueError(
                    f"{pins}: holds device {owner!r} with {size} ports and {colours} wavelengths{way[by_tag]}"
                    f" (layout {layout}), not {name!r} with {ports} ports and {wavelengths}{way[tagged]}"
                    f" (layout {LAYOUT})"
                )
            return datapath
        object_file = build_object(SOURCE)
        remove_pins(pins)
        pins.mkdir(parents=True, mode=0o700)
        capacity = {
            key: ports + 1 for key in _SIZES if key not in ("identity", "sources")
        }
        shared: dict[str, int] = {}
        if selective:
            capacity["cross_connects"] = capacity["dim"] = (ports + 1) * wavelengths
            # Its number of elements tells the program how many ingresses there are.
            capacity["sources"] = ports // 2 + 1
            if selective.lasers is not None:
                shared["lasers"] = selective.lasers
        kind = (
            PROGRAM
            if selective is None
            else TAGGED_PROGRAM
            if tagged
            else SELECTIVE_PROGRAM
        )
        programs, maps = ebpf.load(object_file, [kind], _SIZES, capacity, shared)
        datapath = cls(programs[kind], maps, resumed=False)
        for ingress, laser in (selective.laser_of_ingress if selective else {}).items():
            maps["sources"].update(_U32.pack(ingress), _SOURCE.pack(laser + 1, 0, 0))
        maps["identity"].update(
            _U32.pack(0),
            _IDENTITY.pack(LAYOUT, ports, wavelengths, tagged, name.encode()),
        )
        for key, item in maps.items():
            ebpf.pin(item.descriptor, pins / key)
        ebpf.pin(programs[kind], pins / "program")
        return datapath

    @classmethod
    def resume(cls, pins: Path) -> Datapath:
        """Return the datapath pinned in ``pins``, for a restarted device or a reader of counters."""
        program = ebpf.open_pinned(pins / "program")
        maps = {
            key: ebpf.Map(key, ebpf.open_pinned(pins / key), *size)
            for key, size in _SIZES.items()
        }
        return cls(program, maps, resumed=True)

    def close(self) -> None:
        """Lets go of the descriptors; pins and attached filters stay, and so does the light."""
        for item in self._maps.values():
            item.close()
        os.close(self._program)

    def set_notes(self, notes: Mapping[str, Any]) -> None:
        """Ignore notes: the device's process keeps them, and the kernel the light."""

    def keep(self) -> None:
        """Do nothing: the kernel keeps the light."""

    # Light paths

    def connect(
        self,
        ingress: int,
        egress: int,
        ready_ns: int,
        wavelength: int | None = None,
        loss_db: float = 0.0,
    ) -> None:
        """Light from ``ingress`` goes to ``egress``, from ``ready_ns`` on; dark until then."""
        self._maps["cross_connects"].update(
            _LIGHT.pack(ingress, _wire_wavelength(wavelength)),
            _CROSS_CONNECT.pack(egress, round(1000 * loss_db), ready_ns, 0),
        )

    def disconnect(self, ingress: int, wavelength: int | None = None) -> None:
        self._maps["cross_connects"].delete(
            _LIGHT.pack(ingress, _wire_wavelength(wavelength))
        )

    def cross_connects(self) -> dict[tuple[int, int | None], TunedEgress]:
        """Return every cross-connect in the kernel, by ingress and wavelength."""
        lights = {}
        for key, value in self._maps["cross_connects"].items():
            ingress, wavelength = _LIGHT.unpack(key)
            egress, _, ready_ns, _ = _CROSS_CONNECT.unpack(value)
            lights[ingress, wavelength - 1 if wavelength else None] = TunedEgress(
                egress, ready_ns
            )
        return lights

    def wires(self) -> dict[Spot, tuple[int, float]]:
        """Return egress and loss (dB) of every cross-connect whose ports are enabled, by ingress and
        wavelength."""
        gated = self.admin()
        wires = {}
        for key, value in self._maps["cross_connects"].items():
            ingress, wavelength = _LIGHT.unpack(key)
            egress, loss, _, _ = _CROSS_CONNECT.unpack(value)
            if not {ingress, egress} & gated.keys():
                wires[ingress, wavelength - 1 if wavelength else None] = (
                    egress,
                    loss / 1000,
                )
        return wires

    def set_dim(self, spots: Mapping[Spot, float]) -> None:
        """Light that enters there, and no other, is too weak for its receiver: by the share of bits that are
        wrong, 1 where none can be read."""
        entries = {
            _LIGHT.pack(ingress, _wire_wavelength(wavelength)): _DIM.pack(
                share >= 1, *survival(0.0 if share >= 1 else share)
            )
            for (ingress, wavelength), share in spots.items()
        }
        there = dict(self._maps["dim"].items())
        for key, value in entries.items():
            if there.get(key) != value:
                self._maps["dim"].update(key, value)
        for key in there.keys() - entries.keys():
            self._maps["dim"].delete(key)

    # Ports

    def _port(self, port: int) -> tuple[int, int]:
        value = self._maps["ports"].lookup(_U32.pack(port))
        return _PORT.unpack(value) if value else (0, 0)

    def set_admin(self, port: int, admin: Admin) -> None:
        """Blocks or opens one port; its cross-connect stays."""
        ifindex, _ = self._port(port)
        self._maps["ports"].update(_U32.pack(port), _PORT.pack(ifindex, admin.value))

    def admin(self) -> dict[int, Admin]:
        """Return the state of every port that is not enabled."""
        states = {
            _U32.unpack(key)[0]: Admin(_PORT.unpack(value)[1])
            for key, value in self._maps["ports"].items()
        }
        return {
            port: admin for port, admin in states.items() if admin is not Admin.ENABLED
        }

    def set_label(self, port: int, label: str) -> None:
        if label:
            self._maps["labels"].update(_U32.pack(port), _LABEL.pack(label.encode()))
        else:
            self._maps["labels"].delete(_U32.pack(port))

    def set_recovery(self, recovery: Recovery) -> None:
        """Store what the next start does with light, as the label of port 0."""
        self._maps["labels"].update(
            _U32.pack(_NO_PORT), _LABEL.pack(recovery.value.encode())
        )

    def stored(self) -> Stored:
        """Return the state that a device keeps over a restart."""
        labels = {
            _U32.unpack(key)[0]: _LABEL.unpack(value)[0]
            .rstrip(b"\0")
            .decode(errors="replace")
            for key, value in self._maps["labels"].items()
        }
        recovery = Recovery(labels.pop(_NO_PORT, Recovery.MAINTAIN))
        return Stored(self.cross_connects(), self.admin(), labels, recovery)

    # Faceplate

    def plug(self, ifindex: int, ingress: int, egress: int) -> bool:
        """Make an interface of the thread's network namespace the fibre of two ports. Return False if it was
        so already.

        Packets that the interface receives enter at ``ingress``. Packets that leave at ``egress`` are sent by
        the interface.
        """
        known = self._maps["port_of_ifindex"].lookup(_U32.pack(ifindex)) == _U32.pack(
            ingress
        )
        if not known:
            self._maps["port_of_ifindex"].update(_U32.pack(ifindex), _U32.pack(ingress))
        for port in (ingress, egress):
            before, admin = self._port(port)
            if before != ifindex:
                self._maps["ports"].update(_U32.pack(port), _PORT.pack(ifindex, admin))
                known = False
        return ebpf.attach_ingress(ifindex, self._program) or not known

    def unplug(self, ifindex: int, ingress: int, egress: int) -> None:
        """The interface is gone; cross-connects stay."""
        self._maps["port_of_ifindex"].delete(_U32.pack(ifindex))
        for port in (ingress, egress):
            before, admin = self._port(port)
            if before == ifindex:
                self._maps["ports"].update(_U32.pack(port), _PORT.pack(0, admin))

    def plugged(self) -> dict[int, int]:
        """Return the ingress port of each interface index that is plugged in."""
        return {
            _U32.unpack(key)[0]: _U32.unpack(value)[0]
            for key, value in self._maps["port_of_ifindex"].items()
        }

    def counters(self, port: int) -> Counters:
        """Return the counters of one port. Raises ValueError for a port that the device does not have."""
        value = self._maps["counters"].lookup(_U32.pack(port))
        if value is None:
            raise ValueError(f"there is no port {port}")
        return Counters(*_COUNTERS.unpack(value))


def remove_pins(pins: Path) -> None:
    """Forgets a device: its maps vanish when the last process and interface let go of them."""
    for name in ("program", *_SIZES):
        (pins / name).unlink(missing_ok=True)
    if pins.is_dir():
        pins.rmdir()
