"""A switch that runs alone: what it serves where, what it remembers, and what a restart does to its light."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from ringlight.experiments.cli.common import UserError
from ringlight.experiments.cli.ocs_serve import serve
from ringlight.extensions.ocp.emulation.tree import Names
from ringlight.fabric.optical_drivers import protocols_of
from ringlight.fabric.optical_profiles import PIEZO, PROFILES
from ringlight.testbed.emulation.optical.alone import PORTS, checked, example, is_loopback, read_served
from ringlight.testbed.emulation.optical.device import (
    NS,
    Admin,
    OpticalDevice,
    Recovery,
    Stored,
    TunedEgress,
    Wire,
)
from ringlight.testbed.emulation.optical.recovery import ModelledPaths, booted
from ringlight.testbed.emulation.optical.server import Settings

LIT = {(1, None): TunedEgress(9, 5 * NS), (2, None): TunedEgress(10, 900 * NS)}
STORED = Stored(LIT, {3: Admin.DISABLED}, {4: "spare"})


def test_maintained_light_is_as_it_was() -> None:
    found = booted(replace(STORED, recovery=Recovery.MAINTAIN), PIEZO, 0, 1000 * NS)
    assert found == STORED  # MAINTAIN is what a switch does that was told nothing
    # The machine was started anew, and its clock with it.
    found = booted(replace(STORED, recovery=Recovery.MAINTAIN), PIEZO, 0, 10 * NS)
    assert found.cross_connects[1, None] == TunedEgress(9, 5 * NS)
    assert 10 * NS < found.cross_connects[2, None].ready_ns <= 10 * NS + round(0.060 * NS)


def test_restored_light_is_dark_first_and_removed_light_is_gone() -> None:
    found = booted(replace(STORED, recovery=Recovery.RESTORE), PIEZO, 0, 1000 * NS)
    assert {spot: lit.egress for spot, lit in found.cross_connects.items()} == {(1, None): 9, (2, None): 10}
    for lit in found.cross_connects.values():
        assert 1000 * NS + round(0.055 * NS) <= lit.ready_ns <= 1000 * NS + round(0.060 * NS)
    assert (found.admin, found.labels) == (STORED.admin, STORED.labels)
    found = booted(replace(STORED, recovery=Recovery.REMOVE), PIEZO, 0, 1000 * NS)
    assert found == Stored({}, STORED.admin, STORED.labels, Recovery.REMOVE)


def test_what_was_kept_is_read_and_what_was_not_is_lost(tmp_path: Path) -> None:
    paths = ModelledPaths(tmp_path / "state", "ocs", 8)
    assert not paths.resumed
    paths.connect(1, 9, 5)
    paths.connect(2, 10, 6)
    paths.disconnect(2)
    paths.set_admin(3, Admin.DISABLED)
    paths.set_admin(4, Admin.ENABLED)
    paths.set_label(5, "x")
    paths.set_recovery(Recovery.RESTORE)
    paths.keep()
    paths.connect(3, 11, 7)
    with pytest.raises(ValueError, match="state: another switch that runs keeps its state there"):
        ModelledPaths(tmp_path / "state", "ocs", 8)
    paths.close()
    again = ModelledPaths(tmp_path / "state", "ocs", 8)
    assert again.resumed
    assert again.cross_connects() == {(1, None): TunedEgress(9, 5)}
    assert again.stored().recovery is Recovery.RESTORE
    assert (again.stored().admin, again.stored().labels) == ({3: Admin.DISABLED}, {5: "x"})
    again.close()


def test_connections_keep_their_names() -> None:
    device = OpticalDevice(8, PIEZO, 0, Stored(LIT))
    Names(device).give({"red": Wire(1, 9)}, [])
    noted = json.loads(json.dumps(device.remembered()))
    again = OpticalDevice(8, PIEZO, 0, Stored(LIT, notes=noted | {"other": [1]}))
    # Nobody has asked for names yet; what nobody knows is kept.
    assert again.remembered() == noted | {"other": [1]}
    assert Names(again).current() == {"red": Wire(1, 9), "port-2:port-10": Wire(2, 10)}
    assert again.remembered() == noted | {"other": [1]}
    assert booted(again_stored := Stored(LIT, notes=noted), PIEZO, 0, 0).notes == noted
    assert booted(replace(again_stored, recovery=Recovery.REMOVE), PIEZO, 0, 0).notes == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{", "state.json: is not the state of a switch"),
        ("[]", "state.json: is not the state of a switch"),
        ({"size": 16}, "state.json: is of another switch .*size 16; this one: .*size 8"),
        ({"layout": 0}, "state.json: is of another switch"),
        ({"cross_connects": [[1, 9]]}, "state.json: is not the state of a switch"),
        ({"disabled": ["x"]}, "state.json: is not the state of a switch"),
        ({"cross_connects": [[1, 9, 5], [2, 9, 5]]}, "state.json: no switch of 8 ports has these"),
        ({"cross_connects": [[1, 17, 5]]}, "state.json: no switch of 8 ports has these"),
    ],
)
def test_a_file_that_is_no_state_is_named(tmp_path: Path, change: Any, said: str) -> None:
    paths = ModelledPaths(tmp_path, "ocs", 8)
    paths.connect(1, 9, 5)
    paths.keep()
    paths.close()
    file = tmp_path / "state.json"
    file.write_text(change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=said):
        ModelledPaths(tmp_path, "ocs", 8)
    # The folder is free again.
    file.unlink()
    ModelledPaths(tmp_path, "ocs", 8).close()


def test_each_product_speaks_its_own_protocols_where_anybody_may_listen() -> None:
    assert protocols_of("calient-s320") == ("calient-tl1", "calient-rest")
    assert protocols_of("polatis-7000") == ("scpi", "polatis-tl1", "polatis-restconf")
    assert protocols_of("ocp") == ("ocp-gnmi",)
    assert protocols_of("sonic-ocs") == ("sonic-ocs", "sonic-ocs-gnmi")
    assert set(protocols_of("mems")) == set(PORTS)
    assert protocols_of("lcos") == protocols_of("palomar") == ()
    for profile in PROFILES:
        if not (spoken := protocols_of(profile)):
            continue
        served = checked(Settings("ocs", 8, PROFILES[profile])).serve
        assert tuple(name for name, _ in served) == spoken
        assert all(host == "127.0.0.1" and port >= 1024 for _, (host, port) in served)
        for protocol in spoken:
            assert "ann" in example(protocol, "[::1]:1", "ann") or protocol == "scpi"
    assert read_served("calient-tl1=[::1]:7", "calient-s320") == ("calient-tl1", ("::1", 7))
    assert [is_loopback(host) for host in ("::1", "localhost", "10.0.0.5", "ocs.lab")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"profile": "palomar"}, 2, "--profile palomar: there are mems, piezo, calient-s320,"),
        (
            {"served": ["polatis-tl1"]},
            2,
            "a calient-s320 does not speak polatis-tl1; it speaks calient-tl1, ",
        ),
        ({"served": ["telnet"]}, 2, "'telnet' is not a management protocol"),
        ({"served": ["calient-tl1=10.0.0.5"]}, 2, "'10.0.0.5' is not HOST:PORT"),
        ({"served": ["calient-tl1=0.0.0.0:0"]}, 2, "calient-tl1=0.0.0.0: beyond loopback it needs users"),
        ({"profile": "ideal", "served": ["scpi=0.0.0.0:0"]}, 2, "has no login, and is served on loopback"),
        ({"served": ["calient-tl1", "calient-tl1"]}, 2, "calient-tl1 is named twice"),
        ({"users": Path("/nowhere/users")}, 2, "--users /nowhere/users: No such file or directory"),
        ({"recovery": "cold"}, 2, "--recovery cold: there are maintain, restore, remove"),
        ({"failed_port": [17], "ports": 8}, 2, r"there is no port 17 \(1..16\)"),
        ({"served": ["calient-tl1=127.0.0.1:0"], "state": Path("/dev/null/x")}, 1, "/dev/null/x: Not a dir"),
        ({"served": ["calient-tl1=nowhere.invalid:0"]}, 2, "calient-tl1=nowhere.invalid: beyond loopback"),
    ],
)
def test_what_cannot_be_served_is_one_line(options: dict[str, Any], code: int, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        serve(**options)
    assert caught.value.exit_code == code


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError) as caught:
            serve(served=[f"calient-tl1={where}"])
    assert str(caught.value) == (
        f"ocs serve: calient-tl1 at {where}: Address already in use; choose another, or let the system "
        "choose a free one: --serve calient-tl1=127.0.0.1:0"
    )
    assert caught.value.exit_code == 1


def test_spoilt_notes_are_named(tmp_path: Path) -> None:
    paths = ModelledPaths(tmp_path, "ocs", 8)
    row = {"source": 99, "destination": 2, "two_way": False, "group": "", "name": "", "nolight": True}
    for note, said in ((row | {"active": True}, "there is no circuit 99>2"), (row, "missing")):
        paths.set_notes({"calient": [note]})
        paths.keep()
        paths.close()
        with pytest.raises(UserError, match=f"what it remembers of calient-tl1 is spoilt: .*{said}"):
            serve(served=["calient-tl1=127.0.0.1:0"], ports=8, state=tmp_path)
        paths = ModelledPaths(tmp_path, "ocs", 8)
    paths.close()


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:s3cret\n\nbobs3cret\n")
    with pytest.raises(UserError, match="users, line 3: not user:password") as caught:
        serve(users=users)
    assert "s3cret" not in str(caught.value)


def test_every_profile_that_can_be_served_is_in_the_help() -> None:
    (option,) = get_type_hints(serve, include_extras=True)["profile"].__metadata__
    named = set(re.findall(r"[\w-]+", option.help)) - {"or"}
    assert named == {name for name in PROFILES if protocols_of(name)}
