"""Schedules of clusters sum right, load NICs as the model counts, and take the model's time in the simulator."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.servers.fabric_key import GPU_SERVERS, GpuServersSpec
from ringlight.extensions.servers.model import predict
from ringlight.extensions.servers.schedules import channel_rings, double_binary_tree
from ringlight.extensions.servers.trees import most_vectors
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.steps import Steps, compact
from ringlight.fabric.verify import verify
from ringlight.testbed.simulation.networks import PacketNetwork
from ringlight.testbed.simulation.phases import StepCost, synchronous

MODEL_BYTES = 1 << 30


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_both_sum_all_ranks_everywhere(servers, group, channels):
    if servers * group < 2:
        return
    verify("all-reduce", channel_rings(servers * group, channels, group))
    verify("all-reduce", double_binary_tree(servers * group, channels, group))


def test_ranks_that_fill_no_servers_are_refused():
    with pytest.raises(ValueError, match="7 ranks are not whole servers of 2"):
        channel_rings(7, 1, 2)


def between(steps: Steps, group: int) -> np.ndarray:
    """Return the vectors that each server sends to others."""
    sent = np.zeros(steps.world_size // group)
    for step in steps:
        off = step.sources // group != step.destinations // group
        np.add.at(sent, step.sources[off] // group, step.count[off] / steps.chunks)
    return sent


@pytest.mark.parametrize("servers", [2, 3, 4, 7, 8])
def test_servers_send_as_many_vectors_as_the_model_counts(servers):
    group = 4
    trees = double_binary_tree(servers * group, 2, group)
    assert between(trees, group).max() == pytest.approx(most_vectors(servers))
    ranks = servers * group
    rings = channel_rings(ranks, 4, group)
    assert between(rings, group) == pytest.approx(2 * (ranks - 1) / ranks)


def simulated(spec: GpuServersSpec, algorithm: str, latency_s: float = 0.0) -> float:
    """Return the seconds of an all-reduce of 1 GiB in the packet simulator."""
    fabric = GPU_SERVERS.tree(spec).fabric(paths="even")
    network = PacketNetwork(fabric, latency_s=latency_s)
    gpus = tuple(fabric.gpus)
    steps = compact(steps_named(algorithm, len(gpus)))
    return synchronous(network, gpus, steps, MODEL_BYTES, StepCost()).total_s


def servers(gpu: str = "h100", **more: object) -> GpuServersSpec:
    nics = [{"count": 4, "rate": "200 Gbit/s"}]
    keys = {"count": 2, "gpus": 4, "gpu": gpu, "nics": nics} | more
    return GpuServersSpec.model_validate(keys)


def test_the_simulator_agrees_with_the_model_on_rings_over_rails():
    spec = servers()
    modelled = predict(spec.cluster(), MODEL_BYTES, "all-reduce", "ring", "simple")
    found = simulated(spec, "channel-rings-4-group-4")
    assert found == pytest.approx(modelled.seconds, rel=0.01)


def test_one_ring_uses_one_rail_in_the_simulator():
    assert simulated(servers(), "channel-rings-1-group-4") == pytest.approx(
        4 * simulated(servers(), "channel-rings-4-group-4"), rel=0.01
    )


def test_the_simulator_agrees_with_the_model_on_a_slow_nic():
    spec = servers(slow=[{"server": 1, "nic": 2, "share": 0.5}])
    modelled = predict(spec.cluster(), MODEL_BYTES, "all-reduce", "ring", "simple")
    found = simulated(spec, "channel-rings-4-group-4")
    assert found == pytest.approx(modelled.seconds, rel=0.01)
    assert found == pytest.approx(
        2 * simulated(servers(), "channel-rings-4-group-4"), rel=0.01
    )
