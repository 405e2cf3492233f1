"""Compares light that is static, made for a job at its start, set for each phase, and set for each step.

One iteration of a model spread over 16 to 1,024 GPUs, over the dark time of a circuit that is set, the
size of what ranks send each other within a layer (by the tokens of a sample) and the size of a bucket of
gradients. All have the same GPUs and as much light for each, on as many ports:

- static: a torus, built for no job; GPUs forward.
- regrouped: circuits set once for what the job sends; GPUs forward where one has more partners than ports.
- phases: all of a GPU's circuits set anew for each phase of the job, as the product does it.
- steps: set anew for each step of a collective that sends to others than the one before, and for each
  message; at the begin of a collective always. A pair then has all light of both its GPUs.

Each has the fastest of the same collectives: all-reduces as rings or by halving and doubling, exchanges of
experts all at once or pair by pair.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import most_memory_mib, show, tell
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import MIB, Parallel, Training
from ringlight.extensions.sip_ml.allocation.circuits import check_degree, single_shot
from ringlight.extensions.sip_ml.allocation.dividing import PlanesDivider
from ringlight.extensions.sip_ml.allocation.one_shot import circuits, one_shot
from ringlight.extensions.sip_ml.divided.lightpaths import Division
from ringlight.extensions.sip_ml.divided.planes import ParallelOcs
from ringlight.extensions.sip_ml.phases import PhasePlan
from ringlight.extensions.sip_ml.simulation.phased import PhasedLight
from ringlight.extensions.sip_ml.simulation.zoo import CircuitNetwork, TorusNetwork
from ringlight.extensions.sip_ml.wholes.interconnect import PhaseLight
from ringlight.extensions.sip_ml.wholes.torus import Torus
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.fabric.steps import FloatArray, Step
from ringlight.fabric.units import format_size, format_time, parse_size
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.networks import IdealNetwork, Network, Routes
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.workload import Execution, simulate_workload
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Workload
from ringlight.workloads.traffic import all_reduce_groups, sent

#: Of a GPU in all, bits per second, and ports that it has; seconds before a transfer's first byte.
RATE_BPS, PORTS, LATENCY_S = 800e9, 8, 1e-6
DARK_S = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
TOKENS = (64, 512, 4096)
#: Of the largest fabric only these: there a row takes as long as all others of its model together.
LARGEST, TOKENS_OF_LARGEST = 1024, 512
#: The word for all gradients of a rank in one bucket, one all-reduce behind the backward pass, and its bytes.
ONE, ONE_BYTES = "one", 1 << 44
#: How an all-reduce is done, and how experts exchange: every strategy has the fastest of these.
ALL_REDUCES, ALL_TO_ALLS = ("ring", "halving-doubling"), ("direct", "pairwise")
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
    """``bucket_bytes`` of gradients, of which the first is smaller (``Training``), or ``ONE_BYTES``."""

    model: str
    gpus: int
    tokens: int
    bucket_bytes: int = Training.bucket_bytes

    @property
    def experts(self) -> bool:
        return self.model.startswith("mixtral")

    @property
    def choices(self) -> list[Choice]:
        """The collectives among which every strategy has the fastest."""
        made = itertools.product(
            ALL_REDUCES, ALL_TO_ALLS if self.experts else ALL_TO_ALLS[:1]
        )
        return [Choice(*one) for one in made]


class Choice(NamedTuple):
    all_reduce: str
    all_to_all: str


@functools.cache
def workload(case: Case, choice: Choice) -> Workload:
    dp, tp, pp = SHAPES[case.gpus][1]
    # As many experts' ranks as ranks of a tensor before.
    parallel = Parallel(dp, 1, pp, tp) if case.experts else Parallel(dp, tp, pp)
    own = case.bucket_bytes
    training = Training(
        micro_batches=4, sequence=case.tokens, bucket_bytes=own,
        first_bucket_bytes=own if own == ONE_BYTES else min(own, Training.first_bucket_bytes),
        algorithms={"all-reduce": choice.all_reduce, "all-to-all": choice.all_to_all},
    )  # fmt: skip
    return generate(MODELS[case.model], parallel, training, DEVICES["h100"])


def names(case: Case) -> list[str]:
    return [f"g{number}" for number in range(case.gpus)]


def seconds(
    network: Network, case: Case, made: Workload, cost: StepCost | None = None
) -> float:
    return float(
        simulate_workload(
            network, names(case), made, fidelity="classes", cost=cost
        ).total_s
    )


class StepLight(IdealNetwork):
    """All light of both ends for a pair; a GPU that sends to several in a step has whole ports for each.

    ``group``: how many GPUs exchange with each other all at once, those with numbers in a row.
    """

    def __init__(self, gpus: Sequence[str], group: int) -> None:
        super().__init__(gpus, RATE_BPS, latency_s=LATENCY_S)
        self._group, self._first_pair = group, 2 * len(gpus)
        each_bps = RATE_BPS / PORTS * (PORTS // max(1, group - 1))
        self.capacity_bps = np.concatenate(
            (self.capacity_bps, np.full(len(gpus) * group, each_bps))
        )

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        found = super().routes(ranks, step, number)
        if np.bincount(step.sources).max(initial=0) < 2:
            return found
        ends = found.links.reshape(-1, 2)
        source, destination = ends[:, 0] // 2, ends[:, 1] // 2
        pair = self._first_pair + source * self._group + destination % self._group
        links = np.column_stack((ends, pair))
        return Routes(3 * np.arange(len(step) + 1), links.ravel(), found.latency_s)


def static_s(case: Case, choice: Choice) -> float:
    shape = Torus(SHAPES[case.gpus][0])
    network = TorusNetwork(
        names(case), shape, RATE_BPS / shape.ports, latency_s=LATENCY_S
    )
    return seconds(network, case, workload(case, choice))


def regrouped_s(case: Case, choice: Choice) -> float:
    made = workload(case, choice)
    demand = sent(made)
    try:
        check_degree(demand, PORTS)
        counts, forward = single_shot(demand, PORTS).counts, False
    except ValueError:
        groups, most, rest = all_reduce_groups(made)
        counts, forward = circuits(one_shot(rest, PORTS, groups, most)), True
    network = CircuitNetwork(
        names(case), counts, RATE_BPS / PORTS, forward=forward, latency_s=LATENCY_S
    )
    return seconds(network, case, made)


def phases_s(case: Case, choice: Choice, dark_s: float) -> float:
    made = workload(case, choice)
    pairs = (sent(made) > 0).astype(np.int64)
    network, engine = (
        CircuitNetwork(names(case), pairs, RATE_BPS, latency_s=LATENCY_S),
        Engine(),
    )
    execution = Execution(engine, network, names(case), made, fidelity="classes")
    light = PhasedLight(
        engine, execution, network, _phases(case, choice), 1, range(case.gpus),
        KNOWN, RATE_BPS / PORTS, PhaseLight(0.0, dark_s),
    )  # fmt: skip
    light.begin()
    execution.begin()
    engine.run()
    if (why := execution.standstill()) is not None:
        raise ValueError(why)
    return float(execution.operations.end_s.max())


@functools.cache
def _phases(case: Case, choice: Choice) -> PhasePlan:
    return phases_of(workload(case, choice))


def steps_s(case: Case, choice: Choice, dark_s: float) -> float:
    tp = SHAPES[case.gpus][1][1]
    network = StepLight(names(case), tp if case.experts else 1)
    cost = StepCost(set_up_s=dark_s, when="changed-only")
    return seconds(network, case, workload(case, choice), cost)


def row(case: Case, dark: Sequence[float]) -> dict[str, Any]:
    """Seconds of an iteration by strategy, with the fastest collectives; of those that set light while the
    job runs, for each dark time."""
    began = time.perf_counter()
    found: dict[str, Any] = {}
    for name, once in (("static", static_s), ("regrouped", regrouped_s)):
        found[name] = min(once(case, choice) for choice in case.choices)
    for name, run in (("phases", phases_s), ("steps", steps_s)):
        found[name] = least(functools.partial(run, case), case.choices, dark)
    took = time.perf_counter() - began
    tell(
        f"{case.model}, {case.gpus} GPUs, {case.tokens} tokens, bucket {bucket_name(case)}: {took:.1f} s"
    )
    sizes = {"layer_bytes": layer_bytes(case)}
    # A process computes many cases, and no other needs these.
    workload.cache_clear()
    _phases.cache_clear()
    return {**case._asdict(), **sizes, **found, "took_s": round(took, 1)}


def least(
    run: Callable[[Choice, float], float],
    choices: Sequence[Choice],
    dark: Sequence[float],
) -> list[float]:
    """Seconds of the fastest choice at each dark time, which are in order.

    A longer dark time makes no iteration shorter: a choice is left out while what it took at a shorter one is
    no less than what another takes.
    """
    at_least = dict.fromkeys(choices, 0.0)
    found: list[float] = []
    for dark_s in dark:
        best = math.inf
        for choice in sorted(choices, key=at_least.__getitem__):
            if at_least[choice] < best:
                at_least[choice] = run(choice, dark_s)
                best = min(best, at_least[choice])
        found.append(best)
    return found


def bucket_bytes(text: str) -> int:
    """Ends the benchmark for a text that is no size above 0, nor the word for all in one."""
    try:
        found = ONE_BYTES if text == ONE else parse_size(text)
    except ValueError as error:
        raise SystemExit(f"--bucket: {error}, or {ONE!r}") from None
    if found < 1:
        raise SystemExit(f"--bucket: {text!r} holds no gradient")
    return found


def bucket_name(case: Case) -> str:
    return ONE if case.bucket_bytes == ONE_BYTES else f"{case.bucket_bytes / MIB:g} MiB"


def layer_bytes(case: Case) -> int:
    """Bytes of the smallest collective within a layer, as nccl-tests counts them."""
    made = workload(case, case.choices[0])
    wanted = "ep" if case.experts else "tp"
    return min(
        int(size)
        for program in made.programs
        for name, size in zip(
            program.name.tolist(), program.bytes.tolist(), strict=True
        )
        if made.names[name].startswith(f"{wanted} ") and size
    )


def fastest(one: Mapping[str, Any], at: int) -> str:
    """The fastest at a dark time; the simplest of those within a thousandth."""
    times = {
        name: one[name] if name in ("static", "regrouped") else one[name][at]
        for name in STRATEGIES
    }
    return next(
        name for name in STRATEGIES if times[name] <= 1.001 * min(times.values())
    )


def pays_up_to(
    one: Mapping[str, Any], strategy: str, dark: Sequence[float]
) -> float | None:
    """The longest dark time with which a strategy is faster than light that is never set while a job runs."""
    bar = min(one["static"], one["regrouped"])
    paying = [
        dark_s
        for dark_s, took in zip(dark, one[strategy], strict=True)
        if took < bar / 1.001
    ]
    return max(paying, default=None)


def phases_study(
    gpus: list[int] = [*SHAPES],
    tokens: list[int] = [*TOKENS],
    models: list[str] = ["llama2-7b", "mixtral-8x7b"],
    bucket: list[str] = ["25 MiB", ONE],
    processes: int = 2,
    picture: Path | None = None,
) -> dict[str, Any]:
    """``bucket`` of gradients: a size, or "one" for all in one. ``processes``: that compute side by side.
    ``picture``: a PNG file to draw the times into."""
    buckets = list(map(bucket_bytes, bucket))
    cases = [Case(*one) for one in itertools.product(models, gpus, tokens, buckets)]
    if len(tokens) > 1:
        cases = [
            case
            for case in cases
            if case.gpus < LARGEST or case.tokens == TOKENS_OF_LARGEST
        ]
    # The largest first, so that none is left to one process at the end.
    ordered = sorted(cases, key=lambda case: -case.gpus)
    with ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as pool:
        found = dict(
            zip(ordered, pool.map(row, ordered, [DARK_S] * len(cases)), strict=True)
        )
    rows = [found[case] for case in cases]
    _tables(rows)
    if picture is not None:
        draw(rows, picture)
    return {"dark_s": DARK_S, "rows": rows, "most_memory_mib": most_memory_mib()}


#: Dark times of the page's table.
_PHASES_AT, _STEPS_AT = (1e-8, 1e-3, 1e-2), (1e-8, 1e-5)


def _tables(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables of docs/phases.md: milliseconds by case, and by how much each strategy is slower than
    light that takes no time."""
    show(
        ["model", "GPUs", "a layer sends", "bucket", "static", "regrouped",
         *(f"phases, {format_time(dark_s)}" for dark_s in _PHASES_AT),
         *(f"steps, {format_time(dark_s)}" for dark_s in _STEPS_AT),
         "steps fastest up to", "phases pay up to", "steps pay up to"],
        map(_cells, rows),
    )  # fmt: skip
    show(
        ["model", "a layer sends", "bucket", "static", "regrouped",
         *(f"phases, {format_time(dark_s)}" for dark_s in DARK_S)],
        _losses(rows),
    )  # fmt: skip


def _cells(one: Mapping[str, Any]) -> list[str]:
    times = [one["static"], one["regrouped"]]
    times += [one["phases"][DARK_S.index(dark_s)] for dark_s in _PHASES_AT]
    times += [one["steps"][DARK_S.index(dark_s)] for dark_s in _STEPS_AT]
    best = [dark_s for at, dark_s in enumerate(DARK_S) if fastest(one, at) == "steps"]
    longest = [
        max(best, default=None),
        *(pays_up_to(one, name, DARK_S) for name in ("phases", "steps")),
    ]
    return [
        f"`{one['model']}`", f"{one['gpus']:,}", format_size(one["layer_bytes"]), bucket_name(_case(one)),
        *(f"{1e3 * took:.4g}" for took in times),
        *("–" if dark_s is None else format_time(dark_s) for dark_s in longest),
    ]  # fmt: skip


def _case(one: Mapping[str, Any]) -> Case:
    return Case(*(one[name] for name in Case._fields))


def _losses(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Per cent by which iterations are longer than the fastest where light takes no time: the least and the
    most of all numbers of GPUs."""
    key = operator.itemgetter("model", "layer_bytes", "bucket_bytes")
    for (model, layer, _), group in itertools.groupby(sorted(rows, key=key), key):
        ones = list(group)
        none_s = [
            min(one["static"], one["regrouped"], one["phases"][0], one["steps"][0])
            for one in ones
        ]
        columns = [[one[name] for one in ones] for name in ("static", "regrouped")]
        columns += [[one["phases"][at] for one in ones] for at in range(len(DARK_S))]
        over = [
            [100 * (took / none - 1) for took, none in zip(c, none_s, strict=True)]
            for c in columns
        ]
        yield [
            f"`{model}`", format_size(layer), bucket_name(_case(ones[0])),
            *(f"{min(own):.0f} to {max(own):.0f} %" for own in over),
        ]  # fmt: skip


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Iteration over the best light that is never set, by dark time: a panel by model, bucket and size."""
    from matplotlib.figure import Figure

    from ringlight.experiments.report.drawing import PALETTE

    lines = list(dict.fromkeys((one["model"], one["bucket_bytes"]) for one in rows))
    sizes = list(dict.fromkeys(one["tokens"] for one in rows))
    figure = Figure(figsize=(3.4 * len(sizes), 2.5 * len(lines)), layout="constrained")
    panels = figure.subplots(len(lines), len(sizes), squeeze=False, sharex=True)
    for (m, line), (s, size) in itertools.product(enumerate(lines), enumerate(sizes)):
        axes = panels[m][s]
        own = [
            one
            for one in rows
            if (one["model"], one["bucket_bytes"], one["tokens"]) == (*line, size)
        ]
        for one, colour in zip(own, PALETTE, strict=False):
            bar = min(one["static"], one["regrouped"])
            for name, dash in (("phases", "-"), ("steps", ":")):
                axes.plot(
                    DARK_S,
                    [took / bar for took in one[name]],
                    dash,
                    color=colour,
                    lw=1.6,
                )
            axes.plot([], [], "-", color=colour, label=f"{one['gpus']} GPUs")
        axes.axhline(1.0, color="0.4", lw=0.8)
        sends, bucket = format_size(own[0]["layer_bytes"]), bucket_name(_case(own[0]))
        axes.set(
            xscale="log", ylim=(0, 2.0), title=f"{line[0]}, {sends}, bucket {bucket}"
        )
        axes.tick_params(labelsize=8)
        axes.title.set_fontsize(9)
        if m == len(lines) - 1:
            axes.set_xlabel("dark time, s", fontsize=8)
        if not s:
            axes.set_ylabel(
                "iteration over the best\nlight that is never set", fontsize=8
            )
    # Where all fabrics are.
    full = max(panels[0], key=lambda axes: len(axes.get_lines()))
    full.plot([], [], "-", color="0.2", label="phases")
    full.plot([], [], ":", color="0.2", label="steps")
    full.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=100)


PARTS = (phases_study,)
