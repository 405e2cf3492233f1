"""The circuit manager over a switch kept in memory: order of a change, faults, adoption."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.change import Target
from ringlight.controller.circuits.drift import Policy
from ringlight.controller.circuits.intent import IntentDatabase
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.reconciler import Reconciler
from ringlight.controller.circuits.transaction import Found
from ringlight.controller.errors import ConflictError, InvalidError, UnavailableError
from ringlight.controller.openflow.messages import FlowMod, PortDescription, SwitchEvent
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import Refused, Unreachable
from ringlight.controller.optical.model import (
    Bounds,
    Capabilities,
    PortStatus,
    Snapshot,
    Timing,
    dual_sided,
)
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.watching import TableWatch
from ringlight.controller.store import Store
from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    Mode,
    PortState,
)
from ringlight.fabric.parts import Port
from tests.unit.test_controller_rules import (
    FABRIC,
    PORTS,
    FakeTables,
    light,
    plugged,
    wanted,
)


class MemoryDriver(OpticalSwitchDriver):
    """A switch that does at once what it is told, and writes down when."""

    def __init__(self, log: list[str], timing: Timing = Timing()) -> None:
        ingress, egress = dual_sided(18)
        super().__init__(
            "ocs0", Capabilities(ingress, egress, 64, timing, max_replace=64)
        )
        self.stand: set[CrossConnect] = set()
        self.log = log
        self.away = False
        self.refuse_add = False

    def _read(self, deadline: Deadline) -> Snapshot:
        if self.away:
            raise Unreachable("no session")
        state = dict.fromkeys(self.stand, CrossConnectState.CONNECTED)
        ports = dict.fromkeys(self.capabilities().ports, PortStatus(PortState.TUNED))
        return Snapshot("ocs0", state, ports)

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self.log.append("remove")
        self.stand -= set(batch)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        if self.refuse_add:
            raise Refused("mirror stuck")
        self.log.append("add")
        self.stand |= set(batch)
        time.sleep(self.capabilities().timing.dark.least_s)
        self.log.append("added")

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self.log.append("replace")
        time.sleep(self.capabilities().timing.command.most_s)
        self.stand = set(whole)
        self.log.append("dark")
        time.sleep(self.capabilities().timing.dark.least_s)
        self.log.append("replaced")


class LoggedTables(FakeTables):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def send_flows(
        self, dpid: int, mods: Sequence[FlowMod], *, timeout_s: float
    ) -> None:
        self.log.append("rules")
        super().send_flows(dpid, mods, timeout_s=timeout_s)


class Bench:
    def __init__(self, directory: Path, timing: Timing = Timing()) -> None:
        self.directory = directory
        self.log: list[str] = []
        self.driver = MemoryDriver(self.log, timing)
        self.tables = LoggedTables(self.log)
        self.restart()

    def restart(self, first_generation: int = 0) -> None:
        """A new manager over the same switches and files."""
        self.bus = EventBus()
        self.site = OpticalSite(
            {"ocs0": self.driver},
            {"ocs0": {}},
            self.bus,
            first_generation=first_generation,
        )
        self.forwarding = Forwarding(FABRIC, self.tables)  # type: ignore[arg-type]
        if hasattr(self, "intents"):
            self.intents.close()
        self.intents = IntentDatabase(self.directory / "circuits.sqlite")
        self.manager = CircuitManager(
            FABRIC, self.site, self.forwarding, self.intents, self.bus
        )
        self.manager.adopt()

    def reconciler(self) -> Reconciler:
        plane: Any = self.tables
        tables = TableWatch(
            FABRIC, plane, self.forwarding, Store(self.directory / "store"), self.bus
        )
        return Reconciler(
            FABRIC,
            plane,
            self.site,
            self.manager,
            self.forwarding,
            tables,
            self.bus,
            period_s=60.0,
        )

    def set(self, places: Sequence[Port], **more: bool) -> list[str]:
        """Put GPU i on the i-th port; the problems."""
        pairs = [(Port(f"g{i}", 0), port) for i, port in enumerate(places)]
        return list(self.manager.set_circuits(pairs, who="test", **more).problems)

    def right(self, places: Sequence[Port]) -> bool:
        """Whether light and rules are those of GPU i on the i-th port, and nothing else."""
        after = light(places)
        return self.driver.stand == after["ocs0"] and self.tables.rules() == wanted(
            after
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "state")


SWAPPED = [PORTS[4], *PORTS[1:4], PORTS[0], PORTS[5]]


def test_light_goes_then_rules_then_light_comes(bench: Bench) -> None:
    assert bench.set(PORTS[:6]) == []
    bench.log.clear()
    assert bench.set(SWAPPED) == []
    assert bench.log[0] == "remove"
    assert bench.log[-2:] == ["add", "added"]
    assert set(bench.log[1:-2]) == {"rules"}
    assert bench.right(SWAPPED)


def test_light_that_no_rule_depends_on_changes_without_asking_the_packet_switches(
    bench: Bench,
) -> None:
    assert bench.set(PORTS[:6]) == []
    bench.log.clear()
    read = bench.tables.readings
    spare = [
        xc
        for xc in light([*PORTS[:5], PORTS[6]])["ocs0"]
        if xc not in light(PORTS[:6])["ocs0"]
    ]
    one_way = next(xc for xc in spare if xc.ingress != 6)
    target = Target((CrossConnect(one_way.ingress, 18 + 17),))
    assert bench.manager.change({"ocs0": target}, who="test").problems == ()
    assert bench.log == ["add", "added"]
    assert bench.tables.readings == read
    # A table that was found wrong meanwhile is known no more, and neither is one just written.
    bench.tables.down.add(1)
    assert bench.set(SWAPPED) != []
    bench.tables.down.clear()
    assert bench.set(SWAPPED) == []
    assert bench.right(SWAPPED)


def test_tables_that_were_right_are_read_once_after_the_change_and_mended_if_someone_wrote(
    bench: Bench,
) -> None:
    assert bench.set(PORTS[:6]) == []
    read = bench.tables.readings
    assert bench.set(SWAPPED) == []
    assert bench.tables.readings == read + 1
    # A switch that lost its table is mended by the same change, and one that is away is told.
    bench.tables.tables[2] = []
    assert bench.set(PORTS[:6]) == []
    assert bench.right(PORTS[:6])
    bench.tables.down.add(3)
    assert any(
        "away" in problem or "not connected" in problem
        for problem in bench.set(SWAPPED)
    )
    bench.tables.down.clear()
    assert bench.set(PORTS[:6]) == []
    # One that takes no rules, without a word.
    bench.tables.deaf.add(2)
    assert any("tor1: the rule" in problem for problem in bench.set(SWAPPED))


def test_rules_are_written_in_the_one_darkness_of_a_switch_that_replaces_at_once(
    tmp_path: Path,
) -> None:
    dark = Bounds(2.0, 2.0, 2.0)
    bench = Bench(tmp_path / "state", Timing(command=Bounds(0.5, 0.5, 0.5), dark=dark))
    assert bench.set(PORTS[:6]) == []
    bench.log.clear()
    assert bench.set(SWAPPED) == []
    assert bench.log[:2] == ["replace", "dark"]
    assert bench.log[-1] == "replaced"
    assert set(bench.log[2:-1]) == {"rules"}
    assert bench.right(SWAPPED)


def test_two_writes_have_the_rules_between_them_however_long_the_darkness(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "state", Timing(dark=Bounds(0.5, 0.5, 0.5)))
    assert bench.set(PORTS[:6]) == []
    bench.log.clear()
    # UPDATE mode leaves what others made, which one write for everything would not.
    target = Target(tuple(light(SWAPPED)["ocs0"]), Mode.UPDATE)
    assert bench.manager.change({"ocs0": target}, who="test").problems == ()
    assert bench.log[0] == "remove"
    assert bench.log[-2:] == ["add", "added"]
    assert set(bench.log[1:-2]) == {"rules"}
    assert bench.right(SWAPPED)


def test_the_set_is_declarative_and_repeating_it_writes_nothing(bench: Bench) -> None:
    bench.set(PORTS[:6])
    assert bench.set(PORTS[:4]) == []
    assert bench.right(PORTS[:4])
    bench.log.clear()
    assert bench.set(PORTS[:4]) == []
    assert bench.log == []


def test_a_dry_run_and_a_refused_request_write_nothing(bench: Bench) -> None:
    bench.set(PORTS[:6])
    bench.log.clear()
    bench.set(SWAPPED, dry_run=True)
    with pytest.raises(InvalidError, match="tor0:1"):
        bench.set([PORTS[0], PORTS[0]])
    busy = Target((CrossConnect(1, 18 + 8),), Mode.SAFE)
    with pytest.raises(ConflictError, match="busy"):
        bench.manager.change({"ocs0": busy}, who="test")
    assert bench.log == []
    assert bench.right(PORTS[:6])
    bench.restart()
    assert bench.right(PORTS[:6]), "a request that was refused became the intent"


def test_a_switch_that_is_away_stops_the_change_before_anything_is_written(
    bench: Bench,
) -> None:
    bench.set(PORTS[:6])
    bench.log.clear()
    bench.driver.away = True
    with pytest.raises(UnavailableError, match="ocs0"):
        bench.set(SWAPPED)
    assert bench.log == []
    assert bench.manager.cross_connects() == light(PORTS[:6]), (
        "its light is still there"
    )
    assert "cannot be reached" in bench.site.alarms("ocs0")[0].text
    bench.driver.away = False
    bench.manager.reconcile()
    assert bench.right(PORTS[:6])
    assert bench.site.alarms("ocs0") == ()


def test_light_that_can_neither_be_made_nor_taken_back_is_named_and_rules_follow_the_light_there_is(
    bench: Bench,
) -> None:
    bench.set(PORTS[:6])
    bench.driver.refuse_add = True
    pairs = [(Port(f"g{i}", 0), port) for i, port in enumerate(SWAPPED)]
    change = bench.manager.set_circuits(pairs, who="test")
    assert "mirror stuck" in change.problems[0]
    assert change.outcome == "partly undone"
    gone = light(PORTS[:6])["ocs0"] - light(SWAPPED)["ocs0"]
    assert {(one.switch, one.cross_connect, one.state) for one in change.left} == {
        ("ocs0", xc, Found.GONE) for xc in gone
    }
    left = bench.driver.stand
    assert left == light(PORTS[:6])["ocs0"] - gone
    assert bench.tables.rules() == wanted({"ocs0": left})
    bench.driver.refuse_add = False
    bench.restart()
    assert bench.right(PORTS[:6]), "what was there before is lit again once it can be"


def test_the_first_start_lights_the_fabrics_circuits_and_the_next_touches_nothing(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "state")
    assert bench.driver.stand == light([])["ocs0"]
    bench.set(PORTS[:6])
    bench.log.clear()
    bench.restart()
    assert bench.log == []
    assert bench.right(PORTS[:6])


def test_a_start_lights_what_is_missing_and_leaves_what_strangers_made(
    bench: Bench,
) -> None:
    bench.set(PORTS[:4])
    missing = CrossConnect(1, 18 + 7)
    foreign = CrossConnect(6, 18 + 18)
    bench.driver.stand = (bench.driver.stand - {missing}) | {foreign}
    bench.restart()
    assert bench.driver.stand == light(PORTS[:4])["ocs0"] | {foreign}


def test_a_single_change_keeps_the_rest_and_is_remembered(bench: Bench) -> None:
    bench.set(PORTS[:6])
    change = bench.manager.change(
        {"ocs0": Target((), Mode.UPDATE, delete=(1,))}, who="test"
    )
    assert change.problems == ()
    assert CrossConnect(1, 18 + 7) not in bench.driver.stand
    assert len(bench.driver.stand) == 11
    bench.log.clear()
    bench.restart()
    assert len(bench.driver.stand) == 11
    assert "add" not in bench.log


def test_the_reconciler_reads_tables_after_light_that_changed_by_itself_and_not_after_ours(
    bench: Bench,
) -> None:
    bench.set(PORTS[:6])
    reconciler = bench.reconciler()
    generation = reconciler._round(bench.site.generation())
    bench.set(SWAPPED)
    bench.tables.readings = 0
    generation = reconciler._round(generation)
    assert bench.tables.readings == 0
    bench.manager.set_policy(None, Policy.ALARM, "test")
    bench.driver.stand.clear()
    reconciler._round(generation)
    assert bench.tables.readings > 0
    assert bench.tables.rules() == wanted({"ocs0": frozenset()})


def test_what_a_switch_says_of_a_port_reaches_rules_and_listeners(bench: Bench) -> None:
    """The reconciler asks a switch that says something of a port between switches, and mends at once."""
    bench.set([PORTS[0], PORTS[1], PORTS[4], PORTS[5], PORTS[8], PORTS[9]])
    usual = bench.tables.rules()
    reconciler = bench.reconciler()
    (tell,) = bench.tables.subscribers
    listener = bench.bus.subscribe()
    reconciler.start()
    try:
        for down, state in ((True, "down"), (False, "up")):
            port = PortDescription(8, "", "", not down)
            bench.tables.ports_said = plugged(*([Port("tor1", 8)] if down else []))
            tell(SwitchEvent("port_changed", 2, time.monotonic(), port))
            deadline = time.monotonic() + 10
            while (
                bench.tables.rules() != usual
            ) is not down and time.monotonic() < deadline:
                time.sleep(0.01)
            assert (bench.tables.rules() != usual) is down
            said = [e for e in listener.take() if e["event"] == "packet_switch_port"][
                -1
            ]
            assert (said["switch"], said["port"], said["peer"], said["state"]) == (
                "tor1",
                8,
                "tor0:8",
                state,
            )
    finally:
        reconciler.stop()


def test_light_that_was_never_set_is_set_without_an_event_and_light_that_was_lost_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    circuits = tuple((Port(f"g{i}", 0), port) for i, port in enumerate(PORTS[:6]))
    monkeypatch.setitem(globals(), "FABRIC", replace(FABRIC, circuits=circuits))
    bench = Bench(tmp_path / "state")

    def drifts() -> list[str]:
        return [
            event["event"]
            for event in bench.bus.subscribe(after=0).take()
            if "drift" in event["event"]
        ]

    assert bench.driver.stand == light(PORTS[:6])["ocs0"]
    assert drifts() == []
    bench.driver.stand = set()
    bench.restart()
    assert drifts() == ["drift", "drift_over"]
    assert bench.driver.stand == light(PORTS[:6])["ocs0"]
