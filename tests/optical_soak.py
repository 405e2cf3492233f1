"""Random operations on optical switches of several kinds through the circuit manager, with faults injected.

The switches are emulated ones without light paths in the kernel, each in a thread of this process with its
management protocol on a socket; manager, database, drivers and reconciler are the controller's own. So
neither root nor a testbed is needed, and what either side leaks is seen here.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.change import Target
from ringlight.controller.circuits.drift import Policy
from ringlight.controller.circuits.intent import IntentDatabase
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.reconciler import Reconciler
from ringlight.controller.errors import ControllerError
from ringlight.controller.optical.registry import make_driver
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.watching import TableWatch
from ringlight.controller.store import Store
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.optical_profiles import IDEAL
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.optical.clients import ENDED_S
from ringlight.testbed.emulation.optical.commands import SetAdmin
from ringlight.testbed.emulation.optical.server import OpticalSwitchServer
from ringlight.testbed.emulation.optical.switch_faults import FaultSpec, Kind
from ringlight.testbed.emulation.optical.switch_settings import Settings
from tests.drivers import PROTOCOLS, entry_of
from tests.unit.test_controller_rules import FakeTables

log = logging.getLogger(__name__)

SIZE = 12
#: The protocol of each switch: all that can be served here, and as a change is of up to three switches, some
#: of them again where there are fewer.
SWITCHES = PROTOCOLS * -(-3 // len(PROTOCOLS))
#: What is injected, with its seconds where the usual ones would only take time.
KINDS: dict[Kind, float | None] = {
    **dict.fromkeys(Kind),
    Kind.SLOW: 0.05,
    Kind.VANISH: 0.1,
    Kind.SLOW_DRIP: 0.0001,
    Kind.LATE: 0.05,
}
#: Longest until all is as it should be once nothing is injected any more, seconds.
SETTLE_S = 60.0
USER, PASSWORD = "ann", "s0ak-s3cret"


@dataclass
class Report:
    """What a run came to. ``wrong``: by switch, where it was not as it should be after settling."""

    operations: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    acted: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    settled_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    threads: tuple[int, int] = (0, 0)
    descriptors: tuple[int, int] = (0, 0)
    memory_mib: list[float] = field(default_factory=list)
    seconds: float = 0.0


class Emulated:
    """One emulated switch in a thread of its own."""

    def __init__(self, name: str, protocol: str, seed: int) -> None:
        self.name, self.protocol = name, protocol
        self.server = OpticalSwitchServer(
            Settings(
                name=name,
                size=SIZE,
                profile=IDEAL,
                listen=None,
                netns=None,
                pins=None,
                seed=seed,
                serve=((protocol, ("127.0.0.1", 0)),),
                users={USER: PASSWORD} if driver_kinds()[protocol].login else {},
            )
        )
        self.died: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.server.run()
        except BaseException as error:
            self.died = error
            raise

    def close(self) -> None:
        self.server.stop()
        self._thread.join(10)

    def entry(self, password: Path) -> dict[str, Any]:
        """For the inventory."""
        entry = entry_of(
            self.protocol, self.server.addresses[self.protocol], USER, password
        )
        return entry | {"profile": IDEAL.declared()}

    def inject(self, spec: FaultSpec) -> int:
        """A fault's number. Raises FaultError."""

        def add() -> int:
            made, effects = self.server.faults.add(time.monotonic_ns(), spec)
            self.server.apply(effects)
            return made.id

        return self.server.ask(add)

    def clear(self, number: int) -> int:
        """How often the fault had acted."""

        def end() -> int:
            hits = self.server.faults.get(number).hits
            self.server.apply(self.server.faults.clear(time.monotonic_ns(), number))
            return hits

        return self.server.ask(end)

    def state(self) -> tuple[frozenset[CrossConnect], frozenset[CrossConnect]]:
        """What it reports, and what its light paths have."""

        def read() -> tuple[frozenset[CrossConnect], frozenset[CrossConnect]]:
            reported = self.server.device.cross_connects()
            lit = self.server.light_paths.cross_connects()
            return (
                frozenset(CrossConnect(wire.ingress, wire.egress) for wire in reported),
                frozenset(
                    CrossConnect(ingress, one.egress)
                    for (ingress, _), one in lit.items()
                ),
            )

        return self.server.ask(read)


class Soak:
    """``soak(...)`` with its switches and its controller."""

    def __init__(
        self, directory: Path, seed: int, rate: float, protocols: Sequence[str]
    ) -> None:
        self.dice = random.Random(seed)
        self.rate = rate
        self.report = Report()
        self._directory = directory
        self._password = directory / "password"
        self._password.write_text(PASSWORD + "\n")
        self.switches = {
            f"ocs{i}": Emulated(f"ocs{i}", name, seed + i)
            for i, name in enumerate(protocols)
        }
        names = list(self.switches)
        self.fabric = build_fabric(
            FabricSpec.model_validate(
                {
                    "servers": {"s0": {"gpus": {"g0": "tesla-m40"}}},
                    "packet_switches": {
                        f"tor{t}": {"ports": len(names) + 1} for t in range(3)
                    },
                    "optical_switches": {name: {"size": SIZE} for name in names},
                    "links": [
                        {"ends": ["g0", f"{names[0]}:1"], "rate": "10 Gbit/s"},
                        *(
                            {
                                "ends": [f"tor{t}:{i}", f"{name}:{t + 2}"],
                                "rate": "10 Gbit/s",
                            }
                            for i, name in enumerate(names, start=1)
                            for t in range(3)
                        ),
                    ],
                }
            )
        )
        self.tables = FakeTables()
        #: Faults in force: switch, number, kind, and after which operation they end.
        self.faults: list[tuple[str, int, Kind, int]] = []
        self.start()

    # The controller

    def start(self) -> None:
        entries = {
            name: switch.entry(self._password) for name, switch in self.switches.items()
        }
        drivers = {
            name: make_driver(name, entry, SIZE) for name, entry in entries.items()
        }
        self.intents = IntentDatabase(self._directory / "circuits.sqlite")
        bus = EventBus()
        self.site = OpticalSite(drivers, entries, bus, self.intents.try_note)
        forwarding = Forwarding(self.fabric, self.tables)  # type: ignore[arg-type]
        self.manager = CircuitManager(
            self.fabric, self.site, forwarding, self.intents, bus
        )
        self.manager.adopt()
        if self.intents.policy("ocs0") is not Policy.REPAIR:
            self.manager.set_policy(None, Policy.REPAIR, "soak")
        store = Store(self._directory / "store")
        self.reconciler = Reconciler(
            self.fabric,
            self.tables,  # type: ignore[arg-type]
            self.site,
            self.manager,
            forwarding,
            TableWatch(self.fabric, self.tables, forwarding, store, bus),  # type: ignore[arg-type]
            bus,
            period_s=0.2,
        )
        self.reconciler.start()

    def stop(self) -> None:
        self.reconciler.stop()
        self.site.close()
        self.intents.close()

    def close(self) -> None:
        self.stop()
        for switch in self.switches.values():
            switch.close()

    # Operations

    def run(
        self, operations: int, settle_every: int, tell: Callable[[int], None]
    ) -> Report:
        began = time.monotonic()
        self.settle()
        self.report.settled_s.clear()
        gc.collect()
        threads, descriptors = self._usage()
        self.report.memory_mib.append(_rss_mib())
        for number in range(1, operations + 1):
            if died := [one for one in self.switches.values() if one.died is not None]:
                self.report.crashes += [
                    f"{one.name} ({one.protocol}) died: {one.died!r}" for one in died
                ]
                break
            self.end_faults(number)
            self.operate(number)
            self.report.operations = number
            if number % settle_every == 0 or number == operations:
                self.end_faults(None)
                self.settle()
                # The tables keep all that was ever sent to them.
                self.tables.sent.clear()
                gc.collect()
                self.report.memory_mib.append(_rss_mib())
                tell(number)
        if self.report.crashes:
            return self.report
        after = self._usage()
        self.report.threads, self.report.descriptors = (
            (threads, after[0]),
            (descriptors, after[1]),
        )
        self.report.seconds = time.monotonic() - began
        return self.report

    def _usage(self) -> tuple[int, int]:
        """Threads and open descriptors while the controller is away, and the switches know it."""
        self.stop()
        deadline = time.monotonic() + 2 * ENDED_S
        while (
            any(one.server.clients for one in self.switches.values())
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        # Threads that were told to end do so soon.
        found, since = (0, 0), time.monotonic()
        while time.monotonic() < min(deadline, since + 1):
            now = (threading.active_count(), len(os.listdir("/proc/self/fd")))
            if now != found:
                found, since = now, time.monotonic()
            time.sleep(0.05)
        self.start()
        return found

    def operate(self, number: int) -> None:
        dice = self.dice
        kinds = {
            "change": 85,
            "settle": 5,
            "port": 4,
            "power": 5,
            "restart": 0 if number % 10 else 1,
        }
        chosen = dice.choices(list(kinds), weights=list(kinds.values()))[0]
        names = dice.sample(sorted(self.switches), dice.choice((1, 1, 1, 2, 3)))
        if dice.random() < self.rate:
            self.inject(dice.choice(names), number)
        try:
            outcome = getattr(self, f"_{chosen}")(names)
        except ControllerError as error:
            outcome = "refused"
            self.report.refusals[type(error).__name__] += 1
        except Exception as error:
            log.exception("operation %d", number)
            outcome = "crash"
            self.report.crashes.append(
                f"operation {number}, {chosen} on {names}: {error!r}"
            )
        self.report.outcomes[f"{chosen}: {outcome}"] += 1

    def _change(self, names: Sequence[str]) -> str:
        targets = {}
        for name in names:
            count = self.dice.randint(0, 6)
            inputs = self.dice.sample(range(1, SIZE + 1), count)
            outputs = self.dice.sample(range(SIZE + 1, 2 * SIZE + 1), count)
            wanted = tuple(
                CrossConnect(a, b) for a, b in zip(inputs, outputs, strict=True)
            )
            mode = self.dice.choice((Mode.UPDATE, Mode.UPDATE, Mode.REPLACE, Mode.SAFE))
            free = [port for port in range(1, SIZE + 1) if port not in inputs]
            delete = (
                tuple(self.dice.sample(free, self.dice.randint(0, 2)))
                if mode is Mode.UPDATE
                else ()
            )
            targets[name] = Target(wanted, mode, delete)
        return self.manager.change(targets, who="soak").outcome

    def _settle(self, names: Sequence[str]) -> str:
        left = self.manager.settle(
            names[0], self.dice.choice((Policy.MEND, Policy.REPAIR)), "soak"
        )
        return "something left" if left else "done"

    def _port(self, names: Sequence[str]) -> str:
        port = self.dice.randint(1, 2 * SIZE)
        # Most that are disabled are soon enabled again, or all changes would meet one.
        disabled = [
            p
            for p, status in self.site.look(names[0]).ports.items()
            if not status.enabled
        ]
        enable = bool(disabled) and self.dice.random() < 0.8
        self.site.set_port_enabled(
            names[0], disabled[0] if enable else port, enable, who="soak"
        )
        return "done"

    def _power(self, names: Sequence[str]) -> str:
        self.site.power_dbm(names[0])
        return "done"

    def _restart(self, names: Sequence[str]) -> str:
        """Restart the controller."""
        self.stop()
        self.start()
        return "done"

    # Faults

    def inject(self, name: str, number: int) -> None:
        # SCPI knows no message that nobody asked for.
        scpi = self.switches[name].protocol == "scpi"
        kind = self.dice.choice(
            [kind for kind in KINDS if kind is not Kind.AUTONOMOUS or not scpi]
        )
        self.inject_one(name, kind, number + self.dice.randint(1, 10))

    def inject_one(self, name: str, kind: str, lasts: int) -> None:
        """A fault of that kind that acts once, until an operation."""
        kind = Kind(kind)
        seed = self.dice.randrange(1 << 30)
        port = self.dice.randint(1, 2 * SIZE) if kind is Kind.PORT_FAILED else None
        count = None if kind is Kind.PORT_FAILED else 1
        spec = FaultSpec(kind, count=count, seed=seed, seconds=KINDS[kind], port=port)
        fault = self.switches[name].inject(spec)
        self.report.injected[kind] += 1
        self.faults.append((name, fault, kind, lasts))

    def end_faults(self, number: int | None) -> None:
        """Ends those whose time is over; None: all."""
        for name, fault, kind, lasts in self.faults:
            if number is None or lasts <= number:
                with suppress(CancelledError):
                    self.report.acted[kind] += min(1, self.switches[name].clear(fault))
        self.faults = [
            one for one in self.faults if number is not None and one[3] > number
        ]

    # At rest

    def settle(self) -> None:
        """Until every switch carries what it should, and nothing else. Notes what does not."""
        began = time.monotonic()
        for name, driver in self.site.drivers.items():
            if driver.capabilities().port_admin:
                for port in sorted(driver.capabilities().ports):
                    self.switches[name].server.ask(partial(self._enable, name, port))
        while wrong := self.differences():
            if time.monotonic() - began > SETTLE_S:
                self.report.wrong += wrong
                return
            time.sleep(0.05)
        self.report.settled_s.append(time.monotonic() - began)

    def _enable(self, name: str, port: int) -> None:
        server = self.switches[name].server
        server.apply(server.device.do(time.monotonic_ns(), SetAdmin((port,), True)))

    def differences(self) -> list[str]:
        wanted = self.manager.intended()
        found = []
        for name, switch in self.switches.items():
            if switch.died is not None:
                found.append(f"{name} ({switch.protocol}) died: {switch.died!r}")
                continue
            reported, lit = switch.state()
            if not reported == lit == wanted[name]:
                found.append(
                    f"{name} ({switch.protocol}): wanted {_told(wanted[name])}, reports {_told(reported)},"
                    f" lit {_told(lit)}"
                )
        return found


def _told(group: frozenset[CrossConnect]) -> str:
    return " ".join(map(str, sorted(group))) or "nothing"


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(
    directory: Path,
    operations: int,
    seed: int = 1,
    rate: float = 0.05,
    protocols: Sequence[str] = SWITCHES,
    settle_every: int = 500,
    tell: Callable[[int], None] = lambda _: None,
) -> Report:
    """``operations`` random ones, a fault before one in ``1 / rate``; what came of it."""
    with ExitStack() as undo:
        made = Soak(directory, seed, rate, protocols)
        undo.callback(made.close)
        return made.run(operations, settle_every, tell)
