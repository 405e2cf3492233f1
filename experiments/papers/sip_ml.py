"""SiP-ML (Khani et al.): how much faster training is on its fabrics, and on what each ratio hangs.

Besides the runs' own figures: the time to an accuracy, an iteration times the iterations of the authors'
program; and, of runs that do not send gradients, the iteration with the term that their program adds for
them, 2 · bytes / rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import quantity
from ringlight.experiments.papers import Finding
from ringlight.experiments.record.runs import Run
from ringlight.workloads.graph import Kind, Workload
from ringlight.workloads.layers import parameters
from ringlight.workloads.models import MODELS
from ringlight.workloads.placement import AUTHORS, authors_all_reduce_s

#: Bytes of an element of gradient, where the public architecture says how many there are.
_ELEMENT_BYTES = 4
_WORKLOAD, _RATE = "jobs.train.workload", "parameters.bandwidth.value"
_GPU, _TAKES = "parameters.gpu.value", "parameters.takes.value"
#: A ratio this close to 1 is 1.
_ALIKE = 5e-4


def closed_forms(run: Run, latency_s: float) -> Iterator[Row]:
    """Of a run of a placed model of the authors': ``time_to_accuracy``, and without its gradients' all-reduce
    ``iteration_added_parameters`` and ``iteration_added_theirs``, with the term for either count of bytes.
    """
    at, job = run.plan, next(iter(run.jobs.values()))
    workload = job.plan.workload
    if workload is None or job.jct_s is None or (placed := _placed(workload)) is None:
        return
    model, replicas, pieces = placed
    iteration_s = job.jct_s / job.plan.iterations
    repeat = at.repeat if at.repeat > 1 else None

    def row(metric: str, seconds: float) -> Row:
        return Row(at.arm, f"job {job.name}", metric, seconds, "s", "analytic", at.point, repeat)

    yield row("time_to_accuracy", iteration_s * AUTHORS[model].iterations)
    interconnect = at.setting.fabric.interconnect
    if replicas == 1 or interconnect is None or _reduces(workload):
        return
    for name, size in (
        ("parameters", _ELEMENT_BYTES * parameters(MODELS[model]) / pieces),
        ("theirs", AUTHORS[model].gradient_bytes),
    ):
        term_s = authors_all_reduce_s(size, interconnect.gpu_bps)
        yield row(f"iteration_added_{name}", iteration_s + term_s)


def _placed(workload: Workload) -> tuple[str, int, int] | None:
    """Model, replicas and GPUs of each, as ``workloads.placement`` names its workloads."""
    model, *words = workload.name.split()
    if model not in AUTHORS or words[::2] != ["dp", "mp", "window"]:
        return None
    return model, int(words[1]), int(words[3])


def _reduces(workload: Workload) -> bool:
    return any((program.kind == Kind.COLLECTIVE).any() for program in workload.programs)


# --- the verdict ----------------------------------------------------------------------------------


class _Case(NamedTuple):
    """What an iteration time is of; ``rate`` in bits per second, 0 where an arm has its own."""

    workload: str
    gpu: str
    takes: str
    rate: float

    @property
    def of_cap(self) -> _Case:
        return self._replace(rate=0.0)

    @property
    def is_base(self) -> bool:
        return not self.workload.endswith("-theirs")


Times = Mapping[_Case, float]


def _times(base: AtBase, arm: str, *, own_rate: bool = False, metric: str = "jct") -> dict[_Case, float]:
    """Until the last GPU has ended an iteration, of an arm at all of its points, seconds."""
    found = {}
    for row in base.table.each(arm, metric):
        if not is_number(row.value):
            continue
        said = {path: str(row.point.get(path, base.value(path))) for path in (_WORKLOAD, _GPU, _TAKES, _RATE)}
        rate = 0.0 if own_rate else (quantity(said[_RATE]) or (0.0, ""))[0]
        found[_Case(said[_WORKLOAD], said[_GPU], said[_TAKES], rate)] = float(row.value)
    return found


def _whole(times: Times) -> Callable[[_Case], float]:
    """A model that is not divided has no pieces that could take less."""
    known = {case._replace(takes=""): seconds for case, seconds in times.items()}
    return lambda case: known.get(case._replace(takes=""), float("inf"))


def verdict(base: AtBase) -> Iterator[Finding]:
    """Where light wins and where it loses, from the rows alone."""
    ours = _times(base, "sip-ocs")
    whole = _whole(_times(base, "sip-ocs-whole"))
    best = {case: min(seconds, whole(case)) for case, seconds in ours.items()}
    for cap in ("cap-400", "cap-200"):
        theirs = _times(base, cap, own_rate=True)
        yield from _over_cap(
            base, cap, ours, best, theirs, _whole(_times(base, f"{cap}-whole", own_rate=True))
        )
    yield from _over_ideal(base)
    yield from _on_ring(base)
    yield from _on_added(base, ours)


def _over_cap(
    base: AtBase, cap: str, ours: Times, best: Times, theirs: Times, whole: Callable[[_Case], float]
) -> Iterator[Finding]:
    """Speed-ups over a cap: with the same division, and with the faster of dividing and not on both sides."""
    same = {case: theirs[case.of_cap] / ours[case] for case in ours if case.of_cap in theirs}
    either = {
        case: min(theirs[case.of_cap], whole(case.of_cap)) / best[case]
        for case in best
        if case.of_cap in theirs
    }
    if not same:
        return
    name, mine = base.titles[cap], base.titles["sip-ocs"]
    gpu, takes = base.value(_GPU), base.value(_TAKES)
    as_written = {
        case: ratio for case, ratio in same.items() if case.is_base and (case.gpu, case.takes) == (gpu, takes)
    }
    models = "; ".join(
        f"{model} {_span([r for case, r in as_written.items() if case.workload == model])}"
        for model in dict.fromkeys(case.workload for case in as_written)
    )
    yield Finding(
        "wins" if min(as_written.values(), default=0.0) > 1 else "loses",
        f"{name}: with the same division {mine} is so many times as fast, over all bandwidths: {models}. It "
        "hangs on what a piece takes, on the GPU and on the bytes of gradients.",
    )
    yield Finding(
        "note",
        f"{name}: over every GPU, both counts of bytes and both ways to take inputs {_span(same.values())} "
        f"times; {_within(base, cap, same)} of {len(same)} are in the published range.",
    )
    worse = [case for case, ratio in either.items() if ratio < 1 - _ALIKE]
    yield Finding(
        "loses" if worse else "wins",
        f"{name}: where both sides may leave a model whole on each GPU if that is faster, "
        f"{_span(either.values())} times; {_within(base, cap, either)} of {len(either)} are in the published "
        "range.",
    )


def _within(base: AtBase, cap: str, ratios: Mapping[_Case, float]) -> int:
    """How many are in the range that the file says is published."""
    spans = [one.range for one in base.experiment.spec.published if one.arm == cap and one.range is not None]
    return sum(any(low.value <= ratio <= high.value for low, high in spans) for ratio in ratios.values())


def _over_ideal(base: AtBase) -> Iterator[Finding]:
    """At equal bandwidth nothing can be faster than a switch that never holds anything up."""
    for tail, how in (("", "divided over GPUs"), ("-whole", "whole on each GPU")):
        ideal, ours = _times(base, f"ideal{tail}"), _times(base, f"sip-ocs{tail}")
        ratios = [ideal[case] / ours[case] for case in ours.keys() & ideal.keys()]
        if ratios:
            name, mine = base.titles["ideal"], base.titles["sip-ocs"]
            alike = min(ratios) > 1 - _ALIKE
            why = "" if alike else " A pair has its circuits only, and idle ones do not help."
            yield Finding(
                "note" if alike else "loses",
                f"{name} at equal bandwidth, models {how}: {mine} is {_span(ratios)} times as fast.{why}",
            )


def _on_ring(base: AtBase) -> Iterator[Finding]:
    ring = _times(base, "sip-ring")
    mine = base.titles.get("sip-ring", "")
    for other in ("ideal", "sip-ocs"):
        theirs = _times(base, other)
        ratios = [theirs[case] / ring[case] for case in ring.keys() & theirs.keys()]
        if ratios:
            text = f"{base.titles[other]} at equal bandwidth: {mine} is {_span(ratios)} times as fast."
            yield Finding("loses" if min(ratios) < 1 - _ALIKE else "wins", text)
    for cap in ("cap-400", "cap-200"):
        theirs = _times(base, cap, own_rate=True)
        ratios_of = {case: theirs[case.of_cap] / ring[case] for case in ring if case.of_cap in theirs}
        if ratios_of:
            slower = sorted(
                f"{case.workload} at {case.rate / 1e12:g} Tbit/s"
                for case, r in ratios_of.items()
                if r < 1 - _ALIKE
            )
            span = _span(ratios_of.values())
            text = f"{base.titles[cap]}: with the same division {mine} is {span} times as fast"
            yield Finding(
                "loses" if slower else "wins", f"{text}{'; slower: ' * bool(slower)}{', '.join(slower)}."
            )


def _on_added(base: AtBase, ours: Times) -> Iterator[Finding]:
    """Gradients in the network beside the term that is added for them."""
    for name, tail in (("parameters", ""), ("theirs", "-theirs")):
        added = _times(base, "sip-ocs-added", metric=f"iteration_added_{name}")
        said = [
            f"{case.workload} at {case.rate / 1e12:g} Tbit/s {ours[sent] / seconds:.2f}"
            for case, seconds in added.items()
            if (sent := case._replace(workload=f"{case.workload}{tail}")) in ours
        ]
        if said:
            whose = "4 bytes a parameter" if name == "parameters" else "the authors' bytes"
            yield Finding(
                "note",
                f"Gradients in the network over 2 · bytes / rate that is added, {whose}, time by time: "
                f"{', '.join(said)}.",
            )


def _span(values: object) -> str:
    found = sorted(values)  # type: ignore[call-overload]
    return "none" if not found else f"{found[0]:.2f} to {found[-1]:.2f}"
