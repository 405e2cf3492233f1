"""Compares light that is static, made for a job at its start, set for each phase, and set for each step.

One iteration of a model spread over 16 to 1,024 GPUs, over the dark time of a circuit that is set and the
size of what ranks send each other within a layer (by the tokens of a sample). All have the same GPUs and as
much light for each, on as many ports:

- static: a torus, built for no job; GPUs forward.
- regrouped: circuits set once for what the job sends; GPUs forward where one has more partners than ports.
- phases: all of a GPU's circuits set anew for each phase of the job, as the product does it.
- steps: set anew for each step of a collective that sends to others than the one before, and for each
  message; at the begin of a collective always. A pair then has all light of both its GPUs.

All-reduces are rings; in steps the faster of rings and of halving and doubling, whose partners change from
step to step. Experts exchange pair by pair in steps, all at once elsewhere.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import most_memory_mib, show, tell
from ringlight.fabric.allocation.circuits import check_degree, single_shot
from ringlight.fabric.allocation.demand import FloatArray
from ringlight.fabric.allocation.dividing import PlanesDivider
from ringlight.fabric.allocation.one_shot import circuits, one_shot
from ringlight.fabric.planes.divided.lightpaths import Division
from ringlight.fabric.planes.divided.planes import ParallelOcs
from ringlight.fabric.planes.wholes.interconnect import PhaseLight
from ringlight.fabric.planes.wholes.torus import Torus
from ringlight.fabric.units import format_size, format_time
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.networks import IdealNetwork, Network
from ringlight.testbed.simulation.phased import PhasedLight
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.workload import Execution, simulate_workload
from ringlight.testbed.simulation.zoo import CircuitNetwork, TorusNetwork
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Workload
from ringlight.workloads.models import MODELS
from ringlight.workloads.parallelism import generate
from ringlight.workloads.phases import phases_of
from ringlight.workloads.settings import Parallel, Training
from ringlight.workloads.traffic import all_reduce_groups, sent

#: Of a GPU in all, bits per second, and ports that it has; seconds before a transfer's first byte.
RATE_BPS, PORTS, LATENCY_S = 800e9, 8, 1e-6
DARK_S = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
TOKENS = (64, 512, 4096)
#: Of the largest fabric only these: there a row takes as long as all others of its model together.
LARGEST, TOKENS_OF_LARGEST = 1024, 512
#: All gradients of a rank are one bucket: one all-reduce behind the backward pass.
ONE_BUCKET = 1 << 44
#: How many GPUs there are along each side of the torus, and how a model is spread: dp, tp, pp.
SHAPES: Mapping[int, tuple[tuple[int, ...], tuple[int, int, int]]] = {
    16: ((4, 2, 2), (2, 4, 2)),
    64: ((4, 4, 4), (4, 8, 2)),
    256: ((8, 8, 4), (8, 8, 4)),
    1024: ((16, 8, 8), (32, 8, 4)),
}
STRATEGIES = ("static", "regrouped", "phases", "steps")


class KnownDivisions(PlanesDivider):
    """Divides as the product does, each demand once: groups that are alike have the same."""

    def __init__(self) -> None:
        super().__init__(ParallelOcs(PORTS, RATE_BPS))
        self._known: dict[bytes, Division] = {}

    def division(self, demand: FloatArray) -> Division:
        key = demand.tobytes()
        if key not in self._known:
            self._known[key] = super().division(demand)
        return self._known[key]


KNOWN = KnownDivisions()


class Case(NamedTuple):
    model: str
    gpus: int
    tokens: int


@functools.cache
def workload(case: Case, all_reduce: str, all_to_all: str) -> Workload:
    dp, tp, pp = SHAPES[case.gpus][1]
    parallel = Parallel(dp, tp, pp)
    if case.model.startswith("mixtral"):
        # As many experts' ranks as ranks of a tensor before.
        parallel = Parallel(dp, 1, pp, tp)
    training = Training(
        micro_batches=4, sequence=case.tokens, bucket_bytes=ONE_BUCKET, first_bucket_bytes=ONE_BUCKET,
        algorithms={"all-reduce": all_reduce, "all-to-all": all_to_all},
    )  # fmt: skip
    return generate(MODELS[case.model], parallel, training, DEVICES["h100"])


def names(case: Case) -> list[str]:
    return [f"g{number}" for number in range(case.gpus)]


def seconds(network: Network, case: Case, made: Workload, cost: StepCost | None = None) -> float:
    return float(simulate_workload(network, names(case), made, fidelity="classes", cost=cost).total_s)


def static_s(case: Case) -> float:
    shape = Torus(SHAPES[case.gpus][0])
    network = TorusNetwork(names(case), shape, RATE_BPS / shape.ports, latency_s=LATENCY_S)
    return seconds(network, case, workload(case, "ring", "direct"))


def regrouped_s(case: Case) -> float:
    made = workload(case, "ring", "direct")
    demand = sent(made)
    try:
        check_degree(demand, PORTS)
        counts, forward = single_shot(demand, PORTS).counts, False
    except ValueError:
        groups, most, rest = all_reduce_groups(made)
        counts, forward = circuits(one_shot(rest, PORTS, groups, most)), True
    network = CircuitNetwork(names(case), counts, RATE_BPS / PORTS, forward=forward, latency_s=LATENCY_S)
    return seconds(network, case, made)


def phases_s(case: Case, dark_s: float, all_reduce: str) -> float:
    made = workload(case, all_reduce, "direct")
    pairs = (sent(made) > 0).astype(np.int64)
    network, engine = CircuitNetwork(names(case), pairs, RATE_BPS, latency_s=LATENCY_S), Engine()
    execution = Execution(engine, network, names(case), made, fidelity="classes")
    light = PhasedLight(
        engine, execution, network, _phases(case, all_reduce), 1, range(case.gpus),
        KNOWN, RATE_BPS / PORTS, PhaseLight(0.0, dark_s),
    )  # fmt: skip
    light.begin()
    execution.begin()
    engine.run()
    if (why := execution.standstill()) is not None:
        raise ValueError(why)
    return float(execution.operations.end_s.max())


@functools.cache
def _phases(case: Case, all_reduce: str) -> Any:
    return phases_of(workload(case, all_reduce, "direct"))


def steps_s(case: Case, dark_s: float, all_reduce: str) -> float:
    network = IdealNetwork(names(case), RATE_BPS, latency_s=LATENCY_S)
    cost = StepCost(set_up_s=dark_s, when="changed-only")
    return seconds(network, case, workload(case, all_reduce, "pairwise"), cost)


def row(case: Case, dark: Sequence[float]) -> dict[str, Any]:
    """Seconds of an iteration by strategy; of those that set light while the job runs, for each dark time."""
    began = time.perf_counter()
    found: dict[str, Any] = {"static": static_s(case), "regrouped": regrouped_s(case)}
    for name, run, algorithms in (
        ("phases", phases_s, ("ring",)),
        ("steps", steps_s, ("ring", "halving-doubling")),
    ):
        found[name] = [min(run(case, dark_s, algorithm) for algorithm in algorithms) for dark_s in dark]
    took = time.perf_counter() - began
    tell(f"{case.model}, {case.gpus} GPUs, {case.tokens} tokens: {took:.1f} s")
    return {**case._asdict(), "layer_bytes": layer_bytes(case), **found, "took_s": round(took, 1)}


def layer_bytes(case: Case) -> int:
    """Bytes of the smallest collective within a layer, as nccl-tests counts them."""
    made = workload(case, "ring", "direct")
    wanted = "ep" if case.model.startswith("mixtral") else "tp"
    return min(
        int(size)
        for program in made.programs
        for name, size in zip(program.name.tolist(), program.bytes.tolist(), strict=True)
        if made.names[name].startswith(f"{wanted} ") and size
    )


def fastest(one: Mapping[str, Any], at: int) -> str:
    """The fastest at a dark time; the simplest of those within a thousandth."""
    times = {name: one[name] if name in ("static", "regrouped") else one[name][at] for name in STRATEGIES}
    return next(name for name in STRATEGIES if times[name] <= 1.001 * min(times.values()))


def pays_up_to(one: Mapping[str, Any], strategy: str, dark: Sequence[float]) -> float | None:
    """The longest dark time with which a strategy is faster than light that is never set while a job runs."""
    bar = min(one["static"], one["regrouped"])
    paying = [dark_s for dark_s, took in zip(dark, one[strategy], strict=True) if took < bar / 1.001]
    return max(paying, default=None)


def phases_study(
    gpus: list[int] = [*SHAPES],
    tokens: list[int] = [*TOKENS],
    models: list[str] = ["llama2-7b", "mixtral-8x7b"],
    processes: int = 2,
    picture: Path | None = None,
) -> dict[str, Any]:
    """``processes``: that compute side by side. ``picture``: a PNG file to draw which is the fastest into."""
    cases = [Case(*one) for one in itertools.product(models, gpus, tokens)]
    if len(tokens) > 1:
        cases = [case for case in cases if case.gpus < LARGEST or case.tokens == TOKENS_OF_LARGEST]
    # The largest first, so that none is left to one process at the end.
    ordered = sorted(cases, key=lambda case: -case.gpus)
    with ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as pool:
        found = dict(zip(ordered, pool.map(row, ordered, [DARK_S] * len(cases)), strict=True))
    rows = [found[case] for case in cases]
    show(
        ["model", "GPUs", "layer sends", "static", "regrouped", "phases pay up to", "steps pay up to",
         *(format_time(dark_s) for dark_s in DARK_S)],
        _cells(rows),
    )  # fmt: skip
    if picture is not None:
        draw(rows, picture)
    return {"dark_s": DARK_S, "rows": rows, "most_memory_mib": most_memory_mib()}


def _cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for one in rows:
        paying = [pays_up_to(one, name, DARK_S) for name in ("phases", "steps")]
        yield [
            one["model"], str(one["gpus"]), format_size(one["layer_bytes"]), format_time(one["static"]),
            format_time(one["regrouped"]), *("–" if p is None else format_time(p) for p in paying),
            *(fastest(one, at) for at in range(len(DARK_S))),
        ]  # fmt: skip


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Iteration over the best one that is never set, by dark time: a panel for each model and size."""
    from matplotlib.figure import Figure

    from ringlight.experiments.report.drawing import PALETTE

    models = list(dict.fromkeys(one["model"] for one in rows))
    sizes = list(dict.fromkeys(one["tokens"] for one in rows))
    figure = Figure(figsize=(3.4 * len(sizes), 2.7 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), len(sizes), squeeze=False, sharex=True)
    for (m, model), (s, size) in itertools.product(enumerate(models), enumerate(sizes)):
        axes = panels[m][s]
        own = [one for one in rows if (one["model"], one["tokens"]) == (model, size)]
        for one, colour in zip(own, PALETTE, strict=False):
            bar = min(one["static"], one["regrouped"])
            for name, dash in (("phases", "-"), ("steps", ":")):
                axes.plot(DARK_S, [took / bar for took in one[name]], dash, color=colour, lw=1.6)
            axes.plot([], [], "-", color=colour, label=f"{one['gpus']} GPUs")
        axes.axhline(1.0, color="0.4", lw=0.8)
        axes.set(xscale="log", ylim=(0, 2.0), title=f"{model}, {format_size(own[0]['layer_bytes'])}")
        axes.tick_params(labelsize=8)
        axes.title.set_fontsize(9)
        if m == len(models) - 1:
            axes.set_xlabel("dark time, s", fontsize=8)
    panels[0][0].set_ylabel("iteration over the best\nlight that is never set", fontsize=8)
    # Where all fabrics are.
    full = max(panels[0], key=lambda axes: len(axes.get_lines()))
    full.plot([], [], "-", color="0.2", label="phases")
    full.plot([], [], ":", color="0.2", label="steps")
    full.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


PARTS = (phases_study,)
