"""Fabrics that are described as wholes: what they refuse, and how long a job takes on them."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.experiments.analysis.prediction import expected_s
from ringlight.experiments.backends.emulation.requests import (
    only_simulated,
    peer_timeout_s,
)
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Iteration, Record
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.divided.demand_ring import DemandRing
from ringlight.extensions.sip_ml.divided.planes import ParallelOcs
from ringlight.extensions.sip_ml.records import Divisions
from ringlight.extensions.sip_ml.simulation.interconnects import (
    Demand,
    LightDivision,
    demand_of_steps,
    demand_of_workload,
    interconnect_network,
    together,
)
from ringlight.extensions.sip_ml.simulation.reallocation import Reallocation
from ringlight.extensions.sip_ml.simulation.zoo import CircuitNetwork
from ringlight.extensions.sip_ml.wholes.electrical import Ideal, Servers
from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect, slowed
from ringlight.extensions.sip_ml.wholes.one_shot import OneShot
from ringlight.extensions.sip_ml.wholes.rotor import Rotor, Rotors
from ringlight.extensions.sip_ml.wholes.torus import Torus, TorusOfGpus
from ringlight.extensions.sip_ml.wholes.whole_grid import GridOfGpus
from ringlight.extensions.sip_ml.wholes.whole_ring import WavelengthRing
from ringlight.fabric.algorithms import steps_named
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.workload import Execution, Fidelity
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.traffic import traffic

GPUS = "gpus: 8, gpu: a100, rate: 400 Gbit/s"
KINDS = {
    "ideal": f"{{kind: ideal, {GPUS}}}",
    "servers": f"{{kind: servers, {GPUS}, each: 4, inside: 2.4 Tbit/s}}",
    "parallel-ocs": f"{{kind: parallel-ocs, {GPUS}, switches: 8}}",
    "loop": f"{{kind: parallel-ocs, {GPUS}, switches: 8, interval: 100 us, dark: 20 us}}",
    "demand-ring": f"{{kind: demand-ring, {GPUS}, wavelength: 25 Gbit/s, interval: 100 us, dark: 20 us}}",
    "torus": f"{{kind: torus, {GPUS}, sides: [2, 4]}}",
    "one-shot": f"{{kind: one-shot, {GPUS}, degree: 4}}",
    "rotor": f"{{kind: rotor, {GPUS}, ports: 4, slot: 20 us, dark: 2 us}}",
    "grid": f"{{kind: grid, {GPUS}, rows: 2, columns: 4, set_up: 10 us}}",
    "wavelength-ring": f"{{kind: wavelength-ring, {GPUS}, wavelength: 25 Gbit/s, dark: 25 us}}",
}
RING = "{collective: all-reduce, algorithm: ring, size: 64 MB, iterations: 2}"
ALL = f"{{ranks: all, workload: {RING}}}"
LOOP = "training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 1}\n"


def experiment(
    interconnect: str, job: str = f"{{ranks: all, workload: {RING}}}", more: str = ""
) -> Experiment:
    return parse(
        f"name: whole\ndescription: Eight GPUs.\nfabric:\n  interconnect: {interconnect}\n"
        f"tcp: {{headers: false}}\ncosts: {{latency: 0 s}}\njobs:\n  red: {job}\n{more}",
        "whole.yaml",
    )


def refusal(interconnect: str, job: str = ALL, more: str = "") -> str:
    with pytest.raises(ScenarioError) as caught:
        experiment(interconnect, job, more)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("whole.yaml: ")


def records_of(made: Experiment) -> list[Record]:
    (plan,) = made.plans
    records, failures = run_alone(SimulationBackend(), plan)
    assert not failures
    return records


def iteration_s(made: Experiment) -> float:
    found = [
        record.whole_s for record in records_of(made) if isinstance(record, Iteration)
    ]
    return sum(found) / len(found)


#: 2 (n - 1) / n of 64 MB at 400 Gbit/s.
AT_FULL_RATE_S = 2 * 7 / 8 * 64e6 * 8 / 400e9


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("ideal", 1.0),
        # All eight circuits of a GPU lead to the next of the ring.
        ("parallel-ocs", 1.0),
        # One of the three links of each GPU; the two steps between rows pass two, which nobody else does.
        ("torus", 3.0),
        ("one-shot", 4.0),
    ],
)
def test_a_ring_takes_what_its_links_give(kind: str, times: float) -> None:
    assert iteration_s(experiment(KINDS[kind])) == pytest.approx(
        times * AT_FULL_RATE_S, rel=1e-6
    )


def test_a_ring_on_a_divided_ring_has_half_of_the_wavelengths_and_dark_times() -> None:
    """Next ranks are next nodes: all 8 colours of one direction. Dark for 20 us before 100 us of light."""
    records = records_of(experiment(KINDS["demand-ring"]))
    found_s = max(record.whole_s for record in records if isinstance(record, Iteration))
    (divided,) = [record for record in records if isinstance(record, Divisions)]
    assert divided.decisions > 3
    assert divided.dark_s == pytest.approx(divided.decisions * 20e-6)
    lit_s = 2 * AT_FULL_RATE_S
    assert lit_s < found_s < lit_s * 1.2 + 120e-6


def test_parallel_switches_that_are_set_again_are_dark_each_time() -> None:
    records = records_of(experiment(KINDS["loop"]))
    found_s = max(record.whole_s for record in records if isinstance(record, Iteration))
    (divided,) = [record for record in records if isinstance(record, Divisions)]
    assert divided.decisions > 3
    assert divided.dark_s == pytest.approx(divided.decisions * 20e-6)
    assert AT_FULL_RATE_S < found_s < AT_FULL_RATE_S * 1.2 + 120e-6


def test_switches_that_are_set_again_carry_what_does_not_fit_at_once() -> None:
    """All to all of eight GPUs with two ports each: whoever waits has its turn when the others have sent."""
    every = "{ranks: all, workload: {collective: all-to-all, size: 64 MB}}"
    two = KINDS["loop"].replace("switches: 8", "switches: 2")
    records = records_of(experiment(two, every))
    found_s = max(record.whole_s for record in records if isinstance(record, Iteration))
    assert found_s > 7 / 8 * 64e6 * 8 / 400e9
    (divided,) = [record for record in records if isinstance(record, Divisions)]
    assert divided.decisions >= 7


def test_a_flow_on_a_grid_waits_for_its_handshake_on_each_line() -> None:
    """Halving and doubling among 2 x 4 GPUs keeps to lines; a ring does not, at a row's end."""
    hd = f"{{ranks: all, workload: {RING.replace('ring', 'halving-doubling')}}}"
    assert iteration_s(experiment(KINDS["grid"], hd)) == pytest.approx(
        AT_FULL_RATE_S + 6 * 10e-6, rel=1e-6
    )
    ring_s = iteration_s(experiment(KINDS["grid"]))
    # Its corner's only transceiver sends and relays.
    assert ring_s == pytest.approx(2 * AT_FULL_RATE_S + 14 * 20e-6, rel=0.05)
    two = KINDS["grid"].replace("set_up: 10 us", "transceivers: 2")
    assert iteration_s(experiment(two, hd)) == pytest.approx(
        2 * AT_FULL_RATE_S, rel=1e-6
    )


def test_light_of_a_ring_of_wavelengths_is_dark_where_circuits_change() -> None:
    """A ring's circuits stand after the first step."""
    kind = KINDS["wavelength-ring"]
    assert iteration_s(experiment(kind)) == pytest.approx(
        2 * AT_FULL_RATE_S + 25e-6, rel=1e-6
    )


@pytest.mark.parametrize("kind", ["ideal", "torus", "rotor"])
def test_the_controller_may_place_a_job_where_nothing_is_built_for_it(
    kind: str,
) -> None:
    assert iteration_s(experiment(KINDS[kind], f"{{gpus: 4, workload: {RING}}}")) > 0


def test_within_a_server_a_gpu_has_more_than_between_servers() -> None:
    """A ring of one server of four GPUs, one over two servers, and one over servers of two GPUs."""
    servers, four = (
        KINDS["servers"],
        "{ranks: [g0, g1, g2, g3], workload: " + RING + "}",
    )
    inside_s = 2 * 3 / 4 * 64e6 * 8 / 2.4e12
    apart, pairs = (
        four.replace("g2, g3", "g4, g5"),
        servers.replace("each: 4", "each: 2"),
    )
    for kind, job, times in ((servers, four, 1), (servers, apart, 6), (pairs, four, 6)):
        records = records_of(experiment(kind, job))
        found_s = max(
            record.whole_s for record in records if isinstance(record, Iteration)
        )
        assert found_s == pytest.approx(times * inside_s, rel=1e-6)
    (plan,) = experiment(pairs, four).plans
    assert [gpu.server for gpu in plan.setting.fabric.gpus.values()] == [
        f"s{k // 2}" for k in range(8)
    ]


def test_who_takes_no_part_costs_no_circuits() -> None:
    job = "{ranks: [g0, g2, g4, g6], workload: " + RING + "}"
    four = (
        KINDS["one-shot"]
        .replace("gpus: 8", "gpus: 4")
        .replace("degree: 4", "degree: 3")
    )
    alone = iteration_s(experiment(four, "{ranks: all, workload: " + RING + "}"))
    beside = iteration_s(
        experiment(KINDS["one-shot"].replace("degree: 4", "degree: 3"), job)
    )
    assert beside == pytest.approx(alone)


def test_light_for_less_than_a_byte() -> None:
    small = "{collective: all-reduce, algorithm: ring, size: 4 B, iterations: 1}"
    for kind in ("parallel-ocs", "demand-ring"):
        assert (
            iteration_s(experiment(KINDS[kind], f"{{ranks: all, workload: {small}}}"))
            > 0
        )


def test_an_arm_sets_a_key_that_was_left_out() -> None:
    arms = "arms: {a: {}, b: {fabric.interconnect.hop: 1 us}}"
    a, b = experiment(KINDS["torus"], more=arms).plans
    assert (
        a.setting.fabric.parts["interconnect"] != b.setting.fabric.parts["interconnect"]
    )


def test_two_jobs_are_built_for_together() -> None:
    job = (
        "{ranks: [g0, g1, g2, g3], workload: "
        + RING
        + "}\n  blue: {ranks: [g4, g5, g6, g7], workload: "
        + RING
        + "}"
    )
    for kind in ("parallel-ocs", "one-shot", "ideal"):
        assert iteration_s(experiment(KINDS[kind], job)) > 0


@pytest.mark.parametrize(
    "kind",
    [
        "ideal",
        "servers",
        "parallel-ocs",
        "torus",
        "one-shot",
        "rotor",
        "grid",
        "wavelength-ring",
    ],
)
def test_training_loops_run_on_them_too(kind: str) -> None:
    assert iteration_s(experiment(KINDS[kind], "{ranks: all}", LOOP)) > 1e-3


def test_a_training_loop_over_circuits_is_waited_for() -> None:
    (plan,) = experiment(KINDS["parallel-ocs"], "{ranks: all}", LOOP).plans
    assert expected_s(plan)["red"] > iteration_s(
        experiment(KINDS["parallel-ocs"], "{ranks: all}", LOOP)
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_testbed_is_built_of_those_whose_light_is_divided(kind: str) -> None:
    (plan,) = experiment(KINDS[kind]).plans
    refused = "fabric.interconnect.kind: it is simulated only; parallel-ocs and demand-ring are emulated, too"
    if KINDS[kind].startswith(("{kind: parallel-ocs", "{kind: demand-ring")):
        refused = "tcp.headers: only a simulation leaves packets' headers out; here they are on the wire"
    assert only_simulated(plan) == refused


def dilated(interconnect: str, time: int, tcp: str) -> RunPlan:
    (plan,) = parse(
        f"name: whole\ndescription: Eight GPUs.\nfabric:\n  interconnect: {interconnect}\n"
        f"scale: {{time: {time}}}\ntcp: {{rto_min: {tcp}}}\njobs:\n  red: {ALL}\n",
        "whole.yaml",
    ).plans
    return plan


@pytest.mark.parametrize("kind", ["loop", "demand-ring"])
def test_a_testbed_decides_in_its_own_time(kind: str) -> None:
    plan = dilated(KINDS[kind].replace("}", ", decision: 10 us}"), 10_000, "40 us")
    assert only_simulated(plan) == (
        "fabric.interconnect.decision: the emulated controller decides in its own time; leave it out"
    )


@pytest.mark.parametrize("kind", ["loop", "demand-ring"])
@pytest.mark.parametrize(
    ("time", "tcp", "refused"),
    [
        (
            200,
            "2 ms",
            "fabric.interconnect.interval: 20 ms as emulated; a controller divides light at most every "
            "200 ms; raise scale.time",
        ),
        (
            10_000,
            "30 us",
            "tcp.rto_min: 300 ms as emulated, and light is dark for 200 ms: TCP would send again what is "
            "only held; give it at least 2 times as long",
        ),
        (10_000, "40 us", None),
    ],
)
def test_light_is_not_divided_faster_than_a_controller_can(
    kind: str, time: int, tcp: str, refused: str | None
) -> None:
    plan = dilated(KINDS[kind], time, tcp)
    assert only_simulated(plan) == refused
    assert peer_timeout_s(plan, plan.jobs[0]) > 15


def test_a_training_loop_on_parallel_switches_has_a_patience() -> None:
    (plan,) = experiment(KINDS["parallel-ocs"], "{ranks: all}", LOOP).plans
    assert peer_timeout_s(plan, plan.jobs[0]) > 15


@pytest.mark.parametrize(
    ("interconnect", "said"),
    [
        (
            "{kind: star}",
            "fabric.interconnect: its kind is one of ideal, servers, parallel-ocs, ",
        ),
        (
            "{gpus: 8}",
            "fabric.interconnect: its kind is one of ideal, servers, parallel-ocs, ",
        ),
        (
            f"{{kind: servers, {GPUS}, each: 3, inside: 2.4 Tbit/s}}",
            "fabric.interconnect.each: 8 GPUs do not fill servers of 3",
        ),
        (
            f"{{kind: torus, {GPUS}, sides: [3, 3]}}",
            "fabric.interconnect.sides: (3, 3) are 9 GPUs, and there are 8",
        ),
        (
            f"{{kind: torus, {GPUS}, sides: [1, 8]}}",
            "fabric.interconnect.sides: (1, 8); each must",
        ),
        (
            f"{{kind: one-shot, {GPUS}, degree: 8}}",
            "fabric.interconnect.degree: 8; 8 GPUs can have one of 1 to 7",
        ),
        (
            f"{{kind: demand-ring, {GPUS}, wavelength: 150 Gbit/s, interval: 1 ms, dark: 0 s}}",
            "fabric.interconnect.rate: 2.66667 wavelengths do not divide into two directions",
        ),
        (
            f"{{kind: demand-ring, {GPUS}, wavelength: 25 Gbit/s, interval: 0 s, dark: 20 us}}",
            "fabric.interconnect.interval: 0 s; it must be above 0",
        ),
        (
            f"{{kind: parallel-ocs, {GPUS}, switches: 4, decision: 20 us}}",
            "fabric.interconnect.decision: it goes with interval and dark; without them, light is set once",
        ),
        (
            f"{{kind: parallel-ocs, {GPUS}, switches: 4, interval: 20 us}}",
            "fabric.interconnect.interval: it goes with dark; without both, light is set once",
        ),
        (
            f"{{kind: parallel-ocs, {GPUS}, switches: 4, guard: 20 us}}",
            "fabric.interconnect.guard: it goes with dark; without it, light is set once",
        ),
        (
            f"{{kind: rotor, {GPUS}, ports: 4, slot: 1 us, dark: 2 us}}",
            "fabric.interconnect.dark: 2e-06 s; it must be below the slot of 1e-06 s",
        ),
        (
            f"{{kind: demand-ring, {GPUS}, wavelength: 1 bit/s, interval: 1 ms, dark: 0 s}}",
            "fabric.interconnect.wavelength: 2e+11 in each direction; at most 4096",
        ),
        (
            f"{{kind: ideal, {GPUS}, hopp: 1 us}}",
            "fabric.interconnect.hopp: unknown key; the nearest is hop",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(interconnect: str, said: str) -> None:
    assert refusal(interconnect).startswith(said)


def test_an_interconnect_is_all_of_a_fabric() -> None:
    text = KINDS["ideal"] + "\n  servers: {s0: {gpus: {x0: gpu}}}"
    assert (
        refusal(text)
        == "fabric: servers: interconnect is all of a fabric, and has no such thing"
    )


def test_a_parameter_may_say_the_kind() -> None:
    said = refusal(
        f"{{kind: $k, {GPUS}, sides: [2, x]}}",
        more="parameters: {k: {value: torus, source: assumed, why: A torus.}}\n",
    )
    assert said.startswith("fabric.interconnect.sides[1]: ")


def test_a_degree_above_the_switches_is_named() -> None:
    three, every = (
        KINDS["parallel-ocs"].replace("switches: 8", "switches: 3"),
        "{ranks: [g7, g1, g5, g2, g4], ",
    )
    assert refusal(
        three, every + "workload: {collective: all-to-all, size: 64 MB}}"
    ) == (
        "fabric.interconnect.switches: job red: GPU g7 sends to 4 others, and 3 switches join it to at most 3"
    )
    hd = LOOP.replace("training: {", "training: {collective: halving-doubling, ")
    assert refusal(three.replace("switches: 3", "switches: 2"), "{ranks: all}", hd) == (
        "fabric.interconnect.switches: job red: GPU g0 sends to 3 others, and 2 switches join it to at most 2"
    )
    matrix = np.ones((3, 3)) - np.eye(3)
    with pytest.raises(
        ValueError, match="demand: GPU g0 sends to 2 others, and 1 switch joins"
    ):
        interconnect_network(
            ParallelOcs(1, 1e9), ["g0", "g1", "g2"], lambda: Demand(matrix, matrix)
        )
    with pytest.raises(
        ValueError, match=r"demand: GPU 1 sends to itself \(the diagonal must be 0\)"
    ):
        interconnect_network(
            ParallelOcs(1, 1e9),
            ["g0", "g1"],
            lambda: Demand(np.diag([0, 1.0]), np.eye(2)),
        )


def test_jobs_that_it_cannot_have_are_refused() -> None:
    ring = KINDS["demand-ring"]
    assert refusal(ring, "{ranks: all}", LOOP).startswith(
        "jobs.red.workload: fabric divides"
    )
    assert refusal(ring, f"{{gpus: 8, workload: {RING}}}").startswith(
        "jobs.red.gpus: fabric is built for"
    )
    two = f"{{ranks: [g0, g1], workload: {RING}}}\n  blue: {{ranks: [g2, g3], workload: {RING}}}"
    assert refusal(ring, two).startswith(
        "jobs: 2 jobs, but fabric divides its light for one"
    )
    assert refusal(KINDS["loop"], two).startswith(
        "jobs: 2 jobs, but fabric divides its light for one"
    )
    assert refusal(KINDS["loop"], "{ranks: all}", LOOP).startswith(
        "jobs.red.workload: fabric divides"
    )
    blue = f"{{ranks: [g1, g2], start: {{after: red}}, workload: {RING}}}"
    again = f"{{ranks: [g0, g1], workload: {RING}}}\n  blue: {blue}"
    assert refusal(KINDS["one-shot"], again).startswith(
        "jobs.blue.ranks: GPU g1 is one of job red's"
    )
    events = "events: [{name: gone, when: start, do: lose, target: gpu g0}]"
    assert refusal(KINDS["ideal"], more=events).startswith(
        "events.gone.do: fabric is described as a whole"
    )


def grouped(size: int) -> Workload:
    """Two all-reduces of four ranks, and a message from rank 0 to rank 4."""
    book = Book()
    programs = []
    for rank in range(8):
        writer = Writer(book)
        writer.collective("dp", Collective("all-reduce", "ring"), size, 0)
        if rank == 0:
            writer.send("m", 1000, 0)
        if rank == 4:
            writer.receive("m", 1000, 0)
        programs.append(writer.done())
    for first in (0, 4):
        book.group(range(first, first + 4))
    peers = [[4], [-1], [-1], [-1], [0], [-1], [-1], [-1]]
    return book.workload(
        "two", programs, range(8), [[rank // 4] for rank in range(8)], peers
    )


def test_the_demand_of_a_workload_is_what_it_sends() -> None:
    at = np.array([7, 6, 5, 4, 3, 2, 1, 0])
    found = demand_of_workload(grouped(4000), at, 8)
    assert found.total[7, 3] == found.rest[7, 3] == found.rest.sum() == 1000
    assert [sorted(group.tolist()) for group in found.groups] == [
        [4, 5, 6, 7],
        [0, 1, 2, 3],
    ]
    assert found.group_bytes == 2 * 3 * 1000
    assert found.total.sum() == 8 * 6000 + 1000
    assert found.total[7, 6] == 6000
    both = together(
        [
            found,
            demand_of_steps(steps_named("ring", 4), 400.0, np.array([0, 2, 4, 6]), 8),
        ],
        8,
    )
    assert both.total[0, 2] == 600
    assert both.group_bytes == 6000


def test_light_goes_to_whom_something_is_left_for() -> None:
    ring = DemandRing(4, 25e9, 1e-4, 2e-5)
    demand = np.zeros((8, 8))
    demand[0, 1], demand[2, 3], demand[5, 4] = 3.0, 1.0, 2.0
    network = interconnect_network(
        ring, [f"g{k}" for k in range(8)], lambda: Demand(demand, demand)
    )
    assert isinstance(network, CircuitNetwork)
    division = LightDivision(ring, network)
    left = np.zeros(3)
    left[network.pairs.tolist().index([0, 1])] = 1e6
    given = division(left)
    assert given.max() == given[network.pairs.tolist().index([0, 1])] >= 4 * 25e9
    assert np.count_nonzero(given) == 1


@pytest.mark.parametrize("kind", ["loop", "demand-ring"])
def test_the_simulator_divides_light_as_a_controller_does(kind: str) -> None:
    (plan,) = experiment(KINDS[kind]).plans
    fabric = plan.setting.fabric
    assert fabric.parts["interconnect"].built == "anew"
    pairs = 1.0 - np.eye(8)
    network = interconnect_network(
        fabric.parts["interconnect"], tuple(fabric.gpus), lambda: Demand(pairs, pairs)
    )
    assert isinstance(network, CircuitNetwork)
    simulated, controlled = (
        LightDivision(fabric.parts["interconnect"], network),
        divider(fabric),
    )
    random = np.random.default_rng(7)
    for density in np.linspace(0.1, 1.0, 30):
        left = (
            random.lognormal(10, 2, (8, 8)) * (random.random((8, 8)) < density) * pairs
        )
        found = controlled.counts(left)[tuple(network.pairs.T)] * controlled.rate_bps
        assert simulated.of(left) == pytest.approx(found)


@pytest.mark.parametrize("how", ["exact", "classes"])
@pytest.mark.parametrize(
    "one",
    [
        ParallelOcs(4, 400e9),
        ParallelOcs(4, 400e9, 2e-5, 4e-6),
        # A third of the pairs at a time.
        ParallelOcs(1, 400e9, 2e-5, 4e-6),
        DemandRing(8, 25e9, 2e-5, 4e-6),
    ],
)
def test_what_passes_each_lightpath_is_what_the_pair_sends(
    one: Interconnect, how: Fidelity
) -> None:
    workload, names = grouped(4_000_000), tuple(f"g{k}" for k in range(8))
    network = interconnect_network(
        one, names, lambda: demand_of_workload(workload, np.arange(8), 8)
    )
    assert isinstance(network, CircuitNetwork)
    engine = Engine(trace=True)
    for link, capacity in enumerate((network.capacity_bps / 8).tolist()):
        engine.link(network.key(link), capacity)
    execution = Execution(
        engine, network, names, workload, iterations=2, fidelity=how, standing=False
    )
    if (when := one.division) is not None:
        division = LightDivision(one, network)
        first = division.of(demand_of_workload(workload, np.arange(8), 8).total)
        Reallocation(
            engine, execution, first, when.interval_s, when.dark_s, division
        ).begin()
    execution.begin()
    engine.run(until_s=1)
    assert execution.over
    passed = np.zeros(len(network.pairs))
    if how == "exact":
        assert engine.passed is not None
        for flow in engine.passed:
            passed[list(flow.links)] += (flow.end_s - flow.begin_s) * flow.rate
    else:
        passed = execution.result().link_bytes
    found = np.zeros((8, 8))
    found[tuple(network.pairs.T)] = passed
    assert found == pytest.approx(2 * traffic(workload), rel=1e-9)


def test_where_light_does_not_suffice_divisions_take_turns() -> None:
    """One wavelength each way, and all send to the GPU that is three on: few can at once."""
    ring = DemandRing(1, 25e9, 1e-4, 2e-5)
    demand = np.zeros((8, 8))
    demand[np.arange(8), (np.arange(8) + 3) % 8] = 1e6
    network = interconnect_network(
        ring, [f"g{k}" for k in range(8)], lambda: Demand(demand, demand)
    )
    assert isinstance(network, CircuitNetwork)
    once, turns = (
        LightDivision(ring, network).of(demand),
        LightDivision(ring, network, turns=True).of(demand),
    )
    assert np.count_nonzero(once) < 8
    assert set(once) == {0.0, 25e9}
    assert np.count_nonzero(turns) == 8
    # Eight fibres of one wavelength in each direction carry three hops (or five) of each.
    assert 3 * turns.sum() <= 16 * 25e9
    assert turns.sum() <= once.sum() * 1.5
    few = np.where(np.arange(8)[:, None] < 1, demand, 0.0)
    assert LightDivision(ring, network, turns=True).of(few) == pytest.approx(
        LightDivision(ring, network).of(few)
    )


def test_slowed_is_as_the_emulation_would_run_it() -> None:
    torus = TorusOfGpus(Torus((2, 4)), 100.0, 1e-6)
    assert slowed(torus, 2, 10) == TorusOfGpus(Torus((2, 4)), 10.0, 2e-6)
    assert slowed(Ideal(100.0), 2, 10) == Ideal(10.0)
    assert slowed(Servers(8, 600.0, 100.0), 2, 10) == Servers(8, 60.0, 10.0)
    assert slowed(OneShot(2, 100.0), 2, 10) == OneShot(2, 10.0)
    assert slowed(ParallelOcs(4, 100.0), 2, 10) == ParallelOcs(4, 10.0)
    assert slowed(ParallelOcs(4, 100.0, 1.0, 0.5), 2, 10) == ParallelOcs(
        4, 10.0, 2.0, 1.0
    )
    assert slowed(DemandRing(4, 50.0, 1.0, 0.5), 2, 10) == DemandRing(4, 5.0, 2.0, 1.0)
    rotor = slowed(Rotors(Rotor(8, 2, 100.0, 1.0, 0.1)), 2, 10)
    assert rotor == Rotors(Rotor(8, 2, 10.0, 2.0, 0.2))
    assert slowed(GridOfGpus(2, 4, 100.0, 1, 1e-6), 2, 10) == GridOfGpus(
        2, 4, 10.0, 1, 2e-6
    )
    assert slowed(WavelengthRing(4, 50.0, 0.5), 2, 10) == WavelengthRing(4, 5.0, 1.0)
