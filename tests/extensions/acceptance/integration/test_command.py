"""The acceptance kit as a user has it: its command against a switch that is there already."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.extensions.acceptance.items import ITEMS
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.testbed.rigs.emulated import PASSWORD, SIZE, USER, ScpiRig
from tests.forks import ringlight
from tests.optical_model import ModelSwitch

pytestmark = pytest.mark.root

#: Protocols of the emulated switch that need a login and no certificate.
LOGINS = [
    name
    for name, kind in driver_kinds().items()
    if kind.login and kind.protocol == name and "tls" not in kind.options
]

#: What the user may touch: three pairs, as the switch numbers them.
PORTS = "1,2,3,9,10,11"
OURS, OTHERS = CrossConnect(1, SIZE + 2), CrossConnect(4, SIZE + 4)


@pytest.fixture(scope="module")
def rig() -> Iterator[ScpiRig]:
    made = ScpiRig(profile="ideal")
    try:
        yield made
    finally:
        made.close()


def conformance(
    rig: ScpiRig, *words: str, driver: str = "scpi"
) -> subprocess.CompletedProcess[str]:
    place = ("--driver", driver, "--target", rig.address, "--size", str(SIZE))
    return ringlight("ocs", "conformance", *place, *words)


def test_a_target_gets_back_what_it_had_and_others_ports_are_not_touched(
    rig: ScpiRig, tmp_path: Path
) -> None:
    rig.wipe()
    rig.external_connect(OURS)
    rig.external_connect(OTHERS)
    lit = rig.lit_since(OTHERS)
    done = conformance(rig, "--ports", PORTS, "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (switch,) = json.loads(done.stdout)["switches"]
    states = {one["item"]: one["state"] for one in switch["items"]}
    assert states.keys() == ITEMS.keys()
    assert "failed" not in states.values()
    assert {item for item, state in states.items() if state == "green"} >= {
        3,
        7,
        8,
        9,
        12,
        13,
        14,
        15,
        19,
        24,
    }
    # What takes a rig's powers is said to lack them.
    (lost,) = [one["text"] for one in switch["items"] if one["item"] == 25]
    assert lost == "a wire that loses replies"
    assert rig.truth() == {OURS, OTHERS}
    assert rig.lit_since(OTHERS) == lit
    assert "put back: 1->10" in done.stderr
    page = (tmp_path / "index.html").read_text()
    assert "no item of the conformance list failed" in page


@pytest.mark.parametrize("protocol", LOGINS)
def test_a_switch_that_takes_any_password_is_named(
    protocol: str, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")

    def accepted(switch: ModelSwitch) -> subprocess.CompletedProcess[str]:
        place = ("--driver", protocol, "--target", switch.address, "--size", str(SIZE))
        login = ("--username", USER, "--password-file", str(password))
        check = (
            "--read-only",
            "--check",
            "a_wrong_password_is_told_apart_and_never_shown",
        )
        return ringlight("ocs", "conformance", *place, *login, *check)

    with ModelSwitch(protocol, SIZE) as switch:
        open_to_all = accepted(switch)
        assert open_to_all.returncode == 1
        last = open_to_all.stdout.splitlines()[
            -2 if "lacks" in open_to_all.stdout else -1
        ]
        assert f"{protocol} at {switch.address} FAILED it accepts any password" in last
        assert "needs --users FILE (item 1, 45)" in last
    with ModelSwitch(protocol, SIZE, users={USER: PASSWORD}) as switch:
        told = accepted(switch)
        assert told.returncode == 0, told.stdout + told.stderr


def test_a_target_that_may_only_be_read_is_not_written(rig: ScpiRig) -> None:
    rig.wipe()
    rig.external_connect(OURS)
    lit = rig.lit_since(OURS)
    done = conformance(rig, "--read-only")
    assert done.returncode == 0, done.stderr
    assert "lacks leave to write (read-only)" in done.stdout
    assert rig.truth() == {OURS}
    assert rig.lit_since(OURS) == lit


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ports", "1,2,9,99"], "--ports: the switch has no port 99"),
        (
            ["--ports", "1,2,9"],
            "--ports: at least two ingress and two egress ports are needed",
        ),
        (
            ["--ports", "2,3,10,11"],
            "--ports: 1->10 has one end on a port that may not be touched",
        ),
        (["--set", "tls"], "--set: 'tls' is not KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    rig: ScpiRig, words: list[str], said: str
) -> None:
    rig.wipe()
    rig.external_connect(OURS)
    lit = rig.lit_since(OURS)
    started = time.monotonic()
    done = conformance(rig, *words)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert time.monotonic() - started < 30
    assert rig.truth() == {OURS}
    assert rig.lit_since(OURS) == lit
