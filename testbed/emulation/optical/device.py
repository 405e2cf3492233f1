"""An optical switch as a state machine: no sockets, no clock, no kernel.

It is handed commands and the time (CLOCK_MONOTONIC nanoseconds) and gives back effects for a datapath.
Dual-sided numbering: a switch of size N has ingress ports 1..N and egress ports N+1..2N; faceplate port p
is the fibre pair of ingress p and egress N+p.

The device does one command at a time, in the order of arrival. A command is all or nothing: it is checked
against the state at its turn, takes the profile's command time, then changes the light at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from fabric.crossconnect import PortState
from testbed.emulation.optical.profiles import Profile

NS = 1_000_000_000
MAX_LABEL_BYTES = 63


class Admin(Enum):
    """Whether a port may carry light."""

    ENABLED = 0
    DISABLED = 1
    FAILED = 2


class Fault(Enum):
    """Why a command was refused."""

    RANGE = "no such port, or on the wrong side"
    CONFLICT = "at odds with what is set"
    HARDWARE = "a port has failed"


class DeviceError(Exception):
    """A command was refused and has changed nothing. ``fault`` tells why, the message which port."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True)
class Lit:
    """Where an ingress port's light goes, and since when it gets through (nanoseconds)."""

    egress: int
    ready_ns: int


@dataclass(frozen=True)
class Stored:
    """What a device remembers over a restart."""

    cross_connects: Mapping[int, Lit] = field(default_factory=dict)
    admin: Mapping[int, Admin] = field(default_factory=dict)
    labels: Mapping[int, str] = field(default_factory=dict)


# Commands


@dataclass(frozen=True)
class Connect:
    """Adds cross-connects (ingress, egress); one that exists already is left untouched."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ConnectOnly:
    """Makes these cross-connects the whole set; those that stay are left untouched."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Disconnect:
    """Removes exactly these cross-connects; refused when one of them does not exist."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DisconnectIngress:
    """Removes whatever these ingress ports feed."""

    ingress: tuple[int, ...]


@dataclass(frozen=True)
class DisconnectAll:
    pass


@dataclass(frozen=True)
class SetAdmin:
    """Enables or disables ports; cross-connects stay as they are meant, only the light is blocked."""

    ports: tuple[int, ...]
    enabled: bool


@dataclass(frozen=True)
class SetLabel:
    port: int
    label: str


Command = Connect | ConnectOnly | Disconnect | DisconnectIngress | DisconnectAll | SetAdmin | SetLabel

# Effects, to be carried out in order


@dataclass(frozen=True)
class Light:
    """The ingress feeds the egress; packets pass from ``ready_ns`` on."""

    ingress: int
    egress: int
    ready_ns: int


@dataclass(frozen=True)
class Dark:
    """The ingress feeds nothing."""

    ingress: int


@dataclass(frozen=True)
class Gate:
    """The port is opened or blocked."""

    port: int
    admin: Admin


@dataclass(frozen=True)
class Label:
    port: int
    label: str


Effect = Light | Dark | Gate | Label


@dataclass
class Ticket:
    """A command on its way. When ``done``, either ``error`` is set or its light is tuned at ``tuned_ns``."""

    done: bool = False
    error: DeviceError | None = None
    tuned_ns: int = 0


@dataclass(frozen=True)
class Alarm:
    """``kind`` is LOS (loss of signal) or FAILED."""

    port: int
    kind: str
    reason: str


@dataclass
class _Turn:
    command: Command
    submitted_ns: int
    ticket: Ticket
    due_ns: int | None = None


@dataclass(frozen=True)
class _Change:
    remove: tuple[int, ...] = ()
    add: tuple[tuple[int, int], ...] = ()

    @property
    def touched(self) -> int:
        return len({*self.remove, *(ingress for ingress, _ in self.add)})


class OpticalDevice:
    """One dual-sided optical circuit switch. Same seed and same calls give the same behaviour."""

    def __init__(self, size: int, profile: Profile, seed: int = 0, stored: Stored | None = None) -> None:
        stored = stored or Stored()
        self.size = size
        self.profile = profile
        self._seed = seed
        self._random = random.Random(seed)
        self._lit: dict[int, Lit] = dict(stored.cross_connects)
        self._feeder: dict[int, int] = {lit.egress: ingress for ingress, lit in self._lit.items()}
        self._admin: dict[int, Admin] = dict(stored.admin)
        self._labels: dict[int, str] = dict(stored.labels)
        self._received: dict[int, bool] = {}
        self._queue: deque[_Turn] = deque()
        self._free_ns = 0

    # Commands

    def submit(self, now_ns: int, command: Command) -> Ticket:
        """Queues a command; :meth:`advance` carries it out when its time has come."""
        ticket = Ticket()
        self._queue.append(_Turn(command, now_ns, ticket))
        return ticket

    @property
    def next_ns(self) -> int | None:
        """When :meth:`advance` has something to do; 0 for at once, None when idle."""
        if not self._queue:
            return None
        return self._queue[0].due_ns or 0

    def advance(self, now_ns: int) -> list[Effect]:
        """Carries out every command whose time has come; the effects, in order."""
        effects: list[Effect] = []
        while self._queue:
            turn = self._queue[0]
            if turn.due_ns is None:
                started = max(turn.submitted_ns, self._free_ns)
                turn.due_ns = started + self._duration_ns(turn.command)
            if turn.due_ns > now_ns:
                break
            self._queue.popleft()
            self._free_ns = now_ns
            try:
                done, turn.ticket.tuned_ns = self._carry_out(turn.command, now_ns)
                effects += done
            except DeviceError as error:
                turn.ticket.error = error
            turn.ticket.done = True
        return effects

    def _duration_ns(self, command: Command) -> int:
        try:
            touched = self._change(command).touched
        except DeviceError:
            touched = 0
        return round((self.profile.command_s + self.profile.command_per_xc_s * touched) * NS)

    def _carry_out(self, command: Command, now_ns: int) -> tuple[list[Effect], int]:
        if isinstance(command, SetAdmin):
            return self._set_admin(command, now_ns)
        if isinstance(command, SetLabel):
            return self._set_label(command), now_ns
        change = self._change(command)
        for ingress in change.remove:
            self._feeder.pop(self._lit.pop(ingress).egress)
        effects: list[Effect] = [Dark(ingress) for ingress in change.remove]
        tuned = now_ns
        for ingress, egress in change.add:
            light, at = self._tune(ingress, egress, now_ns)
            effects.append(light)
            tuned = max(tuned, at)
        return effects, tuned

    def _tune(self, ingress: int, egress: int, now_ns: int) -> tuple[Light, int]:
        profile = self.profile
        tuned = now_ns + round((profile.dark_s + self._random.uniform(0, profile.dark_jitter_s)) * NS)
        ready = tuned + round(profile.retrain_s * NS)
        self._lit[ingress] = Lit(egress, ready)
        self._feeder[egress] = ingress
        return Light(ingress, egress, ready), tuned

    def _change(self, command: Command) -> _Change:
        """What a command does to the cross-connects. Raises DeviceError."""
        match command:
            case Connect(pairs):
                self._check_pairs(pairs)
                new = tuple(p for p in pairs if not self._exists(p))
                self._check_free(new, self._lit, self._feeder)
                return _Change(add=new)
            case ConnectOnly(pairs):
                self._check_pairs(pairs)
                new = tuple(p for p in pairs if not self._exists(p))
                self._check_free(new, {}, {})
                wanted = set(pairs)
                gone = tuple(i for i, lit in sorted(self._lit.items()) if (i, lit.egress) not in wanted)
                return _Change(gone, new)
            case Disconnect(pairs):
                self._check_pairs(pairs)
                for ingress, egress in pairs:
                    if not self._exists((ingress, egress)):
                        raise DeviceError(Fault.CONFLICT, f"{ingress}->{egress} is not connected")
                return _Change(remove=tuple(ingress for ingress, _ in pairs))
            case DisconnectIngress(ports):
                for port in ports:
                    self._check_ingress(port)
                return _Change(remove=tuple(dict.fromkeys(p for p in ports if p in self._lit)))
            case DisconnectAll():
                return _Change(remove=tuple(sorted(self._lit)))
        return _Change()

    def _exists(self, pair: tuple[int, int]) -> bool:
        lit = self._lit.get(pair[0])
        return lit is not None and lit.egress == pair[1]

    def _check_ingress(self, port: int) -> None:
        if not 1 <= port <= self.size:
            raise DeviceError(Fault.RANGE, f"{port} is not an ingress port (1..{self.size})")

    def _check_port(self, port: int) -> None:
        if not 1 <= port <= 2 * self.size:
            raise DeviceError(Fault.RANGE, f"there is no port {port} (1..{2 * self.size})")

    def _check_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        seen: set[int] = set()
        for ingress, egress in pairs:
            self._check_ingress(ingress)
            if not self.size < egress <= 2 * self.size:
                raise DeviceError(
                    Fault.RANGE, f"{egress} is not an egress port ({self.size + 1}..{2 * self.size})"
                )
            for port in (ingress, egress):
                if port in seen:
                    raise DeviceError(Fault.CONFLICT, f"port {port} is named twice")
                seen.add(port)

    def _check_free(
        self, pairs: Iterable[tuple[int, int]], lit: Mapping[int, Lit], feeder: Mapping[int, int]
    ) -> None:
        for ingress, egress in pairs:
            for port in (ingress, egress):
                admin = self.admin(port)
                if admin is Admin.FAILED:
                    raise DeviceError(Fault.HARDWARE, f"port {port} has failed")
                if admin is Admin.DISABLED:
                    raise DeviceError(Fault.CONFLICT, f"port {port} is disabled")
            if ingress in lit:
                raise DeviceError(
                    Fault.CONFLICT, f"port {ingress} is busy with {ingress}->{lit[ingress].egress}"
                )
            if egress in feeder:
                raise DeviceError(Fault.CONFLICT, f"port {egress} is busy with {feeder[egress]}->{egress}")

    def _set_admin(self, command: SetAdmin, now_ns: int) -> tuple[list[Effect], int]:
        for port in command.ports:
            self._check_port(port)
            if self.admin(port) is Admin.FAILED:
                raise DeviceError(Fault.HARDWARE, f"port {port} has failed")
        wanted = Admin.ENABLED if command.enabled else Admin.DISABLED
        changed = [port for port in dict.fromkeys(command.ports) if self.admin(port) is not wanted]
        effects: list[Effect] = []
        tuned = now_ns
        if command.enabled:
            # The mirrors find the path anew; dark first, then the gate opens.
            for ingress in sorted({i for i in map(self._ingress_of, changed) if i is not None}):
                light, at = self._tune(ingress, self._lit[ingress].egress, now_ns)
                effects.append(light)
                tuned = max(tuned, at)
        for port in changed:
            self._admin[port] = wanted
            effects.append(Gate(port, wanted))
        return effects, tuned

    def _set_label(self, command: SetLabel) -> list[Effect]:
        self._check_port(command.port)
        if len(command.label.encode()) > MAX_LABEL_BYTES:
            raise DeviceError(
                Fault.RANGE, f"label of port {command.port} is longer than {MAX_LABEL_BYTES} bytes"
            )
        self._labels[command.port] = command.label
        return [Label(command.port, command.label)]

    # What happens to the device from outside

    def receive(self, faceplate: int, light: bool) -> None:
        """Tells whether the fibre plugged into a faceplate port brings light in."""
        self._received[faceplate] = light

    def fail(self, port: int) -> list[Effect]:
        """A port breaks; it stays broken."""
        self._check_port(port)
        self._admin[port] = Admin.FAILED
        return [Gate(port, Admin.FAILED)]

    # Reading

    def cross_connects(self) -> dict[int, int]:
        """Egress of every connected ingress, tuned or not, in order of ingress."""
        return {ingress: self._lit[ingress].egress for ingress in sorted(self._lit)}

    def peer(self, port: int) -> int | None:
        """The other end of a port's cross-connect. Raises DeviceError for a port that is not there."""
        self._check_port(port)
        lit = self._lit.get(port)
        return lit.egress if lit else self._feeder.get(port)

    def admin(self, port: int) -> Admin:
        """Raises DeviceError for a port that is not there."""
        self._check_port(port)
        return self._admin.get(port, Admin.ENABLED)

    def label(self, port: int) -> str:
        self._check_port(port)
        return self._labels.get(port, "")

    def port_state(self, port: int, now_ns: int) -> PortState:
        """BLOCKED without a cross-connect or when a port on its way is not enabled."""
        if self.admin(port) is Admin.FAILED:
            return PortState.FAILED
        ingress = self._ingress_of(port)
        if ingress is None or self._is_gated(ingress):
            return PortState.BLOCKED
        return PortState.TUNED if now_ns >= self._tuned_ns(ingress) else PortState.TUNING

    def insertion_loss_db(self, ingress: int, egress: int) -> float:
        """Factory insertion loss of a path: triangular between the profile's least, typical and most."""
        profile = self.profile
        dice = random.Random(f"{self._seed}/{ingress}/{egress}")
        return dice.triangular(profile.loss_min_db, profile.loss_max_db, profile.loss_typ_db)

    def power_dbm(self, port: int, now_ns: int) -> float:
        """What the port's monitor reads: the received power at an ingress, what leaves at an egress.

        The profile's ``dark_dbm`` (the monitor's floor) without light.
        """
        self._check_port(port)
        profile = self.profile
        if port <= self.size:
            return profile.launch_dbm if self._received.get(port) else profile.dark_dbm
        ingress = self._feeder.get(port)
        if (
            ingress is None
            or not self._received.get(ingress)
            or self.port_state(port, now_ns) is not PortState.TUNED
        ):
            return profile.dark_dbm
        # Drawn from the moment of tuning, so that a restarted device reads the same.
        dice = random.Random(f"{self._seed}/{ingress}/{port}/{self._lit[ingress].ready_ns}")
        offset = dice.uniform(-profile.repeatability_db, profile.repeatability_db)
        return profile.launch_dbm - self.insertion_loss_db(ingress, port) + offset

    def alarms(self, now_ns: int) -> list[Alarm]:
        """Failed ports; ingress ports without light; tuned egress ports below the power threshold."""
        found = [
            Alarm(port, "FAILED", "the port has failed")
            for port, admin in sorted(self._admin.items())
            if admin is Admin.FAILED
        ]
        for port in range(1, self.size + 1):
            if port not in self._received:
                found.append(Alarm(port, "LOS", "nothing is plugged in"))
            elif not self._received[port]:
                found.append(Alarm(port, "LOS", "no light comes in"))
        for egress in sorted(self._feeder):
            tuned = self.port_state(egress, now_ns) is PortState.TUNED
            if tuned and self.power_dbm(egress, now_ns) < self.profile.los_dbm:
                found.append(Alarm(egress, "LOS", f"no light from port {self._feeder[egress]}"))
        return found

    def unplugged(self, faceplate: int) -> None:
        """Nothing is plugged into a faceplate port any more."""
        self._received.pop(faceplate, None)

    def _ingress_of(self, port: int) -> int | None:
        return port if port in self._lit else self._feeder.get(port)

    def _is_gated(self, ingress: int) -> bool:
        ends = (ingress, self._lit[ingress].egress)
        return any(self.admin(end) is not Admin.ENABLED for end in ends)

    def _tuned_ns(self, ingress: int) -> int:
        return self._lit[ingress].ready_ns - round(self.profile.retrain_s * NS)
