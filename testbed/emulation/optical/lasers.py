"""The lab's tunable transmitters: one BPF map, written by the O-NICs' agents and read by every WSS.

Retuning a laser is one map update. Light goes out by itself at ``until_ns``, whatever became of the process
that lit it. Times are CLOCK_MONOTONIC nanoseconds. Imports little, as every O-NIC's agent starts with it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ringlight.testbed.emulation.kernel import ebpf

#: Forever, for a laser that nobody's lease ends.
ENDLESS_NS = (1 << 64) - 1
_U32 = struct.Struct("=I")
_LASER = struct.Struct("=IIQQ")


@dataclass(frozen=True)
class Tuned:
    """A laser on channel ``wavelength``, with light from ``ready_ns`` to ``until_ns``."""

    wavelength: int
    ready_ns: int
    until_ns: int

    def is_lit(self, now_ns: int) -> bool:
        return self.ready_ns <= now_ns < self.until_ns


class Lasers:
    """The map, by laser id."""

    def __init__(self, table: ebpf.Map) -> None:
        self._table = table

    @classmethod
    def create(cls, pin: Path, count: int) -> Lasers:
        """Create and pin a map for lasers 0..count-1, all dark, and return it. Raises EbpfError."""
        ebpf.ensure_bpffs()
        pin.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        table = ebpf.create_map("lasers", _U32.size, _LASER.size, max(1, count))
        try:
            ebpf.pin(table.descriptor, pin)
        except ebpf.EbpfError:
            table.close()
            raise
        return cls(table)

    @classmethod
    def open(cls, pin: Path) -> Lasers:
        """Open a pinned map of lasers and return it. Raises EbpfError."""
        return cls(ebpf.Map("lasers", ebpf.open_pinned(pin), _U32.size, _LASER.size))

    @property
    def descriptor(self) -> int:
        return self._table.descriptor

    def close(self) -> None:
        self._table.close()

    def tune(
        self, laser: int, wavelength: int, ready_ns: int, until_ns: int = ENDLESS_NS
    ) -> None:
        """Dark at once, light on ``wavelength`` from ``ready_ns`` to ``until_ns``."""
        if wavelength < 0:
            raise ValueError(f"laser {laser}: there is no wavelength {wavelength}")
        self._table.update(
            _U32.pack(laser), _LASER.pack(wavelength + 1, 0, ready_ns, until_ns)
        )

    def dark(self, laser: int) -> None:
        self._table.update(_U32.pack(laser), _LASER.pack(0, 0, 0, 0))

    def read(self, laser: int) -> Tuned | None:
        """Return the state of a laser in the kernel, None if the laser is switched off."""
        value = self._table.lookup(_U32.pack(laser))
        channel, _, ready_ns, until_ns = _LASER.unpack(value) if value else (0, 0, 0, 0)
        return Tuned(channel - 1, ready_ns, until_ns) if channel else None
