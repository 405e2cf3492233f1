"""Several management protocols of one emulated switch that moves packets: root, eBPF."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from ringlight.extensions.tl1.grammar import MessageFramer, Reply, Report
from ringlight.testbed.acceptance.network import run
from ringlight.testbed.acceptance.rigs.emulated import PASSWORD, SIZE, USER
from ringlight.testbed.acceptance.rigs.tl1 import PolatisTl1Rig

pytestmark = pytest.mark.root

IDLE_S = 3.0


class Rig(PolatisTl1Rig):
    """SCPI and both TL1 dialects; silent clients are cut off soon."""

    profile = "calient-s320"

    def _arguments(self) -> list[str]:
        more = ["--serve", "calient-tl1=127.0.0.1:0", "--idle-timeout", str(IDLE_S)]
        return [*super()._arguments(), *more]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    made = Rig()
    try:
        yield made
    finally:
        made.close()


class Client:
    """One connection, line by line; every wait has an end."""

    def __init__(self, address: str, user: str = USER, password: str = PASSWORD) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._framer = MessageFramer()
        self._messages: list[Reply | Report] = []
        self.login = self.ask(f'ACT-USER::{user}:1::"{password}";')

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: str) -> Reply:
        self._socket.sendall(command.encode())
        while True:
            message = self.message()
            if isinstance(message, Reply):
                return message

    def message(self) -> Reply | Report | None:
        """The next one; None when the switch has hung up."""
        while not self._messages:
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._messages += self._framer.feed(data)
        return self._messages.pop(0)

    def report(self) -> Report:
        """The next report."""
        while True:
            message = self.message()
            assert message is not None, "the switch hung up"
            if isinstance(message, Report):
                return message


def scpi(rig: Rig, command: str) -> str:
    host, port = rig.addresses["scpi"].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as other:
        other.sendall(f"{command};*opc?\n".encode())
        return other.makefile().readline().strip()


def test_all_protocols_speak_of_one_switch(rig: Rig) -> None:
    assert rig.addresses.keys() == {"scpi", "polatis-tl1", "calient-tl1"}
    with Client(rig.addresses["polatis-tl1"]) as polatis, Client(rig.addresses["calient-tl1"]) as calient:
        assert polatis.ask(f"ENT-PATCH::1,{SIZE + 2}:2:;").outcome == "COMPLD"
        assert calient.ask("ENT-CRS::2,3:2::LAB,1WAY;").outcome == "COMPLD"
        assert calient.ask("ACT-CRS::2,3:3::1.1.2>1.1.3,LAB;").outcome == "COMPLD"
        assert scpi(rig, ":oxc:swit:conn:stat?") == f"(@1,2),(@{SIZE + 2},{SIZE + 3});1"
        assert polatis.ask("RTRV-PATCH:::4:;").rows == (f"1,{SIZE + 2}", f"2,{SIZE + 3}")
        listed = calient.ask("RTRV-CRS:::4::ALL;").rows
        assert [row.partition(":")[0] for row in listed] == ["1.1.1>1.1.2", "1.1.2>1.1.3"]
        assert [row.split("GRPNAME=")[1].split(",")[0] for row in listed] == ["SYSTEM", "LAB"]
        assert len(rig.truth()) == 2
        assert calient.ask("DLT-CRS-ALL;").outcome == "COMPLD"
        assert polatis.ask("RTRV-PATCH:::5:;").rows == ()
    assert rig.truth() == set()


def test_loss_of_light_is_reported_to_all_who_are_logged_in(rig: Rig) -> None:
    namespace = rig.hosts[4].namespace
    with Client(rig.addresses["polatis-tl1"]) as polatis, Client(rig.addresses["calient-tl1"]) as calient:
        try:
            for state, severity, level in (("down", "**", "MJ"), ("up", "A", "CL")):
                run("ip", "-n", namespace, "link", "set", "eth0", state)
                for client, name in ((polatis, "4"), (calient, "1.1.4-IN")):
                    report = client.report()
                    assert (report.severity, report.verb) == (severity, "REPT ALM PORT")
                    assert report.rows[0].startswith(f"{name}:{level},LOS,SA,")
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
    driver = rig.driver()
    try:
        driver.open()
        driver.apply(driver.plan([rig.xc(1, 2)]))
        with Client(rig.addresses["calient-tl1"]) as silent:
            started = time.monotonic()
            while (message := silent.message()) is not None:
                assert isinstance(message, Report)
            assert time.monotonic() - started > 0.8 * IDLE_S
        rig.writes()
        plan = driver.plan([rig.xc(1, 3)])
        driver.apply(plan)
        assert len(rig.writes()) == 2
        assert rig.truth() == {rig.xc(1, 3)}
    finally:
        driver.close()
