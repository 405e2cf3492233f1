"""The packet side of one O-NIC: its BPF programs and maps, and the interfaces that use them."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.emulation.onic.tables import CONTROL, FIBRES, HOST, IDENTITY, SIZES, U32, Counters, read_counters
from testbed.emulation.optical import ebpf
from testbed.emulation.optical.build import build_object

SOURCE = Path(__file__).with_name("onic.c")
#: Raise when a map's shape changes.
LAYOUT = 2
#: The program of each port, by its number.
_PROGRAMS = {0: "from_fibre_0", 1: "from_fibre_1", HOST: "from_host", CONTROL: "from_control"}
assert len(_PROGRAMS) == FIBRES + 2


class OnicDatapath:
    """Made by the testbed, used by the O-NIC's agent over the pins in ``pins``. Raises EbpfError."""

    def __init__(self, pins: Path, mac: str) -> None:
        ebpf.ensure_bpffs()
        self.pins = pins
        programs, maps = ebpf.load(build_object(SOURCE), _PROGRAMS.values(), SIZES, {})
        self._programs = {port: programs[name] for port, name in _PROGRAMS.items()}
        self._maps = maps
        try:
            maps["identity"].update(U32.pack(0), IDENTITY.pack(LAYOUT, bytes.fromhex(mac.replace(":", ""))))
            pins.mkdir(parents=True, mode=0o700)
            for name, item in maps.items():
                ebpf.pin(item.descriptor, pins / name)
        except BaseException:
            self.close()
            raise

    def plug(self, port: int, ifindex: int) -> None:
        """An interface of the thread's network namespace becomes a port of the O-NIC."""
        self._maps["ports"].update(U32.pack(port), U32.pack(ifindex))
        ebpf.attach_ingress(ifindex, self._programs[port])

    def counters(self) -> Counters:
        return read_counters(self._maps["counters"])

    def close(self) -> None:
        """Let go of it; pins and attached programs stay."""
        for item in self._maps.values():
            item.close()
        for descriptor in self._programs.values():
            os.close(descriptor)
