"""Light that follows the phases of a job: found in its graph, and set when nothing is on its way."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import yaml

from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Record
from ringlight.experiments.runner.experiment import choose, run_alone
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.extensions.sip_ml.allocation.dividing import PlanesDivider
from ringlight.extensions.sip_ml.allocation.phased import ActiveCircuits, phase_paths
from ringlight.extensions.sip_ml.divided.planes import Lightpath, ParallelOcs
from ringlight.extensions.sip_ml.phases import Phase, PhasePlan, Progress, Turn, Turns
from ringlight.extensions.sip_ml.simulation.phased import PhasedLight
from ringlight.extensions.sip_ml.simulation.zoo import CircuitNetwork
from ringlight.extensions.sip_ml.wholes.interconnect import PhaseLight
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.workload import Execution, Fidelity
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.traffic import sent
from tests.simulated import bundled

#: Bytes per second of all of a GPU's circuits.
RATE = 1e6


def taking_turns(computing_s: float = 0.0, rounds: int = 2) -> Workload:
    """Four ranks: all-reduces within pairs and across pairs in turn, computation before each across."""
    book = Book()
    within, across = (
        [book.group([0, 1]), book.group([2, 3])],
        [book.group([0, 2]), book.group([1, 3])],
    )
    writer = Writer(book)
    for _ in range(rounds):
        first = writer.collective("tp", Collective("all-reduce", "ring"), 1_000_000, 0)
        done = writer.compute("c", seconds=computing_s, after=[first])
        writer.collective(
            "dp", Collective("all-reduce", "ring"), 2_000_000, 1, after=[done]
        )
    groups = [[within[rank // 2], across[rank % 2]] for rank in range(4)]
    return book.workload("turns", [writer.done()], [0] * 4, groups, [[]] * 4)


def transformer(dp: int = 2, tp: int = 2, pp: int = 2, **training: Any) -> Workload:
    return generate(
        MODELS["gpt2-medium"],
        Parallel(dp, tp, pp),
        Training(micro_batches=2, **training),
        DEVICES["a100"],
    )


def executed(
    workload: Workload,
    takes: PhaseLight,
    how: Fidelity = "exact",
    iterations: int = 1,
    switches: int = 4,
) -> tuple[PhasedLight, Execution]:
    gpus = [f"g{rank}" for rank in range(workload.ranks)]
    network = CircuitNetwork(gpus, (sent(workload) > 0).astype(np.int64), 8 * RATE)
    engine = Engine()
    for link, capacity in enumerate((network.capacity_bps / 8).tolist()):
        engine.link(network.key(link), capacity)
    execution = Execution(
        engine,
        network,
        gpus,
        workload,
        iterations=iterations,
        fidelity=how,
        operations=True,
        standing=False,
    )
    light = PhasedLight(
        engine, execution, network, phases_of(workload), iterations, range(len(gpus)),
        PlanesDivider(ParallelOcs(switches, 8 * RATE)), 8 * RATE / switches, takes,
    )  # fmt: skip
    light.begin()
    execution.begin()
    engine.run(until_s=1e6)
    assert execution.over, execution.standstill()
    return light, execution


def test_a_phase_is_a_stretch_on_the_same_circuits() -> None:
    plan = phases_of(taking_turns())
    assert [phase.ranks for phase in plan.phases] == [
        (0, 1),
        (2, 3),
        (0, 2),
        (1, 3),
    ] * 2
    assert plan.of_rank[0] == (0, 2, 4, 6)
    # Computation is of none.
    assert plan.phase_of[0] == (0, -1, 2, 4, -1, 6)
    assert plan.phases[0].demand == {(0, 1): 1e6, (1, 0): 1e6}


@pytest.mark.parametrize(
    "training", [{}, {"schedule": "gpipe"}, {"zero": 3}, {"recompute": True}]
)
def test_phases_carry_all_that_is_sent_and_every_operation_that_sends_is_in_one(
    training: dict[str, Any],
) -> None:
    workload = transformer(**training)
    plan = phases_of(workload)
    found = np.zeros((8, 8))
    for phase in plan.phases:
        assert {rank for pair in phase.demand for rank in pair} == set(phase.ranks)
        for pair, size in phase.demand.items():
            found[pair] += size
    assert np.allclose(found, sent(workload), rtol=1e-9)
    for rank, own in enumerate(plan.phase_of):
        kinds = workload.programs[int(workload.program_of[rank])].kind
        assert all(
            (phase >= 0) == (1 <= kind <= 3)
            for phase, kind in zip(own, kinds.tolist(), strict=True)
        )


def test_an_operation_without_seconds_and_ranks_that_wait_for_ever_are_named() -> None:
    writer = Writer(book := Book())
    writer.compute("c", flops=1.0)
    untimed = book.workload("w", [writer.done()], [0], [[]], [[]])
    with pytest.raises(ValueError, match=r"operation 0 \(c\) has no seconds"):
        phases_of(untimed)
    writer = Writer(book := Book())
    # Both receive first.
    writer.receive("m", 4, 0)
    writer.send("m", 4, 0)
    both = book.workload("w", [writer.done()], [0, 0], [[], []], [[1], [0]])
    with pytest.raises(ValueError, match="rank 0 waits for ever in operation 0"):
        phases_of(both)


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_has_light_only_when_nobody_sends_in_what_its_ranks_were_in(
    seed: int,
) -> None:
    chance = random.Random(seed)
    ranks, iterations = 6, 3
    phases = [
        Phase(tuple(sorted(chance.sample(range(ranks), chance.randint(2, 4)))), {})
        for _ in range(12)
    ]
    plan = PhasePlan(tuple(phases), ((),) * ranks)
    turns = Turns(plan, iterations)
    lit, over = set(turns.begin()), set()
    while waiting := [r for r in range(ranks) if turns.present(r) in lit]:
        rank = chance.choice(waiting)
        ended, ready = turns.ended(rank)
        over |= {ended} - {None}
        for turn in ready:
            assert turn not in lit
            for member in phases[turn.phase].ranks:
                own = [
                    Turn(i, p) for i in range(iterations) for p in plan.of_rank[member]
                ]
                assert set(own[: own.index(turn)]) <= over
        lit |= set(ready)
    # Nobody waits for ever.
    assert len(over) == len(phases) * iterations
    assert all(turns.present(rank) is None for rank in range(ranks))
    with pytest.raises(ValueError, match="rank 0 has ended all"):
        turns.ended(0)


def test_a_rank_has_ended_a_turn_when_all_of_it_has_ended_and_all_before() -> None:
    progress = Progress((0, -1, 3, 0, 5, 3))
    ended = [progress.end(operation) for operation in (1, 0, 4, 3, 2, 5)]
    # What is behind phase 3 had ended already.
    assert ended == [0, 0, 0, 1, 0, 2]
    # The next iteration begins anew.
    assert [progress.end(operation) for operation in (0, 3)] == [0, 1]
    assert progress.ended == 4


def test_only_circuits_are_moved_that_others_have_to_give_way_to() -> None:
    lit = ActiveCircuits()
    assert lit.set({(0, 1): (Lightpath(0),), (2, 3): (Lightpath(0),)})
    assert not lit.set({(2, 3): (Lightpath(0),)})
    assert lit.set({(0, 3): (Lightpath(0),)})
    # Port 0 of GPU 0 sent to 1, port 0 of GPU 3 heard 2.
    assert lit.paths == {(0, 3): (Lightpath(0),)}


def test_a_rank_with_more_partners_in_a_phase_than_switches_is_refused() -> None:
    phase = Phase((4, 5, 6), {(4, 5): 1.0, (4, 6): 1.0})
    assert phase_paths(PlanesDivider(ParallelOcs(2, 1.0)), phase, range(8)).keys() == {
        (4, 5),
        (4, 6),
    }
    with pytest.raises(ValueError, match="sends to 2 others"):
        phase_paths(PlanesDivider(ParallelOcs(1, 1.0)), phase, range(8))


@pytest.mark.parametrize("how", ["exact", "classes"])
@pytest.mark.parametrize(
    ("computing_s", "whole_s"),
    # A second within pairs and two across, and light that is waited for four less one times, but for what
    # computation hides of it; twice.
    [(0.0, 6 + 3 * 0.5), (0.2, 6 + 2 * 0.2 + 2 * 0.3 + 0.5), (1.0, 6 + 2 * 1.0 + 0.5)],
)
def test_light_is_set_while_ranks_compute_and_what_is_longer_is_waited_for(
    how: Fidelity, computing_s: float, whole_s: float
) -> None:
    light, execution = executed(taking_turns(computing_s), PhaseLight(0.1, 0.4), how)
    assert float(execution.operations.end_s.max()) == pytest.approx(whole_s)
    assert Counter(made.moved for made in light.made) == {False: 2, True: 6}
    assert all(
        made.lit_s - made.set_s == pytest.approx(0.5)
        for made in light.made
        if made.moved
    )


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_bytes_pass_only_in_the_light_of_their_turn(how: Fidelity) -> None:
    workload = transformer()
    light, execution = executed(workload, PhaseLight(0.0, 0.01), how, iterations=2)
    plan, records = phases_of(workload), execution.operations.records
    assert records is not None
    lit_s = {made.turn: made.lit_s for made in light.made}
    set_s = {made.turn: made.set_s for made in light.made}
    for rank in range(workload.ranks):
        record = records[int(execution.row_of[rank])]
        own = plan.of_rank[rank]
        for iteration in range(2):
            ends_s = record.end_s[iteration]
            for k, phase in enumerate(plan.phase_of[rank]):
                if phase < 0:
                    continue
                assert ends_s[k] > lit_s[Turn(iteration, phase)]
                if (at := own.index(phase)) + 1 < len(own):
                    # Nothing of a rank is on its way when its circuits are taken.
                    assert ends_s[k] <= set_s[Turn(iteration, own[at + 1])]


def test_ranks_in_lock_step_take_about_as_long_as_ranks_one_by_one() -> None:
    workload, takes = transformer(dp=4), PhaseLight(1e-4, 1e-2)
    by_rank, in_classes = (
        executed(workload, takes, how)[1] for how in ("exact", "classes")
    )
    assert in_classes.operations.end_s.max() == pytest.approx(
        by_rank.operations.end_s.max(), rel=0.01
    )


def test_light_for_the_present_phase_is_faster_than_light_for_all_where_it_is_set_fast() -> (
    None
):
    # Divided once, each of two partners has half of a GPU's light.
    _, execution = executed(taking_turns(), PhaseLight(0.0, 0.0))
    assert float(execution.operations.end_s.max()) == pytest.approx(6.0)


def scenario(**changed: Any) -> str:
    raw: dict[str, Any] = yaml.safe_load(bundled("phases").read_text(encoding="utf-8"))
    for path, value in changed.items():
        *way, last = path.split("__")
        at = raw
        for key in way:
            at = at[key]
        at[last] = value
    return yaml.safe_dump(raw)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    experiment, backend = parse(scenario(), "phases.yaml"), SimulationBackend()
    records: list[Record] = []
    for plan in choose(experiment, backend).plans:
        found, failures = run_alone(backend, plan)
        assert not failures
        records += found
    return list(analyse(experiment, records, "simulated").rows)


def figure(rows: list[Row], arm: str, metric: str) -> float:
    (found,) = (
        r.value
        for r in rows
        if (r.arm, r.metric, r.subject) == (arm, metric, "job llm")
    )
    assert isinstance(found, float | int)
    return float(found)


def test_what_was_set_was_hidden_or_waited_for(rows: list[Row]) -> None:
    took, hidden, waited = (
        figure(rows, "phases", f"light_{name}") for name in ("set", "hidden", "waited")
    )
    assert took == pytest.approx(hidden + waited)
    assert min(hidden, waited) > 0
    assert figure(rows, "phases", "phase_turns") == 54
    assert not [
        row for row in rows if row.arm == "static" and row.metric.startswith("light_")
    ]


def test_phases_are_faster_than_light_that_is_set_once(rows: list[Row]) -> None:
    assert figure(rows, "phases", "iteration") < 0.9 * figure(
        rows, "static", "iteration"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {
                "fabric__interconnect": {
                    "kind": "ideal",
                    "gpus": 16,
                    "gpu": "a100",
                    "rate": "1 Gbit/s",
                }
            },
            "phases need",
        ),
        (
            {
                "fabric__interconnect__interval": "1 s",
                "fabric__interconnect__guard": None,
            },
            "phases need",
        ),
        ({"fabric__interconnect__dark": None}, "guard: it goes with dark"),
        (
            {"fabric__interconnect__interval": "1 s"},
            "guard: it is of light that is set for phases",
        ),
        ({"jobs__llm__workload__light": "sometimes"}, "light"),
    ],
)
def test_light_that_cannot_follow_phases_is_refused_by_key(
    changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse(scenario(**changed), "phases.yaml")
