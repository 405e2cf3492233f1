"""What links do to frames in the kernel, counted and timed by traffic, at a receiver and at a sender."""

from __future__ import annotations

import math
import os
import secrets
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyroute2.iproute import IPRoute

from ringlight.extensions.impairments.effect import Impairments
from ringlight.extensions.impairments.end import End
from ringlight.fabric.light import frame_errors
from ringlight.testbed.emulation.kernel import namespaces, netlink

pytestmark = pytest.mark.root

FRAMES = 10_000
SO_RCVBUFFORCE = 33
#: Bytes of a frame in these tests: Ethernet, IPv4, UDP and 958 of payload.
FRAME_BYTES = 1000
HEADERS = 14 + 20 + 8


class Cable:
    """Two namespaces, a and b, joined by a cable."""

    def __init__(self) -> None:
        self.names = [f"imp{secrets.token_hex(3)}{side}" for side in "ab"]
        self.spaces = [namespaces.create_namespace(name) for name in self.names]
        with IPRoute() as root:
            netlink.create_veth(
                root,
                "e0",
                "e0",
                namespace=self.spaces[0],
                peer_namespace=self.spaces[1],
            )
        for number, space in enumerate(self.spaces):
            namespaces.in_namespace(space, lambda number=number: self._set_up(number))  # type: ignore[misc]

    @staticmethod
    def _set_up(number: int) -> None:
        with IPRoute() as here:
            index = netlink.set_up(here, "e0")
            here.addr("add", index=index, address=f"10.9.0.{number + 1}", prefixlen=24)
        netlink.set_checksum_offload("e0", False)

    def socket(self, number: int) -> socket.socket:
        def made() -> socket.socket:
            found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            found.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            found.bind((f"10.9.0.{number + 1}", 9000))
            found.settimeout(2)
            return found

        return namespaces.in_namespace(self.spaces[number], made)

    def close(self) -> None:
        for name, space in zip(self.names, self.spaces, strict=True):
            os.close(space)
            namespaces.delete_namespace(name)


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    with closing(Cable()) as found:
        yield found


@pytest.fixture(params=["receives", "sends"])
def end(cable: Cable, request: pytest.FixtureRequest) -> Iterator[End]:
    """The direction from a to b, where b receives or where a sends."""
    sends = request.param == "sends"
    name = f"imp{secrets.token_hex(3)}"
    with closing(
        End(cable.spaces[0 if sends else 1], "e0", sends, name, 7, os.environ)
    ) as found:
        yield found


def sent(cable: Cable, frames: int, pause_s: float = 0.0) -> list[float]:
    """Seconds that each frame took that came, in the order of sending."""
    took = []
    with closing(cable.socket(0)) as a, closing(cable.socket(1)) as b:
        a.connect(("10.9.0.2", 9000))
        b.setblocking(False)
        for number in range(frames):
            payload = struct.pack("=Id", number, time.monotonic())
            a.send(payload.ljust(FRAME_BYTES - HEADERS, b"\0"))
            time.sleep(pause_s)
        b.settimeout(0.3)
        while True:
            try:
                _, at = struct.unpack_from("=Id", b.recv(2048))
            except TimeoutError:
                return took
            took.append(time.monotonic() - at)


def test_loss_and_errors_are_as_set(cable: Cable, end: End) -> None:
    wanted = Impairments(loss=0.02, bit_errors=1e-6)
    end.set(wanted, 1e9)
    came, counts = len(sent(cable, FRAMES)), end.counts()
    assert counts.frames >= FRAMES
    assert (
        counts.frames - counts.lost - counts.damaged
        >= came
        >= FRAMES - counts.lost - counts.damaged
    )
    for count, of, share in (
        (counts.lost, counts.frames, wanted.loss),
        (
            counts.damaged,
            counts.frames - counts.lost,
            frame_errors(wanted.bit_errors, FRAME_BYTES),
        ),
    ):
        # Seeded, so this is no matter of chance.
        assert abs(count - of * share) < 3 * math.sqrt(of * share * (1 - share))


def test_a_link_that_flaps_is_down_for_its_share(cable: Cable, end: End) -> None:
    end.set(Impairments(down_s=0.02, up_s=0.06), 1e9)
    came = len(sent(cable, 1600, 0.0002))
    assert end.counts().down == pytest.approx(1600 - came, abs=4)
    assert 0.1 < end.counts().down / 1600 < 0.4


def test_a_delay_takes_as_long_and_keeps_the_order(cable: Cable, end: End) -> None:
    end.set(Impairments(delay_s=0.3, jitter_s=0.1), 1e9)
    with closing(cable.socket(0)) as a, closing(cable.socket(1)) as b:
        for number in range(50):
            a.sendto(struct.pack("=Id", number, time.monotonic()), ("10.9.0.2", 9000))
            time.sleep(0.002)
        took, order = [], []
        for _ in range(50):
            number, at = struct.unpack_from("=Id", b.recv(2048))
            order.append(number)
            took.append(time.monotonic() - at)
    assert order == sorted(order)
    assert min(took) > 0.2
    assert 0.3 < statistics.median(took) < 0.6


def test_nothing_is_left_when_it_ends(cable: Cable) -> None:
    space = cable.spaces[1]
    found = End(space, "e0", False, "impline0", 7, os.environ)
    found.set(Impairments(delay_s=0.001, loss=1.0), 1e9)

    def interfaces() -> list[str]:
        return [name for _, name in socket.if_nameindex()]

    assert "impline0" in namespaces.in_namespace(space, interfaces)
    assert not sent(cable, 10)
    found.close()
    assert "impline0" not in namespaces.in_namespace(space, interfaces)
    assert len(sent(cable, 10)) == 10
