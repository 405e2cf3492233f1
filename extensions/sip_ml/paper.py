"""SiP-ML (Khani et al.): how much faster training is on its fabrics, and on what each ratio hangs.

Besides the runs' own figures: the time to an accuracy, an iteration times the iterations of the authors'
program; and, of runs that do not send gradients, the iteration with the term that their program adds for
them, 2 · bytes / rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.language.spec import quantity
from ringlight.experiments.papers import Finding, analytic
from ringlight.experiments.record.runs import Run
from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.layers import parameters
from ringlight.extensions.models.placement import AUTHORS, authors_all_reduce_s
from ringlight.workloads.graph import Kind, Workload

#: Bytes of an element of gradient, where the public architecture says how many there are.
_ELEMENT_BYTES = 4
_WORKLOAD, _RATE = "jobs.train.workload", "parameters.bandwidth.value"
_GPU, _TAKES, _PIECES = (
    f"parameters.{name}.value" for name in ("gpu", "takes", "pieces")
)
#: End of the name of a workload that each GPU has whole.
_WHOLE = "-whole"
_OURS, _SERVERS = "sip-ocs", "servers"
#: Arms whose bandwidth is not swept.
_OWN_RATE = (_SERVERS, "cap-400", "cap-200")
#: A ratio this close to 1 is 1.
_ALIKE = 5e-4


def closed_forms(run: Run, latency_s: float) -> Iterator[Row]:
    """Yield the row ``time_to_accuracy`` of a run of one of the authors' models, placed over the GPUs.

    A run without the gradients' all-reduce also gets ``iteration_added_parameters`` and
    ``iteration_added_theirs``: its iteration with that term added, by either count of bytes.
    """
    job = next(iter(run.jobs.values()))
    workload = job.plan.workload
    if workload is None or job.jct_s is None or (placed := _placed(workload)) is None:
        return
    model, replicas, pieces = placed
    iteration_s = job.jct_s / job.plan.iterations
    row = analytic(run)
    yield row("time_to_accuracy", iteration_s * AUTHORS[model].iterations, "s")
    interconnect = run.plan.setting.fabric.parts.get("interconnect")
    if replicas == 1 or interconnect is None or _reduces(workload):
        return
    for name, size in (
        ("parameters", _ELEMENT_BYTES * parameters(MODELS[model]) / pieces),
        ("theirs", AUTHORS[model].gradient_bytes),
    ):
        term_s = authors_all_reduce_s(size, interconnect.gpu_bps)
        yield row(f"iteration_added_{name}", iteration_s + term_s, "s")


def _placed(workload: Workload) -> tuple[str, int, int] | None:
    """Model, replicas and GPUs of each, as ``extensions.models.placement`` names its workloads."""
    model, *words = workload.name.split()
    if model not in AUTHORS or words[::2] != ["dp", "mp", "window"]:
        return None
    return model, int(words[1]), int(words[3])


def _reduces(workload: Workload) -> bool:
    return any((program.kind == Kind.COLLECTIVE).any() for program in workload.programs)


# --- the verdict ----------------------------------------------------------------------------------


class _Case(NamedTuple):
    """Subject of an iteration time; ``rate`` in bits per second, 0 if an arm has its own."""

    workload: str
    gpu: str
    takes: str
    rate: float

    @property
    def of_own_rate(self) -> _Case:
        return self._replace(rate=0.0)

    @property
    def is_base(self) -> bool:
        return not self.workload.endswith("-theirs")


Times = Mapping[_Case, float]


def _times(
    base: AtBase, arm: str, metric: str = "jct", *, whole: bool = False
) -> dict[_Case, float]:
    """Until the last GPU has ended an iteration, of an arm at all of its points with the file's division
    (or of models that each GPU has ``whole``) and the best of the all-reduces that ran there, seconds."""
    times_s: dict[_Case, float] = {}
    for row in base.table.each(arm, metric):
        pieces = row.point.get(_PIECES, base.value(_PIECES))
        if (
            not is_number(row.value)
            or row.label == "published"
            or pieces != base.value(_PIECES)
        ):
            continue
        words = {
            path: str(row.point.get(path, base.value(path)))
            for path in (_WORKLOAD, _GPU, _TAKES, _RATE)
        }
        workload = words[_WORKLOAD].removesuffix(_WHOLE)
        if (workload != words[_WORKLOAD]) == whole:
            rate = 0.0 if arm in _OWN_RATE else (quantity(words[_RATE]) or (0.0, ""))[0]
            case = _Case(workload, words[_GPU], words[_TAKES], rate)
            times_s[case] = min(float(row.value), times_s.get(case, math.inf))
    return times_s


def _either(base: AtBase, arm: str) -> dict[_Case, float]:
    """Return the shorter iteration of two: with the model divided, and with the whole model on each GPU."""
    whole = {
        case._replace(takes=""): s for case, s in _times(base, arm, whole=True).items()
    }
    divided = _times(base, arm)
    return {
        case: min(seconds, whole[key])
        for case, seconds in divided.items()
        if (key := case._replace(takes="")) in whole
    }


def verdict(base: AtBase) -> Iterator[Finding]:
    """Yield findings: in which cases light wins or loses, from the rows alone."""
    yield from _best(base)
    ours, either = _times(base, _OURS), _either(base, _OURS)
    for other in _OWN_RATE:
        yield from _over(base, other, ours, either)
    yield from _over_ideal(base)
    yield from _on_ring(base)
    yield from _on_added(base, ours)


def _ratios(theirs: Times, ours: Times) -> dict[_Case, float]:
    """Return how many times as fast our cases are as theirs, for cases that both ran."""
    ratios = {}
    for case, seconds in ours.items():
        other = theirs.get(case, theirs.get(case.of_own_rate))
        if other is not None:
            ratios[case] = other / seconds
    return ratios


def _slower(ratios: Mapping[_Case, float]) -> str:
    return ", ".join(
        sorted(
            f"{case.workload} at {case.rate / 1e12:g} Tbit/s"
            for case, r in ratios.items()
            if r < 1 - _ALIKE
        )
    )


def _by_model(ratios: Mapping[_Case, float]) -> str:
    models = dict.fromkeys(case.workload for case in ratios)
    return "; ".join(
        f"{model} {_span([r for case, r in ratios.items() if case.workload == model])}"
        for model in models
    )


def _best(base: AtBase) -> Iterator[Finding]:
    """The best division and all-reduce on each fabric against the best on servers, over all bandwidths."""
    servers = _times(base, _SERVERS, "jct_best")
    for arm in (_OURS, "sip-ring", "ideal"):
        ratios = _ratios(servers, _times(base, arm, "jct_best"))
        if ratios:
            slower, within = (
                _slower(ratios),
                f"{_within(base, ratios)} of {len(ratios)} are",
            )
            yield Finding(
                "loses" if slower else "wins",
                f"{base.titles[_SERVERS]}, each with its best division and all-reduce: {base.titles[arm]} is "
                f"so many times as fast, over all bandwidths: {_by_model(ratios)}; {within} in the published "
                f"range{'; slower: ' * bool(slower)}{slower}.",
            )


def _within(base: AtBase, ratios: Mapping[_Case, float]) -> int:
    """Return how many ratios are in the published range of the file, as a share of the servers' time."""
    spans = [
        figure.range
        for figure in base.experiment.spec.published
        if figure.over == _SERVERS and figure.range
    ]
    return sum(
        any(low.value <= 1 / ratio <= high.value for low, high in spans)
        for ratio in ratios.values()
    )


def _over(base: AtBase, other: str, ours: Times, either: Times) -> Iterator[Finding]:
    """Speed-ups with the same division, and with the faster of dividing and not on both sides."""
    theirs = _times(base, other)
    same, freely = _ratios(theirs, ours), _ratios(_either(base, other), either)
    if not same:
        return
    name, mine = base.titles[other], base.titles[_OURS]
    gpu, takes = base.value(_GPU), base.value(_TAKES)
    as_written = {
        case: ratio
        for case, ratio in same.items()
        if case.is_base and (case.gpu, case.takes) == (gpu, takes)
    }
    yield Finding(
        "wins" if min(as_written.values(), default=0.0) > 1 else "loses",
        f"{name}, both sides in {base.value(_PIECES)} pieces: {mine} is so many times as fast, over all "
        f"bandwidths: {_by_model(as_written)}. It hangs on what a piece takes, on the GPU and on the bytes "
        "of gradients.",
    )
    if not freely:
        return
    yield Finding(
        "loses" if any(ratio < 1 - _ALIKE for ratio in freely.values()) else "wins",
        f"{name}: over every GPU, both counts of bytes and both ways to take inputs, {_span(same.values())} "
        f"times with the same division; where both sides may leave a model whole on each GPU if that is "
        f"faster, {_span(freely.values())} times.",
    )


def _over_ideal(base: AtBase) -> Iterator[Finding]:
    """Yield findings against an ideal switch, which nothing can beat at equal bandwidth."""
    pieces = base.value(_PIECES)
    for metric, how in (
        ("jct", f"models in {pieces} pieces"),
        ("jct_best", "each with its best division"),
    ):
        ratios = _ratios(
            _times(base, "ideal", metric), _times(base, _OURS, metric)
        ).values()
        if ratios:
            name, mine = base.titles["ideal"], base.titles[_OURS]
            alike = min(ratios) > 1 - _ALIKE
            why = (
                ""
                if alike
                else " A pair has its circuits only, and idle ones do not help."
            )
            yield Finding(
                "note" if alike else "loses",
                f"{name} at equal bandwidth, {how}: {mine} is {_span(ratios)} times as fast.{why}",
            )


def _on_ring(base: AtBase) -> Iterator[Finding]:
    ring = _times(base, "sip-ring")
    mine = base.titles.get("sip-ring", "")
    for other in ("ideal", _OURS, *_OWN_RATE):
        ratios = _ratios(_times(base, other), ring)
        if ratios:
            slower = _slower(ratios) if other in _OWN_RATE else ""
            equal = "" if other in _OWN_RATE else " at equal bandwidth"
            yield Finding(
                "loses" if min(ratios.values()) < 1 - _ALIKE else "wins",
                f"{base.titles[other]}{equal}, both sides in {base.value(_PIECES)} pieces: {mine} is "
                f"{_span(ratios.values())} times as fast{'; slower: ' * bool(slower)}{slower}.",
            )


def _on_added(base: AtBase, ours: Times) -> Iterator[Finding]:
    """Gradients in the network beside the term that is added for them."""
    for name, tail in (("parameters", ""), ("theirs", "-theirs")):
        added = _times(base, "sip-ocs-added", f"iteration_added_{name}")
        sentences = [
            f"{case.workload} at {case.rate / 1e12:g} Tbit/s {ours[sent] / seconds:.2f}"
            for case, seconds in added.items()
            if (sent := case._replace(workload=f"{case.workload}{tail}")) in ours
        ]
        if sentences:
            whose = (
                "4 bytes a parameter" if name == "parameters" else "the authors' bytes"
            )
            yield Finding(
                "note",
                f"Gradients in the network over 2 · bytes / rate that is added, {whose}, time by time: "
                f"{', '.join(sentences)}.",
            )


def _span(values: object) -> str:
    ordered = sorted(values)  # type: ignore[call-overload]
    return "none" if not ordered else f"{ordered[0]:.2f} to {ordered[-1]:.2f}"
