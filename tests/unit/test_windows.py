"""Windows of workers' connections: what a path holds, and that the kernel keeps them."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

from ringlight.containers.worker.windows import keep_window
from ringlight.experiments.backends.emulation.linktest import parts, seconds_of
from ringlight.experiments.language.expand import load
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.kernel import shaping
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.windows import window_bytes
from ringlight.testbed.lab import Lab
from tests.delays import with_delay
from tests.unit.test_cli import ROOT

FRAME, PAYLOAD = 9014, 8948


def leaves(uplink: dict[str, Any]) -> Fabric:
    """Two GPUs of 100 Mbit/s on each of two switches, as emulated at payload scale 100."""
    nic = {"rate": "10 Gbit/s", "queue": "20 ms"}
    return build_fabric(
        FabricSpec.model_validate(
            {
                "servers": {
                    "s": {"gpus": dict.fromkeys(("g0", "g1", "g2", "g3"), "gpu")}
                },
                "packet_switches": {"a": {"ports": 3}, "b": {"ports": 3}},
                "links": [
                    {"ends": ["g0", "a:1"], **nic},
                    {"ends": ["g1", "a:2"], **nic},
                    {"ends": ["g2", "b:1"], **nic},
                    {"ends": ["g3", "b:2"], **nic},
                    {"ends": ["a:3", "b:3"], **uplink},
                ],
            }
        )
    )


def windows(fabric: Fabric, *, bounded: bool = True) -> list[int]:
    """Windows of g0's connections, by the GPU that sends."""
    emulation = Emulation(payload_scale=100, bounded=bounded)
    network = LabNetwork(
        Lab("win2"), fabric, emulation, ControllerAddress("127.0.0.1", 6653)
    )
    return network.under_way.windows_to("g0", [gpu.ip for gpu in fabric.gpus.values()])


def test_a_window_is_half_of_the_smallest_queue_of_a_packet_switch_on_its_path() -> (
    None
):
    found = windows(leaves({"rate": "3 Gbit/s", "queue": "20 ms"}))
    # The uplink's queue holds 75 kB, eight frames; a NIC's 250 kB, 27 frames.
    assert found == [0, 13 * PAYLOAD, 4 * PAYLOAD, 4 * PAYLOAD]


@pytest.mark.parametrize(("room", "frames"), [(1, 1), (2, 2), (3, 2), (4, 2), (6, 3)])
def test_a_window_is_two_frames_if_the_queue_holds_them(room: int, frames: int) -> None:
    assert window_bytes(100e6, 0.0, room * 9018 + 10, 9000) == frames * PAYLOAD


def test_without_a_queue_of_a_packet_switch_a_window_is_the_largest() -> None:
    nic = {"rate": "10 Gbit/s", "queue": "20 ms"}
    fabric = build_fabric(
        FabricSpec.model_validate(
            {
                "servers": {"s": {"gpus": {"g0": "gpu", "g1": "gpu"}}},
                "packet_switches": {"unused": {"ports": 2}},
                "optical_switches": {"ocs": {"size": 2, "driver": "scpi"}},
                "links": [
                    {"ends": ["g0", "ocs:1"], **nic},
                    {"ends": ["g1", "ocs:2"], **nic},
                ],
            }
        )
    )
    assert windows(fabric) == [0, 13 * PAYLOAD]


def test_a_window_holds_what_is_on_the_way_over_links_that_delay() -> None:
    found = windows(
        with_delay(leaves({"rate": "3 Gbit/s", "queue": "12 ms"}), "a", "b", 0.01)
    )
    assert found == [0, 13 * PAYLOAD, *[2 * PAYLOAD + round(30e6 / 8 * 0.02)] * 2]


def test_only_over_links_that_delay_a_connection_has_no_slow_start() -> None:
    def first_segments(fabric: Fabric) -> int | None:
        emulation = Emulation(payload_scale=100, bounded=True)
        controller = ControllerAddress("127.0.0.1", 6653)
        return LabNetwork(
            Lab("win3"), fabric, emulation, controller
        ).under_way.first_segments()

    fabric = leaves({"rate": "3 Gbit/s", "queue": "12 ms"})
    assert first_segments(fabric) is None
    # 100 Mbit/s and 20 ms there and back, and half of a NIC's queue.
    assert first_segments(with_delay(fabric, "a", "b", 0.01)) == 28 + 13


def test_a_window_is_no_longer_than_lateness_asks_where_queues_are_long() -> None:
    assert window_bytes(6e6, 0.0, 300e3, 9000) == 8 * FRAME
    assert window_bytes(100e6, 0.0, 1e6, 9000) == round(100e6 / 8 * 0.02)
    assert windows(leaves({"rate": "3 Gbit/s", "queue": "12 ms"}), bounded=False) == []


def test_where_light_decides_the_path_the_smallest_queue_of_the_fabric_counts() -> None:
    fabric = leaves({"rate": "3 Gbit/s", "queue": "12 ms"})
    spec = {
        "servers": {"s": {"gpus": {"g0": "gpu", "g1": "gpu"}}},
        "packet_switches": {"a": {"ports": 2}, "b": {"ports": 2}},
        "optical_switches": {"ocs0": {"size": 6, "driver": "scpi", "profile": "mems"}},
        "links": [
            {"ends": ["g0", "ocs0:1"], "rate": "10 Gbit/s", "queue": "20 ms"},
            {"ends": ["g1", "ocs0:2"], "rate": "10 Gbit/s", "queue": "20 ms"},
            {"ends": ["a:1", "ocs0:3"], "rate": "10 Gbit/s", "queue": "20 ms"},
            {"ends": ["b:1", "ocs0:4"], "rate": "10 Gbit/s", "queue": "20 ms"},
            {"ends": ["a:2", "b:2"], "rate": "3 Gbit/s", "queue": "12 ms"},
        ],
    }
    assert windows(build_fabric(FabricSpec.model_validate(spec))) == [
        0,
        windows(fabric)[2],
    ]


@pytest.mark.parametrize("window", [4 * PAYLOAD, 300_000])
def test_the_kernel_keeps_a_window_whatever_it_measures_of_segments(
    window: int,
) -> None:
    """Segments are as long as those of workers; loopback's own are longer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.socket()
        for end in (listener, near):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, PAYLOAD)
        near.connect(listener.getsockname())
        far = listener.accept()[0]
    with near, far:
        other = threading.Thread(target=keep_window, args=(far, window), daemon=True)
        other.start()
        keep_window(near, window)
        other.join(5)
        near.setblocking(False)
        for _ in range(20):
            try:
                near.send(bytes(8000))
            except BlockingIOError:
                break
        far.recv(1 << 20)
        for end in (near, far):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP) == window


def test_a_peer_that_closes_before_it_began_is_an_error() -> None:
    near, far = socket.socketpair()
    far.close()
    with near, pytest.raises(OSError, match=r"closed|Broken pipe"):
        keep_window(near, 1000)


def test_a_link_test_over_links_that_delay_lasts_until_slow_start_is_over() -> None:
    setting = (
        load(ROOT / "tests" / "data" / "agreement" / "thin_trunk.yaml").plans[0].setting
    )
    trunk = next(
        link
        for link in setting.fabric.links
        if link.a.node in setting.fabric.packet_switches
    )
    fabric = with_delay(setting.fabric, str(trunk.a), str(trunk.b), 0.008)
    nics, trunks = (part.batches for part in parts(fabric, ())[0])
    assert {seconds_of(setting, stream) for batch in nics for stream in batch} == {0.8}
    # 6.25 Mbit/s and 128 ms there and back hold 11 frames: one doubling of ten, and two round trips more.
    assert {round(seconds_of(setting, s), 3) for batch in trunks for s in batch} == {
        (1 + 2) * 0.128 / 0.25
    }


def classified(program: str, packet: bytes) -> int:
    """What a program of classic BPF returns of a packet that begins with its IP header."""
    count, *lines = program.split(",")
    steps = [tuple(map(int, line.split())) for line in lines]
    assert int(count) == len(steps)
    a = x = at = 0
    while True:
        code, true, false, k = steps[at]
        offset, operand = k - 0xFFF00000, x if code & 8 else k
        at += 1
        match code:
            case 0x20 | 0x28 | 0x30:
                size = {0x20: 4, 0x28: 2, 0x30: 1}[code]
                a = int.from_bytes(packet[offset : offset + size])
            case 0x04 | 0x0C:
                a += operand
            case 0x14:
                a -= operand
            case 0x24:
                a *= operand
            case 0x54:
                a &= operand
            case 0x74:
                a >>= operand
            case 0x94:
                a %= operand
            case 0x07:
                x = a
            case 0x15 | 0x1D:
                at += true if a == operand else false
            case 0x45:
                at += true if a & operand else false
            case 0x06:
                return k
            case 0x16:
                return a
            case _:
                raise AssertionError(f"code {code}")


def packet(
    payload: int, flags: int = 0x10, options: int = 12, protocol: int = 6
) -> bytes:
    """An IPv4 packet from host 10.1.0.2 to 10.1.0.3."""
    ip = struct.pack(
        "!BBHHHBBH", 0x45, 0, 20 + 20 + options + payload, 0, 0, 64, protocol, 0
    )
    ip += socket.inet_aton("10.1.0.2") + socket.inet_aton("10.1.0.3")
    tcp = struct.pack(
        "!HHIIBBHHH", 1, 2, 0, 0, (20 + options) // 4 << 4, flags, 0, 0, 0
    )
    return ip + tcp + bytes(options + payload)


@pytest.mark.parametrize("by", ["src", "dst", "pair"])
def test_acknowledgements_go_first_and_payload_keeps_its_turn(by: shaping.By) -> None:
    turns, program = shaping._turns(["10.1.0.1", "10.1.0.2", "10.1.0.3"], by)
    own = 0x10003 + {"src": 1, "dst": 2, "pair": 1 * 3 + 2}[by]
    assert turns == (9 if by == "pair" else 3)
    assert (
        classified(program, packet(0))
        == classified(program, packet(0, options=24))
        == 0x10002
    )
    # One byte of payload, the beginning and the end of a connection, and what is no TCP.
    others = [
        packet(1),
        packet(8948),
        packet(0, 0x12),
        packet(0, 0x11),
        packet(0, 0x14),
        packet(0, protocol=17),
    ]
    assert {classified(program, one) for one in others} == {own}
