"""A switch that runs alone: what it serves where, what it remembers, and what a restart does to its light."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.cli.common import UserError
from ringlight.experiments.cli.ocs_serve import serve
from ringlight.fabric import optical_drivers
from ringlight.fabric.optical_drivers import DriverKind, driver_kinds, protocols_of
from ringlight.fabric.optical_profiles import PIEZO, profiles
from ringlight.testbed.emulation.optical import alone
from ringlight.testbed.emulation.optical.alone import (
    checked,
    example,
    is_loopback,
    read_served,
)
from ringlight.testbed.emulation.optical.commands import (
    NS,
    Admin,
    Recovery,
    Stored,
    TunedEgress,
)
from ringlight.testbed.emulation.optical.recovery import ModelledPaths, booted
from ringlight.testbed.emulation.optical.session import protocol_named
from ringlight.testbed.emulation.optical.switch_settings import Settings
from tests.drivers import PROTOCOLS

LIT = {(1, None): TunedEgress(9, 5 * NS), (2, None): TunedEgress(10, 900 * NS)}
STORED = Stored(LIT, {3: Admin.DISABLED}, {4: "spare"})


def test_maintained_light_is_as_it_was() -> None:
    found = booted(replace(STORED, recovery=Recovery.MAINTAIN), PIEZO, 0, 1000 * NS)
    assert found == STORED  # MAINTAIN is what a switch does that was told nothing
    # The machine was started anew, and its clock with it.
    found = booted(replace(STORED, recovery=Recovery.MAINTAIN), PIEZO, 0, 10 * NS)
    assert found.cross_connects[1, None] == TunedEgress(9, 5 * NS)
    assert (
        10 * NS < found.cross_connects[2, None].ready_ns <= 10 * NS + round(0.060 * NS)
    )


def test_restored_light_is_dark_first_and_removed_light_is_gone() -> None:
    found = booted(replace(STORED, recovery=Recovery.RESTORE), PIEZO, 0, 1000 * NS)
    assert {spot: lit.egress for spot, lit in found.cross_connects.items()} == {
        (1, None): 9,
        (2, None): 10,
    }
    for lit in found.cross_connects.values():
        assert (
            1000 * NS + round(0.055 * NS)
            <= lit.ready_ns
            <= 1000 * NS + round(0.060 * NS)
        )
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
    with pytest.raises(
        ValueError, match="state: another switch that runs keeps its state there"
    ):
        ModelledPaths(tmp_path / "state", "ocs", 8)
    paths.close()
    again = ModelledPaths(tmp_path / "state", "ocs", 8)
    assert again.resumed
    assert again.cross_connects() == {(1, None): TunedEgress(9, 5)}
    assert again.stored().recovery is Recovery.RESTORE
    assert (again.stored().admin, again.stored().labels) == (
        {3: Admin.DISABLED},
        {5: "x"},
    )
    again.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{", "state.json: is not the state of a switch"),
        ("[]", "state.json: is not the state of a switch"),
        (
            {"size": 16},
            "state.json: is of another switch .*size 16; this one: .*size 8",
        ),
        ({"layout": 0}, "state.json: is of another switch"),
        ({"cross_connects": [[1, 9]]}, "state.json: is not the state of a switch"),
        ({"disabled": ["x"]}, "state.json: is not the state of a switch"),
        (
            {"cross_connects": [[1, 9, 5], [2, 9, 5]]},
            "state.json: no switch of 8 ports has these",
        ),
        (
            {"cross_connects": [[1, 17, 5]]},
            "state.json: no switch of 8 ports has these",
        ),
    ],
)
def test_a_file_that_is_no_state_is_named(
    tmp_path: Path, change: Any, said: str
) -> None:
    paths = ModelledPaths(tmp_path, "ocs", 8)
    paths.connect(1, 9, 5)
    paths.keep()
    paths.close()
    file = tmp_path / "state.json"
    file.write_text(
        change
        if isinstance(change, str)
        else json.dumps(json.loads(file.read_text()) | change)
    )
    with pytest.raises(ValueError, match=said):
        ModelledPaths(tmp_path, "ocs", 8)
    # The folder is free again.
    file.unlink()
    ModelledPaths(tmp_path, "ocs", 8).close()


def test_each_profile_speaks_its_own_protocols_where_anybody_may_listen() -> None:
    assert "scpi" in protocols_of("mems")
    assert set(protocols_of("mems")) == {
        kind.protocol for kind in driver_kinds().values() if kind.protocol
    }
    assert protocols_of("lcos") == protocols_of("palomar") == ()
    for profile in profiles():
        if not (spoken := set(protocols_of(profile)) & set(PROTOCOLS)):
            continue
        chosen = tuple(read_served(protocol, profile) for protocol in spoken)
        served = checked(Settings("ocs", 8, profiles()[profile], serve=chosen)).serve
        assert {name for name, _ in served} == spoken
        assert all(host == "127.0.0.1" and port >= 1024 for _, (host, port) in served)
        for protocol in spoken:
            logins = [
                kind.login
                for kind in driver_kinds().values()
                if kind.protocol == protocol
            ]
            assert ("ann" in example(protocol, "[::1]:1", "ann")) is logins[0]
            assert "{" not in example(protocol, "[::1]:1", "")
    assert read_served("scpi=[::1]:7", "mems") == ("scpi", ("::1", 7))
    assert [
        is_loopback(host) for host in ("::1", "localhost", "10.0.0.5", "ocs.lab")
    ] == [
        True,
        True,
        False,
        False,
    ]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol with a login, and a profile that does not speak it."""
    kinds = {**driver_kinds(), "acme": DriverKind("acme:Acme", protocol="acme")}
    acme = replace(protocol_named("scpi"), port=7)
    for module in (alone, optical_drivers):
        monkeypatch.setattr(module, "driver_kinds", lambda: kinds)
    monkeypatch.setattr(
        alone,
        "protocol_named",
        lambda name: acme if name == "acme" else protocol_named(name),
    )


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"profile": "palomar"}, 2, "--profile palomar: there are mems, piezo, "),
        ({"served": ["telnet"]}, 2, "'telnet' is not a management protocol"),
        ({"served": ["scpi=10.0.0.5"]}, 2, "'10.0.0.5' is not HOST:PORT"),
        (
            {"served": ["acme=0.0.0.0:0"]},
            2,
            "acme=0.0.0.0: beyond loopback it needs users",
        ),
        (
            {"served": ["acme=nowhere.invalid:0"]},
            2,
            "acme=nowhere.invalid: beyond loopback",
        ),
        ({"served": ["scpi=0.0.0.0:0"]}, 2, "has no login, and is served on loopback"),
        ({"served": ["scpi", "scpi"]}, 2, "scpi is named twice"),
        (
            {"users": Path("/nowhere/users")},
            2,
            "--users /nowhere/users: No such file or directory",
        ),
        (
            {"recovery": "cold"},
            2,
            "--recovery cold: there are maintain, restore, remove",
        ),
        ({"failed_port": [17], "ports": 8}, 2, r"there is no port 17 \(1..16\)"),
        (
            {"served": ["scpi=127.0.0.1:0"], "state": Path("/dev/null/x")},
            1,
            "/dev/null/x: Not a dir",
        ),
    ],
)
@pytest.mark.usefixtures("users")
def test_what_cannot_be_served_is_one_line(
    options: dict[str, Any], code: int, said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        serve(**options)
    assert caught.value.exit_code == code


def test_an_example_with_another_placeholder_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = replace(protocol_named("scpi"), example="telnet {hots} {port}")
    monkeypatch.setattr(alone, "protocol_named", lambda name: wrong)
    with pytest.raises(UserError) as caught:
        serve(served=["scpi=127.0.0.1:0"])
    assert caught.value.exit_code == 2
    assert "the example of scpi: {hots} is none of {address}, {host}, {port}, " in str(
        caught.value
    )


def test_a_profile_does_not_speak_what_only_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alone, "protocols_of", lambda profile: ("acme",))
    with pytest.raises(
        ValueError, match="a acme-1 does not speak scpi; it speaks acme"
    ):
        read_served("scpi", "acme-1")


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError) as caught:
            serve(served=[f"scpi={where}"])
    assert str(caught.value) == (
        f"ocs serve: scpi at {where}: Address already in use; choose another, or let the system "
        "choose a free one: --serve scpi=127.0.0.1:0"
    )
    assert caught.value.exit_code == 1


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:s3cret\n\nbobs3cret\n")
    with pytest.raises(UserError, match="users, line 3: not user:password") as caught:
        serve(users=users)
    assert "s3cret" not in str(caught.value)
