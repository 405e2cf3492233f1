"""Frames and queues with which TCP fills the slow links of an emulated fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ringlight.experiments.cli.app import add_commands, app
from ringlight.fabric.building import build_fabric
from ringlight.fabric.frames import (
    ETHERNET_BYTES,
    LARGEST_MTU_BYTES,
    LONGEST_QUEUE_S,
    QUEUE_FRAMES,
    SMALLEST_MTU_BYTES,
    choose_frames,
    describe,
)
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.kernel import netlink, shaping
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.share import Share
from ringlight.testbed.lab import Lab

MINI = Path(__file__).resolve().parents[1] / "data" / "mini.yaml"


def fabric(rate: str, queue: str, fast_queue: str = "20 ms") -> Fabric:
    """Two GPUs on a switch each; the link between the switches is the slow one."""
    return build_fabric(
        FabricSpec.model_validate(
            {
                "servers": {"s0": {"gpus": {"g0": "x", "g1": "x"}}},
                "packet_switches": {"tor0": {"ports": 2}, "tor1": {"ports": 2}},
                "links": [
                    {
                        "ends": ["g0", "tor0:1"],
                        "rate": "40 Gbit/s",
                        "queue": fast_queue,
                    },
                    {
                        "ends": ["g1", "tor1:1"],
                        "rate": "40 Gbit/s",
                        "queue": fast_queue,
                    },
                    {"ends": ["tor0:2", "tor1:2"], "rate": rate, "queue": queue},
                ],
            }
        )
    )


def test_a_link_whose_queue_holds_enough_frames_is_left_alone() -> None:
    assert choose_frames(fabric("40 Gbit/s", "10 ms"), 1, 400).short == ()
    assert (
        choose_frames(fabric("40 Gbit/s", "10 ms"), 1, 400).mtu_bytes
        == LARGEST_MTU_BYTES
    )


def test_frames_become_smaller_before_a_queue_becomes_longer() -> None:
    # 20 Mbit/s for 10 ms are 25,000 bytes: four frames of 6,236.
    found = choose_frames(fabric("8 Gbit/s", "10 ms"), 1, 400)
    assert found.mtu_bytes == 6236
    assert [(q.index, q.queue_s) for q in found.short] == [(2, 0.01)]
    # 10 Mbit/s for 10 ms are not four of the smallest.
    found = choose_frames(fabric("4 Gbit/s", "10 ms"), 1, 400)
    assert found.mtu_bytes == SMALLEST_MTU_BYTES
    assert found.queue_s(2, 0.01) == pytest.approx(4 * 4014 * 8 / 10e6)
    assert found.queue_s(0, 0.02) == 0.02
    (said,) = describe(fabric("4 Gbit/s", "10 ms"), found)
    assert said == (
        "links[2], tor0:2 - tor1:2: its queue of 10 ms as emulated holds 1.4 frames of 9000 bytes, too few "
        "for TCP to fill the link; emulated with frames of 4000 bytes and a queue of 12.84 ms"
    )


def test_a_link_that_cannot_be_filled_at_all_is_refused_by_name() -> None:
    problem = choose_frames(fabric("40 Mbit/s", "10 ms"), 1, 400).problem
    assert problem is not None
    assert problem.startswith("links[2]: emulated at 100 kbit/s it cannot be filled")


def test_a_long_queue_that_is_stated_is_enough() -> None:
    found = choose_frames(fabric("4110336000 bit/s", "0.015625 s", "62.5 ms"), 40, 400)
    assert found.mtu_bytes == 5003
    assert [queue.queue_s for queue in found.short] == [0.625]


@given(
    st.floats(1e9, 4e10), st.floats(1e-4, 0.1), st.floats(1e-4, 0.1), st.sampled_from([1, 4, 40]),
    st.sampled_from([1, 100, 400]),
)  # fmt: skip
def test_every_queue_holds_its_frames(
    rate_bps: float,
    queue_s: float,
    fast_queue_s: float,
    time_scale: float,
    payload_scale: float,
) -> None:
    described = fabric(f"{rate_bps:f} bit/s", f"{queue_s:f} s", f"{fast_queue_s:f} s")
    found = choose_frames(described, time_scale, payload_scale)
    if found.problem is not None:
        least_s = (
            8
            * QUEUE_FRAMES
            * (SMALLEST_MTU_BYTES + ETHERNET_BYTES)
            * time_scale
            * payload_scale
        )
        assert least_s / min(rate_bps, 40e9) > LONGEST_QUEUE_S
        return
    assert SMALLEST_MTU_BYTES <= found.mtu_bytes <= LARGEST_MTU_BYTES
    assert bool(found.short) == any(
        link.rate_bps / payload_scale / 8 * link.queue_s < QUEUE_FRAMES * 9014
        for link in described.links
    )
    for index, link in enumerate(described.links):
        stated = link.queue_s * time_scale
        queue = found.queue_s(index, stated)
        assert queue >= stated
        room = link.rate_bps / (time_scale * payload_scale) / 8 * queue
        assert room >= QUEUE_FRAMES * (found.mtu_bytes + ETHERNET_BYTES) * (1 - 1e-9)


def test_check_names_the_link_and_what_was_chosen(tmp_path: Path) -> None:
    add_commands()
    text = MINI.read_text().replace("12.903 Gbit/s", "4 Gbit/s")
    path = tmp_path / "slow.yaml"
    path.write_text(text)
    said = CliRunner().invoke(app, ["check", str(path)]).output
    assert (
        "links[8], tor0:3 - tor1:3: its queue of 20 ms as emulated holds 2.8 frames"
        in said
    )
    path.write_text(text.replace("value: 4 Gbit/s", "value: 40 Mbit/s"))
    said = CliRunner().invoke(app, ["check", str(path)]).output
    assert (
        "not by the emulation: fabric.links[8]: emulated at 100 kbit/s it cannot be filled"
        in said
    )


def test_the_lab_is_built_with_them() -> None:
    network = LabNetwork(
        Lab("fra1"),
        fabric("4 Gbit/s", "10 ms"),
        Emulation(payload_scale=400),
        ControllerAddress("127.0.0.1", 6653),
    )
    assert network.frames.mtu_bytes == SMALLEST_MTU_BYTES
    assert (
        shaping.queue_bytes(10e6, network._queue_s[network.fabric.links[2]])
        == 2 * netlink.FRAME_BYTES
    )


def window(fabric: Fabric, scale: float, *, bounded: bool = True) -> int | None:
    emulation = Emulation(payload_scale=scale, bounded=bounded)
    return LabNetwork(
        Lab("win1"), fabric, emulation, ControllerAddress("127.0.0.1", 6653)
    ).under_way.window_bytes


def test_routes_of_workers_have_no_window_where_light_is_not_asked_for() -> None:
    assert window(fabric("4 Gbit/s", "1 s", "1 s"), 40) is None


def test_a_share_of_a_lab_bounds_its_frames_and_has_no_cable_of_what_is_elsewhere() -> (
    None
):
    class Rack(Share):
        mtu_bytes = 4100

        def is_here(self, node: str) -> bool:
            return node != "g0"

    network = LabNetwork(
        Lab("fra2"),
        fabric("40 Gbit/s", "10 ms"),
        Emulation(payload_scale=400),
        ControllerAddress("127.0.0.1", 6653),
        share=Rack(),
    )
    assert network.frames.mtu_bytes == 4100
    assert (network.is_plugged("g1"), network.is_plugged("g0")) == (True, False)
    with pytest.raises(NetworkError, match="GPU g0 is elsewhere"):
        network.check_plugged("g0")
