"""Averagers as nodes of a fabric: what may be plugged into them, and what they do to the rest of it."""

from __future__ import annotations

from importlib import resources
from ipaddress import ip_interface
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.optinc.averager import Averager
from ringlight.extensions.optinc.averager_processes import place_of
from ringlight.extensions.optinc.averaging import (
    TRAINED,
    Averaging,
    Hop,
    averaging_of,
    coding,
    scale_bytes,
    scales_sent,
)
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.wire import FRAME, HEADER_BYTES
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Link, Port
from ringlight.fabric.planes.counts import of_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric, electrical_graph
from ringlight.testbed.emulation.buildable import check_rates
from ringlight.testbed.emulation.device_cables import PREFIX, address_of
from ringlight.testbed.simulation.networks import scaled

RATE = "100 Gbit/s"


def one_level(servers: int = 4, **averager: Any) -> dict[str, Any]:
    """GPUs g0, g1, … on a packet switch and on averager avg0."""
    links = [{"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": RATE} for i in range(servers)]
    links += [
        {"ends": [f"g{i}:1", f"avg0:{i + 1}"], "rate": RATE} for i in range(servers)
    ]
    return {
        "servers": {f"s{i}": {"gpus": {f"g{i}": "gpu"}} for i in range(servers)},
        "packet_switches": {"tor0": {"ports": servers}},
        "averagers": {"avg0": {"ports": servers, "bits": 8, **averager}},
        "links": links,
    }


def two_levels(n: int = 4, **first: Any) -> dict[str, Any]:
    """n averagers avg0, … of n GPUs each, and avgtop above them."""
    raw = one_level(n * n)
    raw["averagers"] = {f"avg{i}": {"ports": n, "bits": 8, **first} for i in range(n)}
    raw["averagers"]["avgtop"] = {"ports": n, "bits": 8}
    for i, link in enumerate(raw["links"][n * n :]):
        link["ends"][1] = f"avg{i // n}:{i % n + 1}"
    raw["links"] += [
        {"ends": [f"avgtop:{i + 1}", f"avg{i}:0"], "rate": RATE} for i in range(n)
    ]
    return raw


def built(raw: dict[str, Any]) -> Fabric:
    return build_fabric(FabricSpec.model_validate(raw))


def names(count: int) -> list[str]:
    return [f"g{i}" for i in range(count)]


def test_the_trained_cases_are_those_whose_weights_are_there() -> None:
    files = [
        entry.name
        for entry in resources.files(
            "ringlight.extensions.optinc.unit.weights"
        ).iterdir()
    ]
    assert sorted(TRAINED) == sorted(
        name.removesuffix(".npz") for name in files if name.endswith(".npz")
    )


def test_packets_and_light_do_not_see_an_averager() -> None:
    fabric, alone = built(one_level()), built(bare())
    assert fabric.links == alone.links
    assert fabric.electrical_ports == alone.electrical_ports
    assert set(electrical_graph(fabric, {}).edges) == set(
        electrical_graph(alone, {}).edges
    )
    assert [str(cable.a) for cable in fabric.parts["averagers"]["avg0"].cables] == [
        "g0:1",
        "g1:1",
        "g2:1",
        "g3:1",
    ]
    assert of_fabric(fabric).nic_ports == 8
    assert of_fabric(fabric).packet_ports == 4


def test_rates_are_scaled_with_the_others() -> None:
    fabric = scaled(built(two_levels()), 1000)
    assert {link.rate_bps for link in (*fabric.links, *fabric.cables)} == {1e8}
    assert len(fabric.cables) == 16 + 4


def test_a_cable_that_cannot_be_emulated_is_named() -> None:
    raw = one_level()
    raw["links"][5]["rate"] = "1 Mbit/s"
    with pytest.raises(
        ValueError,
        match="the link at avg0:2: 1 Mbit/s is emulated at 1 kbit/s, outside",
    ):
        check_rates(built(raw), 1000)


@given(st.sampled_from([one_level(), one_level(8), two_levels()]))
def test_every_end_of_a_cable_has_an_address_of_its_own_and_both_share_a_network(
    raw: dict[str, Any],
) -> None:
    fabric = built(raw)
    ends = [end for cable in fabric.cables for end in (cable.a, cable.b)]
    assert len({address_of(fabric, end) for end in ends}) == len(ends)
    nets = [
        {
            ip_interface(f"{address_of(fabric, end)}/{PREFIX}").network
            for end in (cable.a, cable.b)
        }
        for cable in fabric.cables
    ]
    assert all(len(net) == 1 for net in nets)
    assert len(set().union(*nets)) == len(nets)


def test_a_worker_is_told_its_averager_and_who_has_another_order_is_refused() -> None:
    fabric = built(two_levels(decimals=False))
    place = place_of(fabric, names(16), 6, lambda bps: bps / 1000)
    assert place == {
        "address": "10.84.0.25:7070", "port": 2, "ports": 4, "bits": 8, "decimals": False,
        "silence_s": place["silence_s"],
    }  # fmt: skip
    # Four frames with decimals at 100 Mbit/s besides, in tenths.
    assert place["silence_s"] == pytest.approx(4.6)
    with pytest.raises(
        ValueError, match="ranks are in the order of the averagers' ports: g0, g1, g2"
    ):
        place_of(fabric, names(16)[::-1], 0, float)


def test_cables_may_be_written_either_way_round_and_in_any_order() -> None:
    raw = one_level()
    raw["links"] = [
        {**link, "ends": link["ends"][::-1]} for link in reversed(raw["links"])
    ]
    assert built(raw).parts == built(one_level()).parts


def changed(raw: dict[str, Any], link: int, *ends: str) -> dict[str, Any]:
    raw["links"][link]["ends"] = list(ends)
    return raw


def without(raw: dict[str, Any], link: int) -> dict[str, Any]:
    del raw["links"][link]
    return raw


def with_averager(raw: dict[str, Any], name: str, **keys: Any) -> dict[str, Any]:
    raw["averagers"][name] = {
        **raw["averagers"].get(name, {"ports": 4, "bits": 8}),
        **keys,
    }
    return raw


def three_levels() -> dict[str, Any]:
    raw = two_levels(2)
    raw["averagers"]["roof"] = {"ports": 2, "bits": 8}
    raw["averagers"]["avg9"] = {"ports": 2, "bits": 8}
    raw["links"] += [
        {"ends": ["avgtop:0", "roof:1"], "rate": RATE},
        {"ends": ["avg9:0", "roof:2"], "rate": RATE},
    ]
    raw["servers"]["s9"] = {"gpus": {"x0": "gpu", "x1": "gpu"}}
    raw["links"] += [
        {"ends": [f"x{i}:1", f"avg9:{i + 1}"], "rate": RATE} for i in range(2)
    ]
    return raw


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (one_level(bits=4), r"averagers\.avg0\.bits"),
        (one_level(ports=1), r"averagers\.avg0\.ports"),
        (one_level(network="guessed"), r"averagers\.avg0\.network"),
        (one_level(colour="red"), r"averagers\.avg0\.colour"),
        (one_level(3, network="trained"),
         r"avg0\.network: no trained weights for 8 bits on 3 ports; there are those for 8 bits on 4 ports"),
        (one_level(bits=16, network="trained"), "no trained weights for 16 bits on 4 ports"),
        (two_levels(network="trained"), "no trained weights for 8 bits on 4 ports with decimals"),
        (one_level(3, network="designed"),
         r"no network is designed for 8 bits on 3 ports; there are 8 bits on 4 ports, .* 16 bits on 4"),
        (one_level(decimals=False), r"averagers\.avg0\.decimals: no averager is above it"),
        (without(one_level(), 6), r"averagers\.avg0: nothing is plugged into its port 3"),
        (changed(one_level(), 0, "g0", "avg0:1"), r"links\[0\]: g0:0 and avg0:1: an averager's ports from 1"),
        (changed(one_level(), 4, "g0:1", "avg0:0"), r"links\[4\]: g0:1 and avg0:0"),
        (changed(one_level(), 0, "tor0:1", "avg0:1"), r"links\[0\]: tor0:1 and avg0:1"),
        (changed(one_level(), 4, "avg0:0", "avg0:1"), r"links\[4\]: avg0:0 and avg0:1"),
        (changed(one_level(), 4, "g0:1", "avg0:5"), r"links\[4\]\.ends: avg0 has ports 0 to 4, not 5"),
        (changed(one_level(), 4, "g0:2", "avg0:1"), r"links\[4\]\.ends: g0 has ports 0 to 1, not 2"),
        (changed(one_level(), 5, "g0:1", "avg0:2"), r"links\[5\]: port g0:1 is already plugged in"),
        (changed(one_level(), 0, "g0:1", "tor0:1"), r"links\[0\]: g0:1 takes only the cable of a device"),
        ({**one_level(), "circuits": [["g0:1", "g1:1"]]}, "no optical switch joins g0:1 and g1:1"),
        (with_averager(one_level(), "tor0"), "the name tor0 is used by two nodes"),
        (three_levels(), r"averagers\.avgtop: averagers above and below it; there are at most two levels"),
        (changed(two_levels(), -1, "g15:1", "avgtop:4") | {}, r"links\[35\]: port g15:1 is already plugged"),
        (with_averager(two_levels(), "avg1", bits=16), r"avg1\.bits: 16, but avgtop above it has 8"),
        (with_averager(two_levels(), "avg1", decimals=False), r"avg1\.decimals: not as that of avg0"),
    ],
)  # fmt: skip
def test_what_could_not_work_is_named(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        built(raw)


def test_servers_and_averagers_at_one_averager_are_named() -> None:
    raw = two_levels(2)
    raw["servers"]["sx"] = {"gpus": {"x": "gpu"}}
    changed(raw, -1, "x:1", "avgtop:2")
    with pytest.raises(
        ValueError, match=r"averagers\.avgtop: GPUs and averagers at its ports"
    ):
        built(raw)


def test_a_job_has_the_averagers_of_its_servers() -> None:
    one = averaging_of(built(one_level()), ["g2", "g0", "g3", "g1"])
    assert (one.above, one.servers) == (None, ("g0", "g1", "g2", "g3"))
    two = averaging_of(built(two_levels()), names(16))
    assert [averager.name for averager in two.first] == ["avg0", "avg1", "avg2", "avg3"]
    assert two.above is not None
    codings = coding(two.first[0], two.above), coding(two.above, below=two.first[0])
    assert codings == (Coding(8, 4, leaving=4), Coding(8, 4, arriving=4))


def bare() -> dict[str, Any]:
    return {**one_level(), "averagers": {}, "links": one_level()["links"][:4]}


def two_apart() -> dict[str, Any]:
    raw = two_levels(2)
    del raw["averagers"]["avgtop"]
    del raw["links"][-2:]
    return raw


@pytest.mark.parametrize(
    ("raw", "ranks", "named"),
    [
        (bare(), 4, "the fabric has no averagers"),
        (one_level(), 3, "averager avg0 waits for 4 servers, and GPU g3 is not one of the ranks"),
        (two_levels(2), 3, "averager avgtop waits for 4 servers, and GPU g3 is not one of the ranks"),
        (two_apart(), 4, "GPU g1 is on averager avg0, GPU g3 on avg1, and none is above both"),
    ],
)  # fmt: skip
def test_ranks_that_no_averager_serves_are_named(
    raw: dict[str, Any], ranks: int, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        averaging_of(built(raw), names(ranks))


def test_a_rank_without_an_averager_is_named() -> None:
    raw = one_level()
    raw["servers"]["sx"] = {"gpus": {"x": "gpu"}}
    with pytest.raises(ValueError, match="GPU x is plugged into no averager"):
        averaging_of(built(raw), [*names(4), "x"])


# Times


def frame_by_frame(hops: tuple[Hop, ...], codes: int, share: float) -> float:
    """When the last frame is through: each begins when it is there and the one before it is gone."""
    frames = [FRAME] * (codes // FRAME) + (
        [codes % FRAME] if codes % FRAME or not codes else []
    )
    free = [0.0] * len(hops)
    for frame in frames:
        there = 0.0
        for at, hop in enumerate(hops):
            free[at] = there = max(there, free[at]) + hop.seconds(frame, share)
    return free[-1]


def averaging(
    levels: int, bits: int, nic_bps: float, between_bps: float, decimals: bool
) -> Averaging:
    def cables(node: str, rate: float) -> tuple[Link, ...]:
        return tuple(
            Link(Port(f"{node}{i}", 1), Port(node, i), rate, 0.02) for i in range(1, 5)
        )

    first = tuple(
        Averager(f"a{i}", 4, bits, decimals=decimals, cables=cables(f"a{i}", nic_bps))
        for i in range(4 if levels == 2 else 1)
    )
    above = (
        Averager("top", 4, bits, cables=cables("top", between_bps))
        if levels == 2
        else None
    )
    return Averaging(first, above, ())


@given(
    levels=st.sampled_from([1, 2]),
    bits=st.sampled_from([8, 16]),
    codes=st.integers(0, 6 * FRAME),
    rates=st.tuples(st.floats(1e6, 1e9), st.floats(1e6, 1e9)),
    decimals=st.booleans(),
    share=st.floats(0.5, 1.0),
)
def test_a_stream_takes_what_its_frames_take_one_by_one(
    levels: int,
    bits: int,
    codes: int,
    rates: tuple[float, float],
    decimals: bool,
    share: float,
) -> None:
    one = averaging(levels, bits, *rates, decimals)
    assert len(one.hops) == 2 * levels
    assert one.stream_s(4 * codes, share) == pytest.approx(
        frame_by_frame(one.hops, codes, share), rel=1e-9
    )
    late_s = one.stream_s(4 * codes, share, latency_s=1.0) - one.stream_s(
        4 * codes, share
    )
    assert late_s == pytest.approx(len(one.hops))
    assert one.stream_s(4 * codes, share) >= one.ideal_s(4 * codes)


def test_what_a_rank_sends() -> None:
    """A quarter of the float32 bytes with 8 bits, half with 16, once up and once down; 2 bytes a block."""
    gradient = 4 * 10 * FRAME
    assert averaging(1, 8, 1e8, 1e8, True).code_bytes(gradient) == gradient // 4
    assert averaging(1, 16, 1e8, 1e8, True).code_bytes(gradient) == gradient // 2
    assert scale_bytes(gradient) == 2 * 10 * FRAME // 1024
    assert scales_sent(4 * 64 * 1024, 16) == 2 * 2 * 15 / 16 * 64
    # three blocks, of which rank 0 has two: it sends one exponent, then two
    assert scales_sent(4 * 3 * 1024, 2) == 2 * 3
    frame_s = 8 * (FRAME + HEADER_BYTES) / 1e8
    assert averaging(1, 8, 1e8, 1e8, True).stream_s(gradient) == pytest.approx(
        11 * frame_s
    )
    assert averaging(2, 8, 1e8, 1e8, False).stream_s(gradient) == pytest.approx(
        13 * frame_s
    )
    # The decimals of four servers' mean are 2 bits more on the way between the levels.
    decimals_s = 8 * (FRAME * 5 // 4 + HEADER_BYTES) / 1e8
    assert averaging(2, 8, 1e8, 1e8, True).stream_s(gradient) == pytest.approx(
        10 * decimals_s + 3 * frame_s
    )
