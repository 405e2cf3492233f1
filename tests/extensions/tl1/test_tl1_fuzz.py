"""Both ends of TL1 against anything: no exception but the declared ones, no hang, and light stays a
matching."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.tl1.tl1_grammar import MessageFramer, Reply
from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.fabric.optical_profiles import IDEAL
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import Switch
from tests.extensions.tl1.dialects import DIALECTS

SIZE = 4
VERBS = sorted(
    verb
    for begin in DIALECTS.values()
    for verb in begin(Switch("x", OpticalDevice(1, IDEAL)), 0).commands()
)
PORTS = [
    "0",
    "1",
    "2",
    "5",
    "6",
    "9",
    "1&2",
    "1&&4",
    "5&&8",
    "1.1.1",
    "1.1.2",
    "ALL",
    "",
]
WORDS = [
    *PORTS,
    "1,5",
    "1&2,5&6",
    "1.1.1,1.1.2",
    "1.1.1>1.1.2",
    "1.1.1-1.1.2&1.1.3>1.1.3",
    "G,1WAY",
]
WORDS += [
    ",2WAY,n",
    "PARAMETER=SIZE",
    "ADMIN=1",
    "LABEL=x",
    'LABEL="a;b"',
    "SYSTEM",
    "TIMEOUT",
    "REPMGR",
]
WORDS += ["IND", "a=b=c", '"']

fields = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=6)
commands = st.builds(
    lambda verb, words, end: ":".join((verb, *words)) + end,
    st.sampled_from(VERBS) | st.text(max_size=8),
    fields,
    st.sampled_from([";", ";", ";\n", "\n;", ""]),
)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.fuzz
@given(
    login=st.booleans(),
    said=st.lists(
        commands.map(lambda text: text.encode("utf-8", "surrogatepass"))
        | st.binary(max_size=9),
        max_size=30,
    ),
    waits=st.lists(st.integers(0, 10**9), max_size=10),
)
@settings(deadline=None)
def test_the_emulated_switch_answers_anything(
    dialect: str, login: bool, said: list[bytes], waits: list[int]
) -> None:
    device = OpticalDevice(SIZE, IDEAL)
    session = DIALECTS[dialect](Switch("ocs0", device), 0)
    framer, replies, now_ns = MessageFramer(), [], 0
    for data in (
        ([b"ACT-USER::a:1::b;"] if login else []) + said + [b"\n;RTRV-NETYPE:::77:;"]
    ):
        session.feed(data)
        now_ns += waits.pop() if waits else 0
        for _ in range(100):
            device.advance(now_ns)
            replies += framer.feed(session.advance(now_ns))
            if session.idle and device.next_ns is None:
                break
        else:
            raise AssertionError("it does not come to rest")
        assert session.next_ns is None or session.next_ns > now_ns
    check_matching(CrossConnect(*wire) for wire in device.cross_connects())
    assert framer.empty, "what it says is TL1"
    assert session.over or any(
        isinstance(one, Reply) and one.ctag == "77" for one in replies
    )
    assert (
        login
        or any(b"ACT-USER" in data.upper() for data in said)
        or device.cross_connects() == ()
    )


class Noise:
    """A switch that says the next of ``sayings`` to whatever it hears, then hangs up."""

    def __init__(self) -> None:
        self.sayings: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while self.sayings and connection.recv(4096):
                        connection.sendall(self.sayings.pop(0))
                except (OSError, IndexError):
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.fixture(scope="module")
def noise() -> Iterator[Noise]:
    made = Noise()
    yield made
    made.close()


HEAD = b"\r\n\n   ocs0 26-11-23 08:45:20\r\n"
PIECES = [
    HEAD,
    *[b"M  %d COMPLD\r\n" % ctag for ctag in range(1, 7)],
    b"M  2 DENY\r\n",
    b"A  1 REPT ALM\r\n",
]
PIECES += [
    b'   "SYSTEM:SIZE=4x4"\r\n',
    b'   "1,5"\r\n',
    b'   "1:OPEN"\r\n',
    b'   "a,b,c,d"\r\n',
    b";",
    b">",
]
PIECES += [b'   "o:CHASSISTYPE=S4"\r\n']
PIECES += [b'   "1.1.1:WX:INAS=IS,INOS=IS,INOC=OK,OUTAS=IS,OUTOS=IS,OUTOC=OK"\r\n']
whole = st.tuples(
    st.integers(1, 6), st.lists(st.sampled_from(PIECES[9:13]), max_size=9)
).map(lambda told: HEAD + b"M  %d COMPLD\r\n" % told[0] + b"".join(told[1]) + b";")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.fuzz
@given(
    sayings=st.lists(
        whole | st.lists(st.sampled_from(PIECES)).map(b"".join) | st.binary(),
        max_size=6,
    )
)
@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_driver_bears_anything(
    noise: Noise, dialect: str, sayings: list[bytes]
) -> None:
    entry = {"driver": dialect, "address": f"127.0.0.1:{noise.port}"}
    driver = make_driver("ocs0", entry, SIZE)
    noise.sayings = list(sayings)
    started = time.monotonic()
    try:
        for call in (driver.open, driver.snapshot):
            try:
                call(timeout_s=0.05)
            except OpticalError:
                continue
    finally:
        driver.close()
    assert time.monotonic() - started < 5
