"""OptINC (Fei et al.): communication's share of an iteration, and where averaging wins and loses.

The latency model of the paper (Fig. 7b) is T = C + V, with V = n B / R where averagers work and
2 (N - 1) / N times that on a ring: that is ``iteration_ideal``. C is not stated. Where a share
f of the ring's iteration is communication, f / 3 of it is saved at N = 4, so that f follows from the saving,
and from f the work of an iteration, C times what a GPU computes in a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.statistics import is_number
from ringlight.experiments.papers import Finding, analytic
from ringlight.experiments.record.runs import Run

#: What an H100 computes in a second at the utilisation that the paper takes (section IV): 0.6 of 60 TFLOPs.
GPU_FLOPS = 60e12 * 0.6
#: Operations of a training for each parameter and each token: two forwards, four backwards.
FLOPS_A_TOKEN = 6
_ONE, _TWO = "fabrics.one.averaging.servers", "fabrics.two.averaging.servers"
_LIGHT = "fabrics.one.averaging.imperfect."
#: What is swept of the light, from the mildest on: as it is said, and its unit.
_PHYSICS = {
    "phase_bits": ("phases of at least", "bits"),
    "phase_error": ("phase errors up to", "rad"),
    "loss_db": ("a loss up to", "dB"),
    "noise": ("detector noise up to", "levels"),
    "transmitters": ("transmitter noise up to", "levels"),
    "mismatch": ("a mismatch of transmitters up to", "of their light"),
    "bias": ("constant light too bright by up to", "of it"),
    "scale": ("all light too bright by up to", "of it"),
}


def closed_forms(run: Run, latency_s: float) -> Iterator[Row]:
    """Yield the rows ``communication_share`` and ``work`` of a run that computes and all-reduces.

    ``communication_share``: share of an iteration by the model. ``work``: the operations of its computing on
    the paper's GPU. Runs with other jobs, or without computing, have none.
    """
    setting, row, (job, *other_jobs) = (
        run.plan.setting,
        analytic(run),
        run.jobs.values(),
    )
    loop = job.plan.training
    if other_jobs or loop is None or not loop.compute_s or not job.gpus:
        return
    sends_s = ideal_all_reduce_s(setting, job.plan, job.gpus)
    yield row("communication_share", sends_s / (sends_s + loop.compute_s), "1")
    yield row("work", GPU_FLOPS * loop.compute_s / setting.scale.time, "count")


def verdict(base: AtBase) -> Iterator[Finding]:
    """Yield findings: in which cases averaging on the way wins or loses, from the rows alone."""
    yield from _over_rings(base)
    yield from _over_electrical(base)
    yield from _on_scales(base)
    yield from _on_computing(base)
    yield from _on_area(base)
    yield from _on_light(base)


def _numbers(base: AtBase, arm: str, metric: str) -> dict[int, float]:
    """Return an arm's figures by the number of servers."""
    return base.along(arm, metric, _ONE, _TWO)


def _over_rings(base: AtBase) -> Iterator[Finding]:
    rings = {
        "optinc": ("ring", "ring-bits"),
        "optinc-cascade": ("ring-cascade", "ring-bits-cascade"),
    }
    rings["optinc-dropped"] = rings["optinc-cascade"]
    for arm, other_arms in rings.items():
        ours = _numbers(base, arm, "allreduce")
        for other in other_arms:
            theirs = _numbers(base, other, "allreduce")
            times = {n: theirs[n] / ours[n] for n in ours.keys() & theirs.keys()}
            if times:
                least, *more = sorted(times)
                each = ", ".join(f"{times[n]:.2f} ({n})" for n in more)
                further = f" With more servers the factor is {each}." if more else ""
                lost = [n for n in times if times[n] < 1]
                yield Finding(
                    "loses" if lost else "wins",
                    f"“{base.titles[other]}” compared with “{base.titles[arm]}” at equal rates: the ring takes "
                    f"{times[least]:.2f} times as long with {least} servers.{further}",
                )


def _over_electrical(base: AtBase) -> Iterator[Finding]:
    """Yield a finding on how much of the gain remains against a switch that averages without light."""
    ours, theirs, ring = (
        _numbers(base, arm, "allreduce") for arm in ("optinc", "electrical", "ring")
    )
    times = {n: theirs[n] / ours[n] for n in ours.keys() & theirs.keys() & ring.keys()}
    if times:
        most, least = max(times.values()), min(times.values())
        spread = (
            f"{least:.2f}"
            if f"{least:.2f}" == f"{most:.2f}"
            else f"{least:.2f} to {most:.2f}"
        )
        yield Finding(
            "wins" if least > 1.005 else "loses",
            f"“{base.titles['electrical']}” compared with “{base.titles['optinc']}” at equal rates and bytes: "
            f"the switch takes {spread} times as long. The gain over a ring is due to averaging in the network"
            f"{'' if least > 1.005 else ', not to optics'}.",
        )


def _on_scales(base: AtBase) -> Iterator[Finding]:
    """Ranks agree on the scales of blocks before."""
    extra_percent: dict[int, float] = {}
    for arm in ("optinc", "optinc-cascade"):
        sent, scales = (
            _numbers(base, arm, "port_sent"),
            _numbers(base, arm, "port_scales"),
        )
        extra_percent |= {n: 100 * scales[n] / (sent[n] - scales[n]) for n in scales}
    if extra_percent:
        least, most = min(extra_percent), max(extra_percent)
        yield Finding(
            "loses",
            "Before they send numbers, servers agree on the scales of blocks over packet switches. This adds "
            f"{extra_percent[least]:.2f} % of the numbers' bytes with {least} servers, "
            f"{extra_percent[most]:.2f} % with {most}.",
        )


def _on_computing(base: AtBase) -> Iterator[Finding]:
    """Savings of whole iterations by the model: at four servers they were put in."""
    for model in ("resnet", "llama"):
        ours, theirs = (
            _numbers(base, f"{arm}-{model}", "iteration_ideal")
            for arm in ("optinc", "ring")
        )
        share, work, sent, over = (
            _numbers(base, f"ring-{model}", metric).get(4)
            for metric in (
                "communication_share",
                "work",
                "port_sent",
                "port_sent_over_payload",
            )
        )
        saved = {
            n: 100 * (1 - ours[n] / theirs[n]) for n in ours.keys() & theirs.keys()
        }
        if (
            4 not in saved
            or share is None
            or work is None
            or sent is None
            or over is None
        ):
            continue
        other_savings = ", ".join(
            f"{saved[n]:.1f} % with {n}" for n in sorted(saved) if n != 4
        )
        # One byte is a value here, so that the codes' bytes are the values.
        a_token = FLOPS_A_TOKEN * sent / over
        yield Finding(
            "note",
            f"{base.titles[f'optinc-{model}']}: {saved[4]:.1f} % of an iteration is saved with 4 servers "
            f"(fitted: the computing was solved from it), {other_savings} servers (not comparable). This "
            f"implies that {100 * share:.0f} % of the ring's iteration is communication. The computing is "
            f"{work / 1e9:.2g} GFLOP, as much as for {work / a_token:.1f} tokens of a language model with as "
            f"many parameters, at {FLOPS_A_TOKEN} operations for each. With any larger batch less is saved.",
        )


def _on_area(base: AtBase) -> Iterator[Finding]:
    apart = []
    for arm in ("unit-8", "unit-16"):
        published, ours = (
            {
                str(row.point): float(row.value)
                for row in base.table.each(arm, "unit_area.mean")
                if (row.label == "published") == expected and is_number(row.value)
            }
            for expected in (True, False)
        )
        apart += [
            100 * abs(ours[key] - published[key])
            for key in published.keys() & ours.keys()
        ]
    if apart:
        yield Finding(
            "note",
            f"{len(apart)} areas are within {max(apart):.2f} points of the paper's. An area is the number of "
            "interferometers, over that of the same unit with no layer approximated. One choice is fitted: the "
            "parts that average and split the light count on both sides.",
        )


def _on_light(base: AtBase) -> Iterator[Finding]:
    """Yield findings: how imperfect light may be until a network answers some input wrongly."""
    for arm in ("trained", "designed"):
        limits = []
        for key, (words, unit) in _PHYSICS.items():
            shares = base.along(arm, "inputs_wrong", f"{_LIGHT}{key}")
            if (hardest := _harmless(list(shares.items()))) is not None:
                limits.append(f"{words} {hardest:g} {unit}")
        if limits:
            several = [
                ", ".join(limits[begin : begin + 3])
                for begin in range(0, len(limits), 3)
            ]
            yield Finding(
                "free",
                f"{base.titles[arm]}: all answers stay right with each of these alone: "
                f"{'. The same holds for '.join(several)}. Each was tried with one draw.",
            )


def _harmless(points: Sequence[tuple[float, float]]) -> float | None:
    last = None
    for value, share in points:
        if share:
            break
        last = value
    return last
