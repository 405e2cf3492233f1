from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.fabric.cost import (
    RingJob,
    RingModel,
    check_jobs,
    max_min_rates,
    predict,
    ring_edge_bytes,
)
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView
from ringlight.fabric.topology import circuit_cross_connects
from tests.unit.fabrics import NIC_BPS, OVERSUBSCRIPTION, make_fabric, six_gpu_fabric

# Derived calibration of the disaggregation paper: compute and S/B are 292 and 96 of one unit, here
# milliseconds; a run is 1,000 iterations of one GPU's batch, shared by the GPUs of the job.
COMPUTE_S = 0.292
GRADIENT_BYTES = 0.096 * NIC_BPS / 8
BATCHES = 1000


def completion_s(
    red: list[str], blue: list[str], circuits: list[tuple[str, str]]
) -> float:
    fabric = six_gpu_fabric()
    lit = circuit_cross_connects(
        fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits]
    )
    jobs = [
        RingJob.all_reduce("red", red, GRADIENT_BYTES, COMPUTE_S),
        RingJob.all_reduce("blue", blue, GRADIENT_BYTES, COMPUTE_S),
    ]
    return predict(PacketView(fabric, lit), jobs)["red"] * BATCHES / len(red)


FRAGMENTED = [(f"g{i}", f"tor{i // 3}:{i % 3 + 1}") for i in range(6)]
CASE_A = (["g0", "g3", "g1", "g4"], ["g2", "g5"])
CASE_B = (["g0", "g3", "g1"], ["g4", "g2", "g5"])
REGROUPED_A = [
    ("g0", "tor0:1"),
    ("g1", "tor0:2"),
    ("g3", "tor0:3"),
    ("g4", "tor0:4"),
    ("g2", "tor1:1"),
    ("g5", "tor1:2"),
]
REGROUPED_B = [
    ("g0", "tor0:1"),
    ("g1", "tor0:2"),
    ("g3", "tor0:3"),
    ("g4", "tor1:1"),
    ("g2", "tor1:2"),
    ("g5", "tor1:3"),
]


@pytest.mark.parametrize(
    ("case", "circuits", "model_s", "paper_s"),
    [
        (CASE_A, FRAGMENTED, 407.8, 407),
        (CASE_A, REGROUPED_A, 109.0, 109),
        (CASE_B, FRAGMENTED, 361.9, 368),
        (CASE_B, REGROUPED_B, 140.0, 140),
    ],
)
def test_one_oversubscription_explains_the_four_completion_times(
    case: tuple[list[str], list[str]],
    circuits: list[tuple[str, str]],
    model_s: float,
    paper_s: float,
) -> None:
    predicted = completion_s(*case, circuits)
    assert predicted == pytest.approx(model_s, abs=0.05)
    assert predicted == pytest.approx(paper_s, rel=0.02)


def test_a_contiguous_ring_crosses_once_in_each_direction() -> None:
    fabric = six_gpu_fabric()
    lit = circuit_cross_connects(fabric, fabric.circuits)
    job = RingJob("red", ("g0", "g1", "g3", "g4"), 1e6)
    rates = RingModel(PacketView(fabric, lit), [job]).rates_bps(["red"])["red"]
    trunk = NIC_BPS / OVERSUBSCRIPTION
    assert rates == pytest.approx((NIC_BPS, trunk, NIC_BPS, trunk))


def test_jobs_of_one_rank_or_no_bytes_only_compute() -> None:
    fabric = six_gpu_fabric()
    lit = circuit_cross_connects(fabric, fabric.circuits)
    jobs = [
        RingJob.all_reduce("one", ["g0"], 1e9, 0.5),
        RingJob("idle", ("g1", "g2"), 0.0, 0.25),
    ]
    assert predict(PacketView(fabric, lit), jobs) == {"one": 0.5, "idle": 0.25}
    assert predict(PacketView(fabric, lit), []) == {}


def test_the_ideal_ring() -> None:
    assert ring_edge_bytes(4, 1e9) == pytest.approx(1.5e9)
    assert ring_edge_bytes(1, 1e9) == 0
    assert ring_edge_bytes(2, 100) == 100
    with pytest.raises(ValueError, match="at least one rank, not 0"):
        ring_edge_bytes(0, 1e9)


def test_a_dark_gpu_is_named() -> None:
    fabric = six_gpu_fabric()
    lit = circuit_cross_connects(fabric, fabric.circuits[:-1])
    with pytest.raises(ValueError, match="no path from g0 to g5: g5 is dark"):
        predict(PacketView(fabric, lit), [RingJob("red", ("g0", "g5"), 1e6)])


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([RingJob("red", ("g0", "g9"), 1)], "job red rank 1: there is no GPU g9"),
        (
            [RingJob("red", ("g0", "g0"), 1)],
            "job red rank 1: GPU g0 is used twice by that job",
        ),
        (
            [RingJob("red", ("g0", "g1"), 1), RingJob("blue", ("g2", "g1"), 1)],
            "job blue rank 1: GPU g1 is used by job red too",
        ),
        (
            [RingJob("red", ("g0",), 1), RingJob("red", ("g1",), 1)],
            "two jobs are called red",
        ),
        ([RingJob("red", (), 1)], "job red has no ranks"),
        (
            [RingJob("red", ("g0",), -1)],
            "job red: bytes_per_edge is -1; it must be 0 or more",
        ),
        ([RingJob("red", ("g0",), math.nan)], "job red: bytes_per_edge is nan"),
        ([RingJob("red", ("g0",), 1, math.inf)], "job red: compute_s is inf"),
    ],
)
def test_jobs_that_cannot_be(jobs: list[RingJob], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_jobs(six_gpu_fabric(), jobs)


def test_the_textbook_example_of_max_min() -> None:
    # One long flow over both links, one flow on the first, two on the second.
    rates = max_min_rates([["a", "b"], ["a"], ["b"], ["b"]], {"a": 10.0, "b": 9.0})
    assert rates == pytest.approx([3, 7, 3, 3])


def test_a_flow_that_passes_a_link_twice_loads_it_twice() -> None:
    assert max_min_rates([["a", "a"], ["a"]], {"a": 9.0}) == pytest.approx([3, 3])


@settings(max_examples=200)
@given(st.data())
def test_every_flow_has_a_bottleneck(data: st.DataObject) -> None:
    """The definition of max-min fairness: on some full link of its path no flow is faster."""
    capacities = dict(
        enumerate(data.draw(st.lists(st.floats(0.1, 100), min_size=1, max_size=6)))
    )
    flows = data.draw(
        st.lists(
            st.lists(st.sampled_from(sorted(capacities)), min_size=1, max_size=4),
            max_size=8,
        )
    )
    rates = max_min_rates(flows, capacities)
    load = {
        link: sum(
            rate * path.count(link) for rate, path in zip(rates, flows, strict=True)
        )
        for link in capacities
    }
    for link, capacity in capacities.items():
        assert load[link] <= capacity * (1 + 1e-9)
    for rate, path in zip(rates, flows, strict=True):
        assert any(
            load[link] >= capacities[link] * (1 - 1e-9)
            and rate
            >= max(r for r, p in zip(rates, flows, strict=True) if link in p)
            * (1 - 1e-9)
            for link in path
        )


def test_jobs_on_switches_of_their_own_do_not_meet() -> None:
    fabric = make_fabric([[2, 2]], [0, 0, 0, 0], trunks=[(0, 1)], rate_bps=1e9)
    pairs = [(Port(f"g{i}", 0), Port(f"tor{i // 2}", i % 2 + 1)) for i in range(4)]
    lit = circuit_cross_connects(fabric, pairs)
    jobs = [
        RingJob.all_reduce("red", ["g0", "g1"], 125e6, 0.5),
        RingJob.all_reduce("blue", ["g2", "g3"], 250e6, 0),
    ]
    assert predict(PacketView(fabric, lit), jobs) == pytest.approx(
        {"red": 1.5, "blue": 2.0}
    )
