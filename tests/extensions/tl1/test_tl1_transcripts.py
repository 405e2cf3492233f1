"""Conversations over TL1, kept as text, replayed byte for byte against drivers and the emulated switch."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.optical_profiles import IDEAL
from ringlight.testbed.emulation.optical.commands import NS
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import Switch
from tests.extensions.tl1.dialects import DIALECTS

#: 26-11-23 08:45:20
NOW_NS = 1_795_423_520 * NS


@dataclass
class Transcript:
    """``steps``: what the driver is asked, and what is said then: commands, each with its reply."""

    size: int = 0
    steps: list[tuple[str, list[tuple[bytes, bytes]]]] = field(default_factory=list)

    @classmethod
    def read(cls, name: str) -> Transcript:
        found = cls()
        file = name.replace("-", "_")
        (path,) = Path(__file__).parents[1].glob(f"*/data/{file}.txt")
        for line in path.read_text().splitlines():
            kind, _, text = line.partition(" ")
            told = text.encode("ascii").decode("unicode_escape").encode("ascii")
            match kind:
                case "size":
                    found.size = int(text)
                case "=":
                    found.steps.append((text, []))
                case ">":
                    found.steps[-1][1].append((told, b""))
                case "<":
                    command, reply = found.steps[-1][1].pop()
                    found.steps[-1][1].append((command, reply + told))
                case _:
                    assert kind in ("#", ""), line
        return found


@pytest.mark.parametrize("name", DIALECTS)
def test_the_emulated_switch_says_so(name: str) -> None:
    transcript = Transcript.read(name)
    device = OpticalDevice(transcript.size, IDEAL)
    for port in range(1, transcript.size + 1):
        device.receive(port, True)
    session = DIALECTS[name](Switch("ocs0", device, {"ann": "s3cret"}), NOW_NS)
    session.advance(0)
    count = 0
    for asked, said in transcript.steps:
        for command, reply in said:
            session.feed(command)
            told = session.advance(0)
            while device.next_ns is not None:
                device.advance(0)
                told += session.advance(0)
            assert told == reply, f"{asked}: {command!r}"
            count += 1
    assert count > 30


class Replay:
    """A switch that expects these very bytes, and answers with those."""

    def __init__(self, said: list[tuple[bytes, bytes]]) -> None:
        self.left = list(said)
        self.wrong = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                while self.left:
                    wanted, reply = self.left[0]
                    heard = b""
                    while len(heard) < len(wanted):
                        data = connection.recv(len(wanted) - len(heard))
                        if not data:
                            return
                        heard += data
                    if heard != wanted:
                        self.wrong = f"{heard!r} where {wanted!r} was expected"
                        return
                    del self.left[0]
                    connection.sendall(reply)
                connection.recv(100)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.fixture(params=DIALECTS)
def played(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Transcript, Replay, OpticalSwitchDriver]]:
    transcript = Transcript.read(request.param)
    replay = Replay([exchange for _, said in transcript.steps for exchange in said])
    (tmp_path / "password").write_text("s3cret\n")
    entry = {
        "driver": request.param,
        "address": f"127.0.0.1:{replay.port}",
        "username": "ann",
    }
    driver = make_driver(
        "ocs0", entry | {"password_file": str(tmp_path / "password")}, transcript.size
    )
    try:
        yield transcript, replay, driver
    finally:
        driver.close()
        replay.close()


def do(driver: OpticalSwitchDriver, asked: str) -> None:
    verb, *rest = asked.split()
    match verb:
        case "open":
            assert driver.open().serial == "ocs0"
        case "update" | "replace":
            wanted = {
                CrossConnect(*[int(end) for end in one.split(">")]) for one in rest
            }
            result = driver.apply(driver.plan(wanted, Mode(verb)))
            assert not result.deviations
            assert wanted <= result.snapshot.cross_connects.keys()
        case "disable" | "enable":
            driver.set_port_enabled(int(rest[0]), verb == "enable")
        case "power":
            powers = driver.power_dbm([int(port) for port in rest])
            assert [power is None or power < -50 for power in powers.values()] == [
                False,
                False,
                True,
            ]
        case _:
            raise AssertionError(asked)


def test_the_driver_says_so(
    played: tuple[Transcript, Replay, OpticalSwitchDriver],
) -> None:
    transcript, replay, driver = played
    left = len(replay.left)
    for asked, said in transcript.steps:
        try:
            do(driver, asked)
        finally:
            assert not replay.wrong, asked
        left -= len(said)
        assert len(replay.left) == left, asked


def test_another_word_of_the_driver_is_noticed(
    played: tuple[Transcript, Replay, OpticalSwitchDriver],
) -> None:
    transcript, replay, driver = played
    replay.left[0] = (replay.left[0][0].replace(b"ann", b"bob"), replay.left[0][1])
    with pytest.raises(Exception, match="closed"):
        do(driver, transcript.steps[0][0])
    assert "bob" in replay.wrong
