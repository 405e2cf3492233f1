"""Times of collectives against calculations by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.servers.channels import nics_bps, plan
from ringlight.extensions.servers.hardware import GPUS, GpuCluster, Nic, Server
from ringlight.extensions.servers.model import (
    _estimate,
    bus_bandwidth_bps,
    launched_s,
    predict,
)
from ringlight.extensions.servers.sums import filling, loop_bytes
from ringlight.extensions.servers.trees import (
    binary_tree,
    depth,
    double_tree,
    most_vectors,
)

GB = 8e9
LARGE = 64 << 30


def cluster(gpu="h100", servers=2, gpus=8, nics=(400,) * 8, kind="infiniband"):
    made = tuple(Nic(rate * 1e9, kind) for rate in nics)
    return GpuCluster(Server(GPUS[gpu], gpus, made), servers)


def bus(made, algorithm=None, size=LARGE, kind="all-reduce"):
    """Return the bus bandwidth, GB/s."""
    found = predict(made, size, kind, algorithm)
    return bus_bandwidth_bps(kind, made.ranks, size, found.seconds) / GB


# Rates


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # NVLink: links times NCCL's 20, 20.6 and 40.1 GB/s.
        (cluster("a100", 1, nics=()), 240),
        (cluster("h100", 1, nics=()), 370.8),
        (cluster("b200", 1, nics=()), 721.8),
        # NICs: 0.96 of 25, 50 and 12.5 GB/s each.
        (cluster("a100", 3, nics=(200,) * 4), 96),
        (cluster("a100", 2, nics=(200,) * 8), 192),
        (cluster("v100", 8, nics=(100,)), 12),
        # NVLink is slower than eight NICs of 48 GB/s.
        (cluster("h100", 2), 370.8),
    ],
)
def test_a_ring_is_as_fast_as_its_slowest_link(made, expected):
    assert bus(made, "ring") == pytest.approx(expected, rel=2e-3)


def test_a_tree_of_two_servers_sends_the_vector_once():
    # Each server sends half up and half down: 1 GPU, 1 NIC, 48 GB/s of which trees get 0.92.
    made = cluster(gpus=1, nics=(400,))
    found = predict(made, LARGE, "all-reduce", "tree", "simple")
    # Two channels of at most 41.4 GB/s of bus bandwidth, twice the tree's, and 0.85 for one GPU a server.
    assert 8 * LARGE / found.seconds / GB == pytest.approx(0.85 * 41.4, rel=2e-3)


def test_a_tree_of_servers_with_two_gpus_has_no_penalty_of_one():
    found = predict(cluster(gpus=2, nics=(400,)), LARGE, "all-reduce", "tree", "simple")
    # Twice 48 GB/s, 0.92 of it: more than two channels of 41.4 GB/s of bus bandwidth.
    assert 8 * LARGE / found.seconds / GB == pytest.approx(41.4, rel=2e-3)


def test_sums_in_the_switch_have_the_rate_of_the_library():
    # 8 heads at 40 GB/s (9 of them fit 370.8), 0.85 of it, two operations at once, 7/8.
    assert bus(cluster("h100", 1, nics=()), "nvls") == pytest.approx(476, rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "mtu_bytes", "share"),
    [
        ("infiniband", 4096, 0.96),
        # 26 bytes of headers a packet.
        ("infiniband", 1024, 0.96 * (1024 / 1050) / (4096 / 4122)),
        # 82 bytes: 8 + 14 + 20 + 8 + 12 + 4 + 4 + 12.
        ("roce", 4096, 0.96 * (4096 / 4178) / (4096 / 4122)),
        ("roce", 1024, 0.96 * (1024 / 1106) / (4096 / 4122)),
    ],
)
def test_headers_take_their_part_of_a_nic(kind, mtu_bytes, share):
    nic = Nic(100e9, kind, mtu_bytes=mtu_bytes)
    assert nic.usable_bps == pytest.approx(share * 100e9)
    assert Nic(100e9, kind, 0.5, mtu_bytes).usable_bps == pytest.approx(50e9)


def test_channels_are_planned_with_line_rates():
    # 12 GB/s fit a NIC of 12.5 GB/s, of which 11.2 can be used.
    small = (Nic(100e9, "roce", mtu_bytes=1024),) * 2
    made = GpuCluster(Server(GPUS["gb10"], 1, small), 2)
    assert plan(made).nics == (0, 1)
    usable = 2 * 12.5 * 0.96 * (1024 / 1106) / (4096 / 4122)
    assert nics_bps(made, plan(made)) / GB == pytest.approx(usable)


def test_channels_are_striped_over_nics_of_equal_rate():
    made = plan(cluster(nics=(200,) * 4))
    assert (made.number, made.nics) == (4, (0, 1, 2, 3))


def test_channels_are_striped_over_nics_of_unequal_rate_in_proportion():
    made = cluster(nics=(400, 200))
    channels = plan(made)
    assert sorted(channels.nics) == [0, 0, 1]
    assert nics_bps(made, channels) / GB == pytest.approx(72)


def test_a_slow_nic_slows_its_channels_and_with_them_the_collective():
    healthy = cluster("a100", nics=(200,) * 4)
    fault = healthy.server.slowed(2, 0.5)
    slow = replace(healthy, faulty=((1, fault),))
    assert plan(slow) == plan(healthy)
    assert bus(healthy, "ring") == pytest.approx(96, rel=2e-3)
    # Four channels of 12 GB/s: the three fast ones wait for the slow one.
    assert bus(slow, "ring") == pytest.approx(48, rel=2e-3)


def test_an_all_gather_moves_each_part_once():
    made = cluster("a100", nics=(200,) * 4)
    found = predict(made, LARGE, "all-gather")
    assert found.seconds == pytest.approx(LARGE * 15 / 16 / 96e9, rel=2e-3)


def test_an_all_to_all_sends_what_leaves_the_server_through_its_nics():
    made = cluster("h100", 4, nics=(400,) * 4)
    found = predict(made, LARGE, "all-to-all")
    # 8 GPUs, 24 of 32 parts each, 4 NICs of 48 GB/s.
    assert found.seconds == pytest.approx(8 * LARGE * 24 / 32 / (4 * 48e9), rel=2e-3)
    assert found.limit == "NICs"


# Latencies


@pytest.mark.parametrize(
    ("made", "algorithm", "expected_us"),
    [
        # 6.6 + 14 steps of 0.6.
        (cluster(servers=1), "ring", 15.0),
        # 6.8 + 2 (7 steps of 0.6 + one of 5 between servers).
        (cluster(), "tree", 25.2),
        # 25 + 2 levels of 20.9 up and down.
        (cluster(servers=4), "nvls-tree", 25 + 4 * 20.9),
        # 25 + 18 of the network's own sums.
        (cluster(servers=4), "sharp", 43),
    ],
)
def test_a_few_bytes_take_the_latency_of_the_steps(made, algorithm, expected_us):
    seconds = predict(made, 8, "all-reduce", algorithm).seconds
    assert 1e6 * seconds == pytest.approx(expected_us, rel=1e-2)


def test_large_chunks_hide_the_latency_of_a_ring_and_small_ones_do_not():
    made = cluster("a100", 3, nics=(200,) * 4)
    size = 128 << 20
    found = predict(made, size, "all-reduce", "ring", "simple").seconds
    # 8.4 us, and the bytes.
    assert found == pytest.approx(8.4e-6 + size * 46 / 24 / 96e9)
    # Of 1 MiB: 1.4 (8.4 + 42 steps of 3.4 + 4 of 14) us, and half of the bytes on each link in turn.
    size = 1 << 20
    latency = 1.4 * (8.4 + 42 * 3.4 + 4 * 14) * 1e-6
    slices = size / 24 / 2 * (42 / 240e9 + 4 / 96e9)
    found = predict(made, size, "all-reduce", "ring", "simple").seconds
    assert found == pytest.approx(latency + slices)


def test_a_thread_that_launches_on_eight_gpus_takes_33_7_us():
    assert launched_s(15e-6, 8) == pytest.approx(33.7e-6)
    assert launched_s(15e-6, 1) == pytest.approx(15e-6)
    assert launched_s(1e-3, 8) == pytest.approx(1e-3)


def test_the_stages_of_sums_cost_small_vectors_some_loops():
    made = cluster("h100", 1, nics=())
    # 16 blocks, 8 heads, 64 KiB: less than 64 loops of 128 KiB.
    assert loop_bytes(made, "nvls", 128 << 20) == 8 << 20
    assert filling(made, "nvls", 128 << 20) == pytest.approx(2 * 8 / 128)


# The choice


def test_nccl_chooses_by_size():
    made = cluster()
    chosen = [predict(made, 1 << power).algorithm for power in (13, 20, 30)]
    assert chosen == ["tree", "tree", "nvls-tree"]
    assert predict(made, 1 << 13).protocol == "ll"
    assert predict(made, 1 << 30, algorithm="ring").protocol == "simple"
    # Ampere's switches do not sum.
    assert predict(cluster("a100", nics=(200,) * 8), 1 << 30).algorithm == "ring"


def test_without_sums_in_switches_the_choice_is_among_rings_and_trees():
    racks = cluster("gb200", servers=20, gpus=72, nics=(400,) * 72)
    assert predict(racks, 1 << 30).algorithm == "nvls-tree"
    sizes = (1 << 10, 1 << 30, 1 << 34)
    chosen = [predict(racks, size, nvls=False).algorithm for size in sizes]
    assert chosen == ["tree", "tree", "ring"]
    with pytest.raises(ValueError, match="nvls-tree"):
        predict(racks, 1 << 30, algorithm="nvls-tree", nvls=False)


def test_trees_of_sums_are_corrected_on_blackwell_with_x86_alone():
    # At 64 MiB NCCL takes 0.8 of the rate into account, and for the choice only.
    made, grace = (cluster(gpu, 2, 8) for gpu in ("b200", "gb200"))
    way, size = ("nvls-tree", "simple"), 64 << 20
    slow, fast = (_estimate(each, "all-reduce", way, size) for each in (made, grace))
    latency = (25 + 2 * 20.9) * 1e-6
    assert (slow - latency) / (fast - latency) == pytest.approx(1 / 0.8)
    chosen = [predict(each, size, algorithm="nvls-tree") for each in (made, grace)]
    assert chosen[0] == chosen[1]


def test_hardware_without_sums_refuses_them():
    with pytest.raises(
        ValueError, match="nvls: NCCL makes no sums in the switch of 8 a100"
    ):
        predict(cluster("a100", 1), 1 << 20, algorithm="nvls")
    for servers, algorithm, message in (
        (2, "nvls", "nvls is for a job on one server, this is on 2; take nvls-tree"),
        (1, "nvls-tree", "nvls-tree is for a job on several servers"),
        (1, "sharp", "sharp is for a job on several servers"),
    ):
        with pytest.raises(ValueError, match=message):
            predict(cluster("h100", servers), 1 << 20, algorithm=algorithm)


def test_a_nic_without_a_stated_share_is_refused():
    with pytest.raises(ValueError, match="efa has no stated usable share"):
        predict(cluster("a100", nics=(100,) * 4, kind="efa"), 1 << 20)
    assert Nic(100e9, "efa", share=0.7).usable_bps == pytest.approx(70e9)


def test_a_cluster_needs_nics():
    with pytest.raises(ValueError, match="without NICs"):
        cluster(nics=())


# Trees


@given(st.integers(2, 200))
def test_each_tree_reaches_every_server_and_inner_ones_of_one_are_leaves_of_the_other(
    nodes,
):
    first, second = double_tree(nodes)
    for parents in (first, second):
        assert sum(up is None for up in parents) == 1
        assert depth(parents) <= nodes.bit_length()
        children = [parents.count(node) for node in range(nodes)]
        assert max(children) <= 2
    inner = {up for up in first if up is not None}
    also = {up for up in second if up is not None}
    # The two roots may have a child in their own tree and be inner in the other.
    assert len(inner & also) <= 2
    assert most_vectors(nodes) <= 2


def test_the_tree_is_that_of_the_library():
    parents = binary_tree(14)
    assert parents[:8] == (None, 2, 4, 2, 8, 6, 4, 6)
    assert (parents[8], parents[12], parents[13]) == (0, 8, 12)
    assert (most_vectors(2), most_vectors(8)) == (1.0, 2.0)


@given(
    st.sampled_from(["a100", "h100", "b200"]),
    st.integers(1, 20),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(3, 34),
)
def test_a_larger_vector_never_takes_less_time_with_the_same_algorithm(
    gpu, servers, gpus, power
):
    if servers * gpus < 2:
        return
    made = cluster(gpu, servers, gpus, (200,) * gpus)
    for algorithm in ("ring", "tree"):
        small, large = (
            predict(made, 1 << exponent, "all-reduce", algorithm, "simple").seconds
            for exponent in (power, power + 1)
        )
        assert large > small
