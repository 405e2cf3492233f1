"""The change that a command makes to the cross-connects of an emulated switch, unless it is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ringlight.testbed.emulation.optical.commands import (
    Admin,
    Clear,
    Command,
    DeviceError,
    Fault,
    Pairs,
    Rewire,
    Spot,
    Wire,
)
from ringlight.testbed.emulation.optical.mirrors import Mirrors


class WireChange(NamedTuple):
    """Cross-connects that end, and those that begin."""

    remove: tuple[Spot, ...] = ()
    add: tuple[Wire, ...] = ()

    @property
    def touched(self) -> int:
        """Number of cross-connects that end, begin or both."""
        return len({*self.remove, *[wire.spot for wire in self.add]})

    def first(self, share: float) -> WireChange:
        """Return the first part of the change, by share."""
        count = int((len(self.remove) + len(self.add)) * share)
        return WireChange(
            self.remove[:count], self.add[: max(0, count - len(self.remove))]
        )


class Checks:
    """Checks of commands by ports and cross-connects. ``admin``: states of ports, else enabled."""

    def __init__(
        self, size: int, wavelengths: int, admin: Mapping[int, Admin], mirrors: Mirrors
    ) -> None:
        self._size, self._wavelengths = size, wavelengths
        self._admin, self._mirrors = admin, mirrors

    def change(self, command: Command) -> WireChange:
        """Return how a command changes the cross-connects. Raises DeviceError."""
        match command:
            case Rewire(add, remove, only, blocked):
                gone = self._checked(remove)
                for wire in gone:
                    if self._mirrors.find(wire) is None:
                        raise DeviceError(Fault.CONFLICT, f"{wire} is not connected")
                wires = self._checked(add)
                kept = set(wires)
                away = (
                    (wire for wire in self._mirrors.wires() if wire not in kept)
                    if only
                    else gone
                )
                spots = tuple(wire.spot for wire in away)
                new = tuple(wire for wire in wires if self._mirrors.find(wire) is None)
                self._check_free(new, set(spots), blocked)
                return WireChange(spots, new)
            case Clear(ports, ingress):
                for port in ports:
                    self._check_ingress(port) if ingress else self.check_port(port)
                there = [
                    wire
                    for wire in self._mirrors.wires()
                    if not {*wire[:2]}.isdisjoint(ports)
                ]
                return WireChange(remove=tuple(wire.spot for wire in there))
        return WireChange()

    def check_port(self, port: int) -> None:
        """Raises DeviceError if there is no such port."""
        if not 1 <= port <= 2 * self._size:
            raise DeviceError(
                Fault.RANGE, f"there is no port {port} (1..{2 * self._size})"
            )

    def check_wavelength(self, wavelength: int | None) -> None:
        """Raises DeviceError if the switch does not tell this wavelength from others."""
        if self._wavelengths and (
            wavelength is None or not 0 <= wavelength < self._wavelengths
        ):
            raise DeviceError(
                Fault.RANGE,
                f"{wavelength} is not a wavelength (0..{self._wavelengths - 1})",
            )
        if not self._wavelengths and wavelength is not None:
            raise DeviceError(
                Fault.RANGE, f"wavelength {wavelength}: the switch tells none apart"
            )

    def _check_ingress(self, port: int) -> None:
        if not 1 <= port <= self._size:
            raise DeviceError(
                Fault.RANGE, f"{port} is not an ingress port (1..{self._size})"
            )

    def _checked(self, pairs: Pairs) -> tuple[Wire, ...]:
        """The cross-connects, if each could exist beside the others. Raises DeviceError."""
        wires = tuple(
            [pair if isinstance(pair, Wire) else Wire(*pair) for pair in pairs]
        )
        seen: set[Spot] = set()
        for ingress, egress, colour in wires:
            self._check_ingress(ingress)
            if not self._size < egress <= 2 * self._size:
                raise DeviceError(
                    Fault.RANGE,
                    f"{egress} is not an egress port ({self._size + 1}..{2 * self._size})",
                )
            if colour is not None or self._wavelengths:
                self.check_wavelength(colour)
            for spot in ((ingress, colour), (egress, colour)):
                if spot in seen:
                    raise DeviceError(Fault.CONFLICT, f"{_named(spot)} is named twice")
                seen.add(spot)
        return wires

    def _check_free(
        self, wires: Iterable[Wire], freed: Collection[Spot], blocked: bool = False
    ) -> None:
        """Raises DeviceError for a port that cannot carry light, or does once all ``freed`` are gone.

        ``blocked``: a disabled port will do.
        """
        for ingress, egress, colour in wires:
            for port in (ingress, egress):
                admin = self._admin.get(port)
                if admin is Admin.FAILED:
                    raise DeviceError(Fault.HARDWARE, f"port {port} has failed")
                if admin is Admin.DISABLED and not blocked:
                    raise DeviceError(Fault.CONFLICT, f"port {port} is disabled")
            for port in (ingress, egress):
                held = self._mirrors.wire_at(port, colour)
                if held is not None and held.spot not in freed:
                    raise DeviceError(
                        Fault.CONFLICT, f"port {port} is busy with {held}"
                    )


def _named(spot: Spot) -> str:
    return f"port {spot[0]}" + ("" if spot[1] is None else f" on wavelength {spot[1]}")
