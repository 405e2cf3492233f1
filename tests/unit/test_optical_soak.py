"""Random operations through the circuit manager on switches of all protocols with faults: a short run of what
`benchmarks/optical_soak.py` does at length."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from ringlight.controller.circuits.drift import Policy
from ringlight.testbed.emulation.optical import clients
from ringlight.testbed.emulation.optical.switch_faults import FaultSpec, Kind
from tests import optical_soak
from tests.optical_soak import KINDS, Emulated, Soak, soak


def test_every_switch_ends_as_it_should_be_and_nothing_is_left(tmp_path: Path) -> None:
    report = soak(tmp_path, 250, seed=3, rate=0.1, settle_every=50)
    assert report.crashes == []
    assert report.wrong == []
    assert report.operations == 250
    assert len(report.settled_s) == 5
    assert report.injected.total() >= 15
    assert report.acted.total() >= report.injected.total() / 2
    assert report.outcomes["change: done"] > 50
    for before, after in (report.threads, report.descriptors):
        assert after <= before


def test_what_is_not_mended_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optical_soak, "SETTLE_S", 1.0)
    made = Soak(tmp_path, 1, 0.0, ("scpi", "scpi"))
    try:
        made.manager.set_policy(None, Policy.ALARM, "test")
        for name in made.switches:
            for _ in range(3):
                made.inject_one(name, "foreign-writer", 1)
        made.site.look("ocs0")
        made.site.look("ocs1")
        made.settle()
        assert made.report.wrong
        assert all("reports" in one for one in made.report.wrong)
    finally:
        made.close()


def test_a_client_that_has_gone_is_not_waited_for_when_its_reply_cannot_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ENDED_S", 0.3)
    switch = Emulated("ocs0", "scpi", 1)
    try:
        switch.inject(FaultSpec(Kind.NEVER_TUNES))
        host, port = switch.server.addresses["scpi"].split(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b":oxc:swit:conn:add (@1),(@13);*opc?\n")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(10) == b""
        deadline = time.monotonic() + 5
        while switch.server.clients and time.monotonic() < deadline:
            time.sleep(0.02)
        assert switch.server.clients == 0
        # One that half-closes and whose reply comes gets it.
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"*idn?\n")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100).startswith(b"Polatis")
    finally:
        switch.close()


def test_what_is_due_in_a_thousand_years_does_not_end_the_switch(
    tmp_path: Path,
) -> None:
    switch = Emulated("ocs0", "scpi", 1)
    try:
        for kind in (Kind.NEVER_TUNES, Kind.VANISH):
            switch.inject(FaultSpec(kind, count=1))
        host, port = switch.server.addresses["scpi"].split(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b":oxc:swit:conn:add (@1),(@13)\n*idn?\n")
            assert client.recv(100).startswith(b"Polatis")
        deadline = time.monotonic() + 5
        while (
            switch.server.clients
            and switch.died is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        time.sleep(0.1)
        assert switch.died is None
        assert len(switch.state()[0]) == 1
    finally:
        switch.close()


def test_every_kind_of_fault_is_among_those_drawn() -> None:
    assert len(KINDS) == 15
