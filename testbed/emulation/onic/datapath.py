"""The packet side of one O-NIC: its BPF programs and maps, and the interfaces that use them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ringlight.testbed.emulation.kernel import ebpf
from ringlight.testbed.emulation.kernel.build import build_object
from ringlight.testbed.emulation.onic.tables import (
    CONTROL,
    FIBRES,
    HOST,
    IDENTITY,
    QUEUE,
    SIZES,
    U32,
    name_peers,
)

SOURCE = Path(__file__).with_name("onic.c")
#: Raise when a map's shape changes.
LAYOUT = 3
#: The program of each kind of port, by its number; FIBRE stands for all fibres.
FIBRE = -1
_PROGRAMS = {FIBRE: "from_fibre", HOST: "from_host", CONTROL: "from_control"}
_STANDING = {
    FIBRE: "from_standing_fibre",
    HOST: "from_standing_host",
    CONTROL: "from_control",
    QUEUE: "from_queue",
}


class OnicDatapath:
    """Made by the testbed, used by the O-NIC's agent over the pins in ``pins``. Raises EbpfError.

    ``standing``: of an O-NIC whose light stands, the class of the first queue of each peer, by IPv4 address.
    """

    def __init__(
        self, pins: Path, mac: str, standing: Mapping[str, int] | None = None
    ) -> None:
        ebpf.ensure_bpffs()
        self.pins = pins
        names = _PROGRAMS if standing is None else _STANDING
        programs, maps = ebpf.load(build_object(SOURCE), names.values(), SIZES, {})
        self._programs = {port: programs[name] for port, name in names.items()}
        self._maps = maps
        try:
            maps["identity"].update(
                U32.pack(0), IDENTITY.pack(LAYOUT, bytes.fromhex(mac.replace(":", "")))
            )
            name_peers(maps["peers"], standing or {})
            pins.mkdir(parents=True, mode=0o700)
            for name, item in maps.items():
                ebpf.pin(item.descriptor, pins / name)
        except BaseException:
            self.close()
            raise

    def plug(self, port: int, ifindex: int, comes_in: int | None = None) -> None:
        """An interface of the thread's network namespace becomes a port of the O-NIC.

        ``comes_in``: another at which its packets come in.
        """
        self._maps["ports"].update(U32.pack(port), U32.pack(ifindex))
        if port < FIBRES:
            self._maps["fibre_of_ifindex"].update(U32.pack(ifindex), U32.pack(port))
        ebpf.attach_ingress(
            comes_in or ifindex, self._programs[FIBRE if port < FIBRES else port]
        )

    def close(self) -> None:
        """Let go of it; pins and attached programs stay."""
        for item in self._maps.values():
            item.close()
        for descriptor in self._programs.values():
            os.close(descriptor)
