"""``docs/own-switch.md`` and the package that it grows: the page shows its code, and its driver works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.switch.ringlight_acme import EXTENSION
from docs.switch.ringlight_acme.driver import (
    parse_identity,
    parse_powers,
    parse_reading,
)
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import ProtocolError, Refused
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState
from ringlight.fabric.extension import InstalledExtension
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.optical.session import protocol_named
from ringlight.testbed.rigs import rigs
from tests.door import door
from tests.drivers import converge
from tests.optical_model import ModelSwitch
from tests.unit.test_extending_page import BLOCK, not_in

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "docs/switch"
PAGE = (ROOT / "docs/own-switch.md").read_text()
SIZE = 4
XC = CrossConnect


@pytest.fixture(scope="module")
def acme() -> Iterator[InstalledExtension]:
    installed = InstalledExtension(EXTENSION, "docs.switch.ringlight_acme")
    with door(installed, readers=(driver_kinds, profiles, rigs)):
        yield installed


@pytest.fixture(scope="module")
def switch(acme: InstalledExtension) -> Iterator[ModelSwitch]:
    with ModelSwitch("acme", SIZE, lit=3) as made:
        yield made


@pytest.fixture
def driver(switch: ModelSwitch) -> Iterator[OpticalSwitchDriver]:
    made = make_driver("ocs0", {"driver": "acme", "address": switch.address}, SIZE)
    yield made
    made.close()


def test_the_page_shows_the_package_s_code() -> None:
    assert len(BLOCK.findall(PAGE)) >= 8
    assert not_in(PACKAGE, PAGE) == []


def test_page_and_package_stay_short() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 300
    assert len(PAGE.splitlines()) <= 250


def test_its_names_agree(acme: InstalledExtension) -> None:
    for value in EXTENSION.values:
        acme.load(value)
    kind, rig = driver_kinds()["acme"], rigs()["acme"]
    assert acme.load(kind.emulated_by) is protocol_named("acme")
    assert kind.protocol == rig.protocol == "acme"  # type: ignore[attr-defined]
    assert kind.profile == rig.profile == profiles()["acme-p"].name  # type: ignore[attr-defined]
    assert "acme-p" in kind.products


def test_it_changes_light_and_reads_it(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    identity = driver.open()
    assert (identity.vendor, identity.model, identity.version) == ("Acme", "P4", "1.0")
    converge(driver, [XC(1, 6), XC(2, 5)])
    converge(driver, [XC(1, 5), XC(2, 6)])
    assert switch.cross_connects() == {XC(1, 5), XC(2, 6)}
    assert driver.set_port_enabled(6, False).state is PortState.BLOCKED
    reading = driver.snapshot()
    assert set(reading.cross_connects) == {XC(1, 5), XC(2, 6)}
    assert [port for port, status in reading.ports.items() if not status.enabled] == [6]
    assert driver.set_port_enabled(6, True).state is PortState.TUNED
    converge(driver, [XC(4, 8)])
    assert driver.power_dbm([1, 4]) == {1: 0.0, 4: None}
    assert [(alarm.kind, alarm.port) for alarm in driver.alarms()] == [("LOS", 4)]


def test_a_refusal_has_the_switch_s_words(driver: OpticalSwitchDriver) -> None:
    driver.open()
    with pytest.raises(Refused, match="there is no port 9"):
        driver._set_port_enabled(9, False, Deadline(5.0))


def test_a_switch_of_another_size_is_refused(switch: ModelSwitch) -> None:
    made = make_driver("ocs0", {"driver": "acme", "address": switch.address}, SIZE + 1)
    with pytest.raises(ProtocolError, match="the switch is 4x4, the fabric says 5x5"):
        made.open()
    made.close()


def test_a_reading_has_every_port() -> None:
    reading = parse_reading("ocs0", 2, "2 1-3 2-4* TMTD")
    assert reading.cross_connects == {
        XC(1, 3): CrossConnectState.CONNECTED,
        XC(2, 4): CrossConnectState.PENDING_CONNECTION,
    }
    assert [status.state for status in reading.ports.values()] == [
        PortState.TUNED,
        PortState.TUNING,
        PortState.TUNED,
        PortState.BLOCKED,
    ]
    for wrong in ("1 1-3 2-4* TMTD", "2 1-3 2-4* TMT", "2 1-3 2-3 TTTT", "1 1-3", ""):
        with pytest.raises(ProtocolError):
            parse_reading("ocs0", 2, wrong)


@given(st.text(st.sampled_from("0123456789-*. TMBDFx\n"), max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (
        parse_identity,
        lambda given: parse_reading("ocs0", 2, given),
        lambda given: parse_powers([1, 2], given),
    ):
        with contextlib.suppress(ProtocolError):
            parse(text)
