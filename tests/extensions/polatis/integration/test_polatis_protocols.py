"""SCPI and TL1 of one emulated switch that moves packets: root, eBPF."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from ringlight.extensions.tl1.tl1_grammar import Report
from ringlight.testbed.rigs.emulated import SIZE, USER, ScpiRig
from ringlight.testbed.rigs.network import run
from tests.extensions.tl1.talk import Client

pytestmark = pytest.mark.root

IDLE_S = 3.0


class Rig(ScpiRig):
    """SCPI and TL1; silent clients are cut off soon."""

    protocol = "polatis-tl1"
    profile = "polatis-7000"

    def _arguments(self) -> list[str]:
        return [*super()._arguments(), "--idle-timeout", str(IDLE_S)]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    try:
        yield made
    finally:
        made.close()


def scpi(rig: Rig, command: str) -> str:
    host, port = rig.addresses["scpi"].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as other:
        other.sendall(f"{command};*opc?\n".encode())
        return other.makefile().readline().strip()


def test_both_protocols_speak_of_one_switch(rig: Rig) -> None:
    assert rig.addresses.keys() == {"scpi", "polatis-tl1"}
    with Client(rig.addresses["polatis-tl1"]) as polatis:
        assert polatis.ask(f"ENT-PATCH::1,{SIZE + 2}:2:;").outcome == "COMPLD"
        assert scpi(rig, f":oxc:swit:conn:add (@2),(@{SIZE + 3})") == "1"
        assert scpi(rig, ":oxc:swit:conn:stat?") == f"(@1,2),(@{SIZE + 2},{SIZE + 3});1"
        assert polatis.ask("RTRV-PATCH:::4:;").rows == (
            f"1,{SIZE + 2}",
            f"2,{SIZE + 3}",
        )
        assert len(rig.truth()) == 2
        assert scpi(rig, ":oxc:swit:disc:all") == "1"
        assert polatis.ask("RTRV-PATCH:::5:;").rows == ()
    assert rig.truth() == set()


def test_loss_of_light_is_reported_to_all_who_are_logged_in(rig: Rig) -> None:
    namespace = rig.hosts[4].namespace
    with (
        Client(rig.addresses["polatis-tl1"]) as one,
        Client(rig.addresses["polatis-tl1"]) as other,
    ):
        try:
            for state, severity, level in (("down", "**", "MJ"), ("up", "A", "CL")):
                run("ip", "-n", namespace, "link", "set", "eth0", state)
                for client in (one, other):
                    report = client.report()
                    assert (report.severity, report.verb) == (severity, "REPT ALM PORT")
                    assert report.rows[0].startswith(f"4:{level},LOS,SA,")
        finally:
            run("ip", "-n", namespace, "link", "set", "eth0", "up")


def test_nothing_without_a_login_and_no_more_after_a_logout(rig: Rig) -> None:
    with Client(rig.addresses["polatis-tl1"], password="wr0ng") as stranger:
        assert (stranger.login.outcome, stranger.login.rows) == ("DENY", ("PIUI",))
        assert stranger.ask("DLT-PATCH::ALL:2:;").rows == ("PLNA",)
    with Client(rig.addresses["polatis-tl1"]) as client:
        assert client.ask(f"CANC-USER::{USER}:2:;").outcome == "COMPLD"
        assert client.message() is None


def test_a_silent_client_is_cut_off_and_the_driver_logs_in_again(rig: Rig) -> None:
    driver = rig.driver(direct=True)
    try:
        driver.open()
        driver.apply(driver.plan([rig.xc(1, 2)]))
        with Client(rig.addresses["polatis-tl1"]) as silent:
            started = time.monotonic()
            while (message := silent.message()) is not None:
                assert isinstance(message, Report)
            assert time.monotonic() - started > 0.8 * IDLE_S
        driver.apply(driver.plan([rig.xc(1, 3)]))
        assert rig.truth() == {rig.xc(1, 3)}
    finally:
        driver.close()
