"""How the emulated switch finds the management protocols that it serves."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringlight.fabric.optical_profiles import IDEAL
from ringlight.testbed.emulation.optical import clients, switch_settings
from ringlight.testbed.emulation.optical import server as serving
from ringlight.testbed.emulation.optical.__main__ import main
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.scpi import ScpiSession
from ringlight.testbed.emulation.optical.session import Switch, protocol_named


def test_a_protocol_is_found_by_its_name() -> None:
    made = protocol_named("scpi").session(Switch("ocs0", OpticalDevice(4, IDEAL)))
    assert isinstance(made, ScpiSession)
    made.feed(b"*idn?\n")
    assert made.advance(0) == b"Polatis,N-EMU-4x4-IDEAL,ocs0,6.0.0.0\n"


@pytest.mark.parametrize("name", ["device", "nothing", "../scpi", "Scpi", ""])
def test_what_is_no_protocol_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="is not a management protocol"):
        protocol_named(name)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--serve", "scpi=127.0.0.1:0"], "each protocol once"),
        (["--serve", "nothing=127.0.0.1:0"], "'nothing' is not a management protocol"),
        (["--serve", "nothing"], "is not protocol=host:port"),
        (["--users", "{users}"], "line 2: not user:password"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    users = tmp_path / "users"
    users.write_text("ann:secret\nbob\n")
    filled = [word.format(users=users) for word in arguments]
    with pytest.raises(SystemExit):
        main(
            ["--name", "ocs0", "--size", "4", "--pins", str(tmp_path / "pins"), *filled]
        )
    told = capsys.readouterr().err
    assert complaint in told
    assert "secret" not in told


@pytest.fixture
def server() -> Iterator[serving.OpticalSwitchServer]:
    """One that nobody has started; what it is asked waits."""
    at = ("127.0.0.1", 0)
    made = serving.OpticalSwitchServer(
        switch_settings.Settings("ocs0", 4, IDEAL, at, netns=None, pins=None)
    )
    yield made
    made._close()


def test_what_nobody_waits_for_any_more_is_not_done(
    server: serving.OpticalSwitchServer,
) -> None:
    done: list[str] = []
    with pytest.raises(TimeoutError):
        server.ask(lambda: done.append("late"), timeout_s=0.01)
    server._answer()
    assert done == []


def test_a_question_that_fails_ends_the_question_and_not_the_switch(
    server: serving.OpticalSwitchServer,
) -> None:
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(server.ask, lambda: int("x"))
        while not asked.done():
            server._answer()
            time.sleep(0.001)
        with pytest.raises(ValueError, match="invalid literal"):
            asked.result(1)


class Farewell:
    """Says one thing to whatever it hears, and ends."""

    next_ns = None
    wants_bytes = idle = True

    def __init__(self) -> None:
        self.over = False

    def feed(self, data: bytes) -> None:
        self.over = True

    def advance(self, now_ns: int) -> bytes:
        return b"bye" if self.over else b""


def test_a_session_that_is_over_is_closed_when_all_is_sent() -> None:
    ours, theirs = socket.socketpair()
    client = clients.Client(theirs, Farewell(), bytearray(), 0.0)
    with ours, selectors.DefaultSelector() as selector:
        served = clients.Clients(selector, 60.0, 0.0)
        served._clients[theirs] = client
        served._listen_for(client, selectors.EVENT_READ)
        served._write(client)
        assert list(served) == [client]
        ours.sendall(b"x")
        served._read(client)
        client.unread += client.session.advance(0)
        served._write(client)
        assert ours.recv(10) == b"bye"
        assert ours.recv(10) == b""
        assert not list(served)


# Clients that hold a place


def turn(server: serving.OpticalSwitchServer, until_s: float = 2.0) -> None:
    """Serves until a moment in which nobody has anything to say."""
    end = time.monotonic() + until_s
    while server._selector.select(0.05) and time.monotonic() < end:
        server._turn()


class Caller:
    def __init__(self, server: serving.OpticalSwitchServer) -> None:
        host, _, port = server.addresses["scpi"].rpartition(":")
        self._server = server
        self.socket = socket.create_connection((host, int(port)), timeout=5)
        turn(server)

    def ask(self, text: str = "*idn?\n") -> bytes:
        self.socket.sendall(text.encode())
        turn(self._server)
        return self.socket.recv(4096)


def test_half_open_clients_shut_nobody_out(server: serving.OpticalSwitchServer) -> None:
    known = Caller(server)
    assert known.ask().startswith(b"Polatis")
    half_open = [Caller(server) for _ in range(clients.MAX_CLIENTS + 6)]
    half_open[-1].socket.sendall(b":oxc:swit")
    newcomer = Caller(server)
    assert newcomer.ask().startswith(b"Polatis")
    # Who was answered stays, however long it has been silent beside them.
    assert known.ask().startswith(b"Polatis")
    assert half_open[0].socket.recv(10) == b""
    assert server.clients == clients.MAX_CLIENTS
    for caller in (known, newcomer, *half_open):
        caller.socket.close()


def test_the_client_that_was_silent_longest_gives_way(
    server: serving.OpticalSwitchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MAX_CLIENTS", 3)
    callers = [Caller(server) for _ in range(3)]
    for caller in callers:
        assert caller.ask()
    # They have just spoken: none of them gives way.
    late = Caller(server)
    assert late.socket.recv(10) == b""
    for client in server._clients:
        client.heard_s -= clients.YIELD_S
    assert callers[0].ask()
    later = Caller(server)
    assert later.ask().startswith(b"Polatis")
    assert callers[1].socket.recv(10) == b""
    assert callers[0].ask()
    assert callers[2].ask()
    for caller in (late, later, *callers):
        caller.socket.close()


def test_silence_is_borne_for_minutes_and_less_before_a_first_answer(
    server: serving.OpticalSwitchServer,
) -> None:
    callers = [Caller(server), Caller(server)]
    callers[0].ask()
    answered, half_open = server._clients
    assert 60 <= server._clients._patience_s(answered) <= 600
    assert server._clients._patience_s(half_open) <= 60
    half_open.heard_s -= server._clients._patience_s(half_open) + 1
    answered.heard_s -= server._clients._patience_s(half_open) + 1
    server._clients.expire()
    assert list(server._clients) == [answered]
    answered.heard_s -= server._clients._patience_s(answered)
    server._clients.expire()
    assert not list(server._clients)
    for caller in callers:
        caller.socket.close()


def test_bytes_that_came_while_the_switch_stood_still_are_no_silence(
    server: serving.OpticalSwitchServer,
) -> None:
    callers = [Caller(server), Caller(server)]
    assert all(caller.ask() for caller in callers)
    callers[0].socket.sendall(b"*idn?\n")
    for client in server._clients:
        client.heard_s -= server._clients._patience_s(client) + 1
    # As a turn goes on whose look at the sockets was before the bytes came.
    server._clients.expire()
    server._work()
    assert callers[0].socket.recv(4096).startswith(b"Polatis")
    assert callers[1].socket.recv(10) == b""
    for caller in callers:
        caller.socket.close()
