from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from ringlight.fabric import placement, placement_exact, placement_heuristic
from ringlight.fabric.cost import RingJob, predict
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView
from ringlight.fabric.placement import Move, Regrouping, regroup
from ringlight.fabric.placement_problem import Circuit
from ringlight.fabric.topology import Fabric, circuit_cross_connects
from tests.unit.fabrics import (
    circuits,
    gpu_ports,
    make_fabric,
    six_gpu_fabric,
    switch_ports,
)


def switch_of(lit: Collection[Circuit]) -> dict[str, str]:
    """Packet switch of every GPU that has a circuit; written apart from the code under test."""
    at = {}
    for a, b in lit:
        for here, there in ((a, b), (b, a)):
            if here.node.startswith("g"):
                at[here.node] = there.node
    return at


def crossing_bytes(jobs: list[RingJob], at: dict[str, str]) -> float:
    return math.fsum(
        job.bytes_per_edge
        for job in jobs
        for a, b in zip(job.ranks, job.ranks[1:] + job.ranks[:1], strict=True)
        if a != b and (a not in at or b not in at or at[a] != at[b])
    )


def check(
    fabric: Fabric,
    before: list[Circuit],
    jobs: list[RingJob],
    result: Regrouping,
    movable: Collection[str] | None = None,
) -> None:
    """Everything a regrouping promises, except that nothing is better."""
    circuit_cross_connects(fabric, result.circuits)
    was, now = switch_of(before), switch_of(result.circuits)
    assert result.crossing_bytes_before == pytest.approx(crossing_bytes(jobs, was))
    assert result.crossing_bytes_after == pytest.approx(crossing_bytes(jobs, now))
    assert result.crossing_bytes_after <= result.crossing_bytes_before
    assert result.crossing_bytes_bound <= result.crossing_bytes_after * (1 + 1e-9)
    assert set(result.kept) == set(before) & set(result.circuits)
    moved = {move.gpu: move for move in result.moved}
    assert len(moved) == len(result.moved)
    assert list(moved) == [gpu for gpu in fabric.gpus if gpu in moved]
    in_jobs = {gpu for job in jobs for gpu in job.ranks}
    assert set(now) - set(was) <= in_jobs
    assert set(was) <= set(now), "a GPU went dark"
    for gpu in fabric.gpus:
        if gpu in moved:
            assert moved[gpu].destination.node == now[gpu] != was.get(gpu)
            assert (Port(gpu, 0), moved[gpu].destination) in result.circuits
            assert (moved[gpu].source is None) == (gpu not in was)
            assert movable is None or gpu in movable
        else:
            assert was.get(gpu) == now.get(gpu)
    # Moved GPUs sit on the lowest ports that others left free.
    for o in fabric.optical_switches:
        mine = set(gpu_ports(fabric, o))
        held = {port for circuit in result.circuits for port in circuit}
        for port in set(switch_ports(fabric, o)) - held:
            for move in result.moved:
                if move.destination.node == port.node and Port(move.gpu, 0) in mine:
                    assert move.destination < port


def brute_force(
    fabric: Fabric, before: list[Circuit], jobs: list[RingJob], movable: Collection[str]
) -> tuple[float, int]:
    """(crossing bytes, moves) of the best of all assignments."""
    was = switch_of(before)
    in_jobs = [gpu for job in jobs for gpu in job.ranks]
    optical = {
        port.node: o for o in fabric.optical_switches for port in gpu_ports(fabric, o)
    }
    loose = [
        gpu
        for gpu in fabric.gpus
        if gpu in movable and gpu in optical and (gpu in was or gpu in in_jobs)
    ]
    room = Counter(
        (o, port.node)
        for o in fabric.optical_switches
        for port in switch_ports(fabric, o)
    )
    for a, b in before:
        if a.node not in loose and b.node not in loose:
            for o in fabric.optical_switches:
                for port in {a, b} & set(switch_ports(fabric, o)):
                    room[o, port.node] -= 1
    copper = {
        port.node: link.other(port).node
        for port, link in fabric.link_at.items()
        if port.node in fabric.gpus and port.node not in optical
    }
    best = (math.inf, 0)
    for choice in itertools.product(fabric.packet_switches, repeat=len(loose)):
        taken = Counter(
            (optical[gpu], switch) for gpu, switch in zip(loose, choice, strict=True)
        )
        if any(count > room[where] for where, count in taken.items()):
            continue
        now = was | copper | dict(zip(loose, choice, strict=True))
        moves = sum(was.get(gpu) != now[gpu] for gpu in loose)
        best = min(best, (round(crossing_bytes(jobs, now), 6), moves))
    return best


CASES = {
    "4+2": ([("g0", "g3", "g1", "g4"), ("g2", "g5")], 3),
    "3+3": ([("g0", "g3", "g1"), ("g4", "g2", "g5")], 2),
    "2+2+2": ([("g0", "g3"), ("g1", "g4"), ("g2", "g5")], 3),
    "contiguous": ([("g0", "g1", "g2"), ("g3", "g4", "g5")], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_six_gpu_cases(case: str) -> None:
    fabric = six_gpu_fabric()
    rings, moves = CASES[case]
    jobs = [RingJob(f"job{i}", ranks, 1e6) for i, ranks in enumerate(rings)]
    result = regroup(fabric, fabric.circuits, jobs)
    check(fabric, list(fabric.circuits), jobs, result)
    assert result.crossing_bytes_after == 0
    assert len(result.moved) == moves
    assert len(result.kept) == 6 - moves
    assert result.optimal


def test_case_a_in_full() -> None:
    fabric = six_gpu_fabric()
    jobs = [
        RingJob.all_reduce("red", ["g0", "g3", "g1", "g4"], 1e6, 0.3),
        RingJob.all_reduce("blue", ["g2", "g5"], 1e6, 0.3),
    ]
    result = regroup(fabric, fabric.circuits, jobs)
    assert result.crossing_bytes_before == pytest.approx(4 * 1.5e6 + 2 * 1e6)
    ends = {
        str(move.gpu): (str(move.source), str(move.destination))
        for move in result.moved
    }
    assert ends == {
        "g2": ("tor0:3", "tor1:1"),
        "g3": ("tor1:1", "tor0:3"),
        "g4": ("tor1:2", "tor0:4"),
    }
    before = predict(
        PacketView(fabric, circuit_cross_connects(fabric, fabric.circuits)), jobs
    )
    after = predict(
        PacketView(fabric, circuit_cross_connects(fabric, result.circuits)), jobs
    )
    assert all(after[job] < before[job] for job in before)
    again = regroup(fabric, result.circuits, jobs)
    assert not again.moved
    assert again.circuits == result.circuits
    assert again.optimal


weights = st.sampled_from([1e6, 1.5e6, 4e6 / 3, 2.5e6, 0.0])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Fabric, list[Circuit], list[RingJob], list[str]]:
    count = draw(st.integers(2, 6))
    planes = draw(st.integers(1, 2))
    towers = draw(st.integers(2, 3))
    gpus = [draw(st.integers(0, planes - 1)) for _ in range(count)]
    ports = [[draw(st.integers(0, 3)) for _ in range(towers)] for _ in range(planes)]
    for o in range(planes):
        short = gpus.count(o) - sum(ports[o])
        if short > 0:
            ports[o][draw(st.integers(0, towers - 1))] += short
    copper = [draw(st.integers(0, towers - 1))] if draw(st.booleans()) else []
    fabric = make_fabric(ports, gpus, copper_gpus=copper)
    lit = draw(circuits(fabric, all_lit=draw(st.booleans()), trunks=True))
    # A circuit between two ports of packet switches must not take the last place of a dark GPU.
    lit = [c for c in lit if c[0].node in fabric.gpus or draw(st.booleans())]
    order = draw(st.permutations(list(fabric.gpus)))
    jobs = []
    while order and draw(st.integers(0, 3)) > 0:
        size = draw(st.integers(1, len(order)))
        jobs.append(RingJob(f"job{len(jobs)}", tuple(order[:size]), draw(weights)))
        order = order[size:]
    held = draw(st.sets(st.sampled_from(list(fabric.gpus)), max_size=3))
    return fabric, lit, jobs, [gpu for gpu in fabric.gpus if gpu not in held]


@settings(max_examples=100)
@given(problems())
def test_small_fabrics_are_solved_exactly(
    problem: tuple[Fabric, list[Circuit], list[RingJob], list[str]],
) -> None:
    fabric, lit, jobs, movable = problem
    used = {gpu for job in jobs for gpu in job.ranks}
    on_light = {
        port.node for o in fabric.optical_switches for port in gpu_ports(fabric, o)
    }
    dark = (used & on_light) - set(switch_of(lit))
    if not dark <= set(movable):
        with pytest.raises(ValueError, match=r"is dark and may not be moved"):
            regroup(fabric, lit, jobs, movable=movable)
        return
    best = brute_force(fabric, lit, jobs, movable)
    if best[0] == math.inf:
        with pytest.raises(ValueError, match=r"no free port for GPU g\d"):
            regroup(fabric, lit, jobs, movable=movable)
        return
    result = regroup(fabric, lit, jobs, movable=movable)
    copper = {
        p.node: link.other(p)
        for p, link in fabric.link_at.items()
        if p.node in fabric.gpus and link.other(p).node in fabric.packet_switches
    }
    # Copper GPUs have no circuit; for the checks they have one that never changes.
    plugged = [(Port(gpu, 0), port) for gpu, port in copper.items()]
    check_with_copper(fabric, lit, jobs, result, movable, plugged)
    assert result.optimal
    assert (round(result.crossing_bytes_after, 6), len(result.moved)) == pytest.approx(
        best
    )
    assert regroup(fabric, lit, jobs, movable=movable) == result
    assert (
        regroup(fabric, [(b, a) for a, b in lit], jobs, movable=movable).moved
        == result.moved
    )


def check_with_copper(
    fabric: Fabric,
    lit: list[Circuit],
    jobs: list[RingJob],
    result: Regrouping,
    movable: Collection[str],
    copper: list[Circuit],
) -> None:
    now = switch_of([*result.circuits, *copper])
    assert result.crossing_bytes_after == pytest.approx(crossing_bytes(jobs, now))
    was = switch_of([*lit, *copper])
    assert result.crossing_bytes_before == pytest.approx(crossing_bytes(jobs, was))
    if not copper:
        check(fabric, lit, jobs, result, movable)


@settings(max_examples=100)
@given(problems(), st.sampled_from([0, placement_exact.FEW_PLACEMENTS]))
def test_an_exact_answer_needs_no_good_start(
    problem: tuple[Fabric, list[Circuit], list[RingJob], list[str]], few: int
) -> None:
    fabric, lit, jobs, movable = problem
    best = brute_force(fabric, lit, jobs, movable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_exact, "FEW_PLACEMENTS", few)
        patch.setattr(
            placement, "search", lambda problem: placement_heuristic.stay_of(problem)
        )
        try:
            result = regroup(fabric, lit, jobs, movable=movable)
        except ValueError:
            return
    assert result.optimal
    assert (round(result.crossing_bytes_after, 6), len(result.moved)) == pytest.approx(
        best
    )


@settings(max_examples=100)
@given(st.integers(1, placement_heuristic.FEW_SWITCHES), st.data())
def test_bins_are_matched_alike_by_trying_and_by_the_solver(
    count: int, data: st.DataObject
) -> None:
    row = st.lists(st.integers(-5, 9), min_size=count, max_size=count)
    cost = np.array(
        data.draw(st.lists(row, min_size=count, max_size=count)), dtype=np.float64
    )
    sums = []
    for few in (0, placement_heuristic.FEW_SWITCHES):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placement_heuristic, "FEW_SWITCHES", few)
            columns = placement_heuristic.matching(cost)
        assert sorted(columns.tolist()) == list(range(count))
        sums.append(cost[np.arange(count), columns].sum())
    assert sums[0] == sums[1]


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    programme = placement_exact._Programme()
    x = [programme.variable(1, integer=True) for _ in range(3)]
    programme.row([(column, 1.0) for column in x], 2, 3)
    found, proven = programme.solve({x[0]: 1.0, x[1]: 2.0, x[2]: 4.0})
    assert proven
    assert found is not None
    assert found.round().tolist() == [1, 1, 0]
    assert capfd.readouterr() == ("", "")


def test_regrouping_six_gpus_loads_no_solver() -> None:
    code = (
        "import sys\nfrom ringlight.fabric.cost import RingJob\n"
        "from ringlight.fabric.placement import regroup\n"
        "from tests.unit.fabrics import six_gpu_fabric\nfabric = six_gpu_fabric()\n"
        "jobs = [RingJob('red', ('g0', 'g3', 'g1', 'g4'), 1e6), RingJob('blue', ('g2', 'g5'), 1e6)]\n"
        "assert regroup(fabric, fabric.circuits, jobs).optimal\n"
        "sys.exit('highspy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@settings(max_examples=100)
@given(problems())
def test_the_heuristic_alone_keeps_the_promises(
    problem: tuple[Fabric, list[Circuit], list[RingJob], list[str]],
) -> None:
    fabric, lit, jobs, movable = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_exact, "FEW_PLACEMENTS", 0)
        patch.setattr(placement, "EXACT_CHOICES", 0)
        try:
            result = regroup(fabric, lit, jobs, movable=movable)
        except ValueError:
            return
        if all(move.source is not None for move in result.moved):
            now = round(result.crossing_bytes_before, 6), 0
            assert (round(result.crossing_bytes_after, 6), len(result.moved)) <= now
        best = brute_force(fabric, lit, jobs, movable)
        found = round(result.crossing_bytes_after, 6), len(result.moved)
        assert found >= best or found == pytest.approx(best)
        if result.optimal:
            assert found == pytest.approx(best)


def test_a_gpu_that_no_job_uses_gives_its_place() -> None:
    fabric = make_fabric([[2, 2]], [0, 0, 0])
    lit = [
        (Port("g0", 0), Port("tor0", 1)),
        (Port("g1", 0), Port("tor0", 2)),
        (Port("g2", 0), Port("tor1", 1)),
    ]
    jobs = [RingJob("red", ("g0", "g2"), 1e6)]
    result = regroup(fabric, lit, jobs)
    assert result.moved == (Move("g0", Port("tor0", 1), Port("tor1", 2)),)
    full = make_fabric([[2, 1]], [0, 0, 0])
    result = regroup(full, lit, jobs)
    assert {move.gpu for move in result.moved} == {"g1", "g2"}
    assert result.crossing_bytes_after == 0
    held = regroup(full, lit, jobs, movable=["g0", "g2"])
    assert not held.moved
    assert held.optimal
    assert held.crossing_bytes_after == 2e6


def test_circuits_between_switches_stay_and_keep_their_ports() -> None:
    fabric = make_fabric([[3, 3]], [0, 0, 0, 0])
    trunk = (Port("tor0", 1), Port("tor1", 1))
    lit = [
        trunk,
        (Port("g0", 0), Port("tor0", 2)),
        (Port("g1", 0), Port("tor1", 2)),
        (Port("tor0", 3), Port("g2", 0)),
        (Port("g3", 0), Port("tor1", 3)),
    ]
    result = regroup(
        fabric,
        lit,
        [RingJob("red", ("g0", "g1"), 1e6), RingJob("blue", ("g2", "g3"), 1e6)],
    )
    assert trunk in result.kept
    assert result.crossing_bytes_after == 0
    assert len(result.moved) == 2
    circuit_cross_connects(fabric, result.circuits)


def test_the_heavier_job_is_kept_whole() -> None:
    fabric = make_fabric([[3, 1]], [0, 0, 0, 0])
    lit = list(
        zip(gpu_ports(fabric, "ocs0"), switch_ports(fabric, "ocs0"), strict=True)
    )
    for light, heavy in itertools.permutations((("g0", "g3"), ("g1", "g2"))):
        jobs = [RingJob("light", light, 1e6), RingJob("heavy", heavy, 3e6)]
        result = regroup(fabric, lit, jobs)
        assert result.crossing_bytes_after == 2e6
        assert result.optimal


def test_both_edges_of_a_pair_count() -> None:
    """Splitting the pair costs 2 * 1 MB, splitting the trio 2 * 0.8 MB; one of them has to be."""
    fabric = make_fabric([[4, 1]], [0] * 5)
    lit = list(
        zip(gpu_ports(fabric, "ocs0"), switch_ports(fabric, "ocs0"), strict=True)
    )
    jobs = [
        RingJob("trio", ("g0", "g1", "g2"), 0.8e6),
        RingJob("pair", ("g3", "g4"), 1e6),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            placement, "search", lambda problem: placement_heuristic.stay_of(problem)
        )
        result = regroup(fabric, lit, jobs)
    assert result.crossing_bytes_after == 1.6e6
    assert len(result.moved) == 2
    assert result.optimal


@pytest.mark.parametrize("planes", [1, 4])
def test_regrouping_again_moves_nothing(planes: int) -> None:
    """The heuristic starts from the present placement too, so what it found once it keeps."""
    rng = random.Random(planes)
    fabric = make_fabric(
        [[16 // planes] * 8] * planes, [i % planes for i in range(128)]
    )
    lit: list[Circuit] = []
    for o in fabric.optical_switches:
        ports = switch_ports(fabric, o)
        rng.shuffle(ports)
        lit += zip(gpu_ports(fabric, o), ports, strict=True)
    order = list(fabric.gpus)
    rng.shuffle(order)
    jobs = [RingJob(f"job{i}", tuple(order[9 * i : 9 * i + 9]), 1e6) for i in range(14)]
    first = regroup(fabric, lit, jobs)
    check(fabric, lit, jobs, first)
    again = regroup(fabric, first.circuits, jobs)
    check(fabric, list(first.circuits), jobs, again)
    if again.crossing_bytes_after == first.crossing_bytes_after:
        assert not again.moved


def problem_errors() -> list[tuple[dict[str, object], str]]:
    fabric = make_fabric([[1, 1]], [0, 0, 0], copper_gpus=[0])
    lit = [(Port("g0", 0), Port("tor0", 2)), (Port("g1", 0), Port("tor1", 1))]
    red = RingJob("red", ("g0", "g2"), 1e6)
    paired = make_fabric([[1, 1]], [0, 0])
    return [
        (
            {"f": fabric, "c": lit, "j": [RingJob("red", ("g0", "g9"), 1)]},
            "job red rank 1: there is no GPU g9",
        ),
        (
            {
                "f": fabric,
                "c": lit,
                "j": [RingJob("red", ("g0",), 1), RingJob("blue", ("g0",), 1)],
            },
            "job blue rank 0: GPU g0 is used by job red too",
        ),
        (
            {"f": fabric, "c": lit, "j": [red]},
            "no free port for GPU g2: ocs0 reaches 2 for 3 GPUs",
        ),
        (
            {"f": fabric, "c": lit, "j": [red], "m": ["g0"]},
            "GPU g2 of job red is dark and may not be moved",
        ),
        (
            {"f": fabric, "c": lit, "j": [red], "m": ["g7"]},
            "movable: there is no GPU g7",
        ),
        (
            {"f": fabric, "c": [lit[0], lit[0]], "j": [red]},
            "port g0:0 is used by circuits",
        ),
        (
            {
                "f": paired,
                "c": [(Port("g0", 0), Port("g1", 0))],
                "j": [RingJob("red", ("g0",), 1)],
            },
            "GPU g0 of job red is joined to g1:0, not to an aggregation switch",
        ),
    ]


@pytest.mark.parametrize(("given_", "message"), problem_errors())
def test_errors_name_the_cause(given_: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regroup(given_["f"], given_["c"], given_["j"], movable=given_.get("m"))  # type: ignore[arg-type]


def test_a_gpu_that_is_plugged_into_nothing_is_named() -> None:
    fabric = make_fabric([[1]], [0])
    loose = Fabric(fabric.gpus, fabric.packet_switches, fabric.optical_switches, ())
    with pytest.raises(ValueError, match="GPU g0 of job red is plugged into nothing"):
        regroup(loose, [], [RingJob("red", ("g0",), 1)])


def test_a_large_fabric_is_regrouped_fast_and_well() -> None:
    """1,024 GPUs on 64 switches, 32 jobs that fit without a gap: the bound of every job is reached."""
    rng = random.Random(5)
    fabric = make_fabric([[16] * 64], [0] * 1024)
    ports = switch_ports(fabric, "ocs0")
    rng.shuffle(ports)
    lit = [(Port(f"g{i}", 0), port) for i, port in enumerate(ports)]
    order = list(fabric.gpus)
    rng.shuffle(order)
    jobs = []
    for size in [8, 16, 24, 32, 48, 64, 8, 56] * 4:
        jobs.append(
            RingJob.all_reduce(
                f"job{len(jobs)}", order[:size], rng.choice([102e6, 553e6]), 0.3
            )
        )
        order = order[size:]
    assert not order
    start = time.process_time()
    result = regroup(fabric, lit, jobs)
    spent = time.process_time() - start
    check(fabric, lit, jobs, result)
    assert result.crossing_bytes_after == pytest.approx(result.crossing_bytes_bound)
    assert not result.optimal
    assert spent < 6, (
        f"{spent:.1f} s of processor time; the limit of 2 s is measured by benchmarks/regrouping.py"
    )
    assert regroup(fabric, lit, jobs) == result


@pytest.mark.parametrize("count", [6, 17, 40])
def test_matching_costs_as_little_as_scipys(count: int) -> None:
    numbers = np.random.default_rng(count)
    for most in (1, 3, 100):
        cost = -numbers.integers(0, most + 1, (count, count)).astype(float)
        cost[numbers.random((count, count)) < 0.3] = 1000.0
        columns = placement_heuristic.matching(cost)
        assert sorted(columns) == list(range(count))
        assert (
            cost[range(count), columns].sum()
            == cost[optimize.linear_sum_assignment(cost)].sum()
        )
