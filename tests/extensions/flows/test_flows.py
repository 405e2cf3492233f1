"""Completion times of flows: alone, behind each other, and files that cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.flows.flow_file import FlowFileError, SizedFlow, read_flows
from ringlight.extensions.flows.sharing import Fluid, Sharing, fill
from ringlight.extensions.flows.simulation import completion_times_s, longest_wait
from ringlight.extensions.flows.summary import by_size
from ringlight.extensions.flows.transport import Transport
from ringlight.extensions.flows.ways import Ways
from ringlight.fabric.trees import fat_tree, leaf_spine
from ringlight.testbed.simulation.maxmin import rates
from tests.unit.test_cli import one_line, ringlight

RATE = 10e9
#: Seconds of a full packet, and of an acknowledgement, at RATE.
PACKET, ACK = 1500 * 8 / RATE, 64 * 8 / RATE
#: One leaf of four GPUs: two hops.
LEAF = leaf_spine(1, 4, RATE).fabric()
PLAIN = Transport()


def times(flows: list[SizedFlow], transport: Transport = PLAIN) -> list[float]:
    return completion_times_s(LEAF, flows, transport).tolist()


def test_a_short_flow_alone_is_stored_whole_at_each_hop():
    one, seven = SizedFlow("g0", "g1", 180, 0), SizedFlow("g0", "g1", 10_000, 1)
    last = (10_000 - 6 * 1436 + 64) * 8 / RATE
    assert times([one]) == pytest.approx([2 * 244 * 8 / RATE])
    # Six packets before it leave; the last, shorter one waits for the one before it at the second hop.
    assert times([seven]) == pytest.approx([7 * PACKET + last])
    full = Transport(full_packets=True, acknowledgement_bytes=64, nic_delay_s=1e-6)
    assert times([seven], full) == pytest.approx([8 * PACKET + 2 * ACK + 4e-6])


def test_a_long_flow_alone_has_the_rate_of_a_link():
    flow = SizedFlow("g0", "g1", 1436 * 1000, 0)
    assert times([flow]) == pytest.approx([1001 * PACKET])


def test_two_long_flows_to_one_gpu_have_half_of_its_link():
    flows = [
        SizedFlow("g0", "g2", 1436 * 10_000, 0),
        SizedFlow("g1", "g2", 1436 * 10_000, 0),
    ]
    assert times(flows) == pytest.approx([20_000 * PACKET] * 2, rel=2e-3)


def test_a_short_flow_waits_for_what_a_long_one_has_in_the_queue():
    """Its window of 30 packets less those on the way, which are two hops' and an acknowledgement's time."""
    transport = Transport(acknowledgement_bytes=64)
    flows = [SizedFlow("g0", "g1", 100_000_000, 0), SizedFlow("g0", "g2", 180, 0.01)]
    _, short = times(flows, transport)
    alone = 2 * 244 * 8 / RATE + 2 * ACK
    on_way = (2 * PACKET + 2 * ACK) / PACKET
    assert short - alone == pytest.approx((30 - on_way) * PACKET, abs=1.01 * PACKET)


def test_the_queue_of_a_long_flow_is_where_others_came_in_last():
    """After a second flow to its receiver it stands at that link, so its sender's link is free."""
    long, other = (
        SizedFlow("g0", "g1", 100_000_000, 0),
        SizedFlow("g2", "g1", 1_000_000, 0.01),
    )
    at_sender, at_receiver = (
        SizedFlow("g0", "g3", 180, 0.02),
        SizedFlow("g3", "g1", 180, 0.02),
    )
    alone = 2 * 244 * 8 / RATE
    sender = times([long, other, at_sender])[2]
    receiver = times([long, other, at_receiver])[2]
    assert sender < alone + 2 * PACKET
    assert receiver > alone + 20 * PACKET


def one_by_one(
    paths: list[list[str]], sizes: list[int], bps: dict[str, float], plain: Transport
) -> list[float]:
    """Return the times of flows that start together, each packet in a queue: acknowledged without delay."""
    packets = [plain.packets(size) for size in sizes]
    sent, arrived, ends = [0] * len(sizes), [0] * len(sizes), [0.0] * len(sizes)
    free: dict[str, float] = {}
    # Time, number of the entry, flow, hop; hop 0 sends what the window allows.
    queue = [(0.0, flow, flow, 0) for flow in range(len(sizes))]
    count = len(queue)
    size_of = {}
    while queue:
        now, number, flow, hop = heappop(queue)
        if hop == 0 or hop > len(paths[flow]):
            arrived[flow] += hop > 0
            ends[flow] = now
            while sent[flow] < packets[flow] and sent[flow] - arrived[flow] < 30:
                sent[flow] += 1
                last = sent[flow] == packets[flow]
                size_of[count] = plain.last_bytes(sizes[flow]) if last else 1500
                heappush(queue, (now, count, flow, 1))
                count += 1
            continue
        link = paths[flow][hop - 1]
        free[link] = max(now, free.get(link, 0.0)) + 8 * size_of[number] / bps[link]
        heappush(queue, (free[link], number, flow, hop + 1))
    return ends


@pytest.mark.parametrize("uplink", [1.0, 2.0])
def test_two_long_flows_behind_one_uplink_end_as_their_packets_do(uplink: float):
    """Whichever link limits them, that of their leaf or that of their receiver."""
    fabric = leaf_spine(2, 2, RATE, oversubscription=2 / uplink).fabric()
    flows = [SizedFlow("g0", "g2", 320_000, 0), SizedFlow("g1", "g2", 160_000, 0)]
    times_s = completion_times_s(fabric, flows, replace(PLAIN, spray=False)).tolist()
    bps = {
        "g0": RATE,
        "g1": RATE,
        "up": uplink * RATE,
        "down": uplink * RATE,
        "g2": RATE,
    }
    paths = [[gpu, "up", "down", "g2"] for gpu in ("g0", "g1")]
    truth = one_by_one(paths, [flow.size_bytes for flow in flows], bps, PLAIN)
    assert times_s == pytest.approx(truth, rel=0.06)


def test_acknowledgements_take_their_share_of_the_links_back():
    both = [
        SizedFlow("g0", "g1", 100_000_000, 0),
        SizedFlow("g1", "g0", 100_000_000, 0),
    ]
    (first, _), (alone,) = (
        times(flows, Transport(acknowledgement_bytes=64)) for flows in (both, both[:1])
    )
    assert first / alone == pytest.approx(1 + 64 / 1500, rel=1e-3)


def test_sprayed_packets_use_all_paths_and_those_of_a_pair_one():
    fabric = fat_tree(4, RATE).fabric()
    flows = [SizedFlow(f"g{n}", f"g{n + 8}", 10_000_000, 0) for n in range(2)]
    sprayed = completion_times_s(fabric, flows, Transport())
    assert sprayed == pytest.approx([10_000_000 / 1436 * PACKET] * 2, rel=1e-2)
    way = Ways(fabric, Transport()).way("g0", "g8")
    assert [len(hop) for hop in way.hops] == [1, 2, 4, 4, 2, 1]
    assert all(sum(hop.values()) == pytest.approx(1) for hop in way.hops)
    alone = Ways(fabric, Transport(spray=False)).way("g0", "g8")
    assert [len(hop) for hop in alone.hops] == [1] * 6


WAYS = st.lists(
    st.dictionaries(st.integers(0, 5), st.sampled_from([0.25, 0.5, 1.0]), min_size=1),
    min_size=1,
    max_size=8,
)
CAPACITY = [1.0, 2.0, 3.0, 1.5, 0.5, 4.0]


@given(WAYS)
def test_each_flow_has_a_full_link_on_which_none_has_more(ways):
    result = fill(ways, CAPACITY, [10.0] * len(ways))
    load = {
        link: sum(
            way.get(link, 0) * rate for way, (rate, _) in zip(ways, result, strict=True)
        )
        for link in range(6)
    }
    for link, used in load.items():
        assert used <= CAPACITY[link] * (1 + 1e-6)
    for rate, link in result:
        if link >= 0:
            others = [
                r for way, (r, _) in zip(ways, result, strict=True) if link in way
            ]
            assert load[link] >= CAPACITY[link] * (1 - 1e-6)
            assert rate >= max(others) * (1 - 1e-6)


@given(WAYS)
def test_whole_shares_give_the_rates_of_the_core(ways):
    links = [sorted(way) for way in ways]
    offsets = np.cumsum([0, *map(len, links)])
    whole = [dict.fromkeys(way, 1.0) for way in links]
    found = [rate for rate, _ in fill(whole, CAPACITY, [10.0] * len(ways))]
    core = rates(
        offsets, np.array([x for way in links for x in way]), np.array(CAPACITY)
    )
    assert found == pytest.approx(core.tolist())


# Few examples have rates that change beyond the links of the flow that came or went.
@settings(deadline=None, max_examples=2000)
@given(
    st.lists(
        st.dictionaries(
            st.integers(0, 5), st.sampled_from([0.25, 0.5, 1.0]), min_size=1
        ),
        min_size=1,
        max_size=24,
    ),
    st.randoms(),
)
def test_rates_after_flows_came_and_went_are_those_of_a_new_start(ways, random):
    sharing, flows = Sharing(CAPACITY), []
    for number, way in enumerate(ways):
        bound, narrowest = sharing.bound(way)
        flow = Fluid(number, way, way, 0.0, 100.0, 1.0, bound, narrowest, 0.0)
        sharing.add(flow)
        flows.append(flow)
        if random.random() < 0.4:
            sharing.remove(flows.pop(random.randrange(len(flows))), 0.0)
    anew = fill([f.shares for f in flows], CAPACITY, [f.bound for f in flows])
    assert [f.rate for f in flows] == pytest.approx(
        [rate for rate, _ in anew], rel=1e-9
    )
    for flow in flows:
        assert_held_back(flow, flows)


def assert_held_back(flow: Fluid, flows: list[Fluid]) -> None:
    """A flow has its largest rate, or its tightest link is full and gives no other flow more."""
    users = [other for other in flows if flow.tightest in other.shares]
    load = sum(other.rate * other.shares[flow.tightest] for other in users)
    if flow.rate < flow.bound * (1 - 1e-6):
        assert load >= CAPACITY[flow.tightest] * (1 - 1e-6)
        assert flow.rate >= max(other.rate for other in users) * (1 - 1e-6)


def test_the_longest_wait_grows_with_load_and_number():
    """Its probability is one packet's: decay d solves load (e^d - 1) = d."""
    assert longest_wait(0.5, 1) == 0
    waits = [longest_wait(load, 1000) for load in (0.1, 0.3, 0.6)]
    assert waits == sorted(waits)
    decay = np.log(0.3 * 1000) / longest_wait(0.3, 1000)
    assert 0.3 * (np.exp(decay) - 1) == pytest.approx(decay)


def test_many_sizes_are_put_together_by_powers_of_ten():
    flows = [SizedFlow("g0", "g1", size, 0) for size in range(1, 2000)]
    classes = by_size(flows, np.arange(1.0, 2000.0))
    assert [(c.least_bytes, c.most_bytes) for c in classes] == [
        (1, 9),
        (10, 99),
        (100, 999),
        (1000, 1999),
    ]
    assert classes[0].median_s == 5


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "source,destination,bytes\n",
            "flows.csv:1: the head line 'source,destination,bytes' has no column start_s",
        ),
        (
            "source;destination;bytes;start_s\n",
            "flows.csv:1: the head line 'source;destination;bytes;start_s' has no",
        ),
        ("source,destination,bytes,bytes,start_s\n", "has more than one column bytes"),
        (
            "source,destination,bytes,start_s\n",
            "flows.csv: there is no flow after the head line",
        ),
        ("\n\ng0,g1,x,0", "flows.csv:4: bytes: 'x'"),
        ("g0,g1,1000,0,5", "flows.csv:2: there are more fields than in the head line"),
        (
            "g0,g1,1,1701388800",
            "flows.csv:2: start_s: 1701388800.0; it must be 0 to 1,000,000",
        ),
        ("g0,g1,1,inf", "flows.csv:2: start_s: inf"),
        (f"g0,{'a' * 200_000},1,0", "flows.csv:2: field larger than field limit"),
        (
            "g0,g9,1,0",
            "flows.csv:2: destination: there is no GPU 'g9'; there are 4, such as g0",
        ),
        ("g0,g0,1,0", "flows.csv:2: g0 sends to itself"),
        ("g0,g1,0,0", "flows.csv:2: bytes: 0"),
        ("g0,g1,1,nan", "flows.csv:2: start_s: nan"),
        ("g0,g1,x,0", "flows.csv:2: bytes: 'x' is not a whole number of bytes"),
        ("g0,g1", "flows.csv:2: bytes: '' is not a whole number of bytes"),
        (f"g0,g1,1{'0' * 400},0", "flows.csv:2: bytes: more than "),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, part: str):
    file = tmp_path / "flows.csv"
    head = "" if text.startswith("source") else "source,destination,bytes,start_s\n"
    file.write_text(head + text)
    with pytest.raises(FlowFileError) as error:
        read_flows(file, LEAF.gpus)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_files_of_spreadsheets_are_read(tmp_path: Path, encoding: str, end: str):
    lines = [
        "source, destination, bytes, start_s ",
        "g0, g1, 1000, 0.5",
        "",
        "g1 ,g2,5,0",
        "",
    ]
    file = tmp_path / "flows.csv"
    file.write_bytes(end.join(lines).encode(encoding))
    assert read_flows(file, LEAF.gpus) == [
        SizedFlow("g0", "g1", 1000, 0.5),
        SizedFlow("g1", "g2", 5, 0),
    ]


def test_a_file_in_another_encoding_is_one_line(tmp_path: Path):
    file = tmp_path / "flows.csv"
    file.write_text("source,destination,bytes,start_s\n", encoding="utf-16")
    with pytest.raises(FlowFileError, match=r"flows\.csv: it is not text in UTF-8$"):
        read_flows(file, LEAF.gpus)


def test_a_device_that_never_ends_is_no_file_of_flows():
    with pytest.raises(FlowFileError, match="/dev/zero: "):
        read_flows(Path("/dev/zero"), LEAF.gpus)


def test_the_command_prints_and_writes_times(tmp_path: Path):
    scenario, flows = "docs/flows/clos.yaml", "docs/flows/clos.csv"
    done = ringlight(
        "fct", scenario, flows, "--out", str(tmp_path / "out.csv"), "--json"
    )
    document = json.loads(done.stdout)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert document["flows"] == len(lines) - 1 == 200
    assert sum(item["flows"] for item in document["classes"]) == 200
    assert lines[0].endswith("completion_s")


def test_times_that_cannot_be_written_are_refused_before_the_simulation(tmp_path: Path):
    flows = tmp_path / "flows.csv"
    flows.write_text("source,destination,bytes,start_s,name\ng0,g1,1,0,a\n")
    before = flows.read_bytes()
    for out, part in (
        (flows, "flows.csv: it is the file of flows; name another with --out"),
        (tmp_path / "none/out.csv", "none/out.csv: cannot be written: No such file"),
    ):
        done = ringlight("fct", "docs/flows/clos.yaml", str(flows), "--out", str(out))
        assert done.returncode
        assert part in one_line(done)
    assert flows.read_bytes() == before


def test_what_cannot_carry_flows_is_one_line():
    scenario = "scenarios/examples/interconnects.yaml"
    done = ringlight("fct", scenario, "docs/flows/clos.csv", "--arm", "torus")
    assert done.returncode == 2
    assert "there is no GPU" in one_line(done) or "flows pass" in one_line(done)
