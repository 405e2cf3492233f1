"""What GPUs did in a run, for the definitions of :mod:`fabric.utilisation`, and which of these agree with
what is published. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fabric.utilisation import DEFINITIONS, Activity, mean_share, waiting_counted
from scenarios.records import Run
from scenarios.schema import ScenarioSpec

#: Seconds of computing, in the collective, and of these while bytes moved: one iteration of one GPU.
Span = tuple[float, float, float]


def activity(spans: Iterable[Span], full_rate_s: float, total_s: float, window_s: float) -> Activity:
    """Of one GPU. ``full_rate_s``: what one collective takes at the port's full rate. The rest as there."""
    found = list(spans)
    return Activity(
        compute_s=math.fsum(compute for compute, _, _ in found),
        exchange_s=math.fsum(exchange for _, exchange, _ in found),
        moving_s=math.fsum(moving for _, _, moving in found),
        full_rate_s=len(found) * full_rate_s,
        overlapped_s=math.fsum(max(compute, exchange) for compute, exchange, _ in found),
        total_s=total_s,
        window_s=window_s,
    )


def activities(run: Run, job: str, full_rate_s: float, window_s: float) -> list[Activity]:
    """Of every GPU of a job, as recorded. Bytes stand still in the pauses that a worker reports (20 ms and
    more); ``window_s``: seconds of the longest run that it is compared with."""
    record = run.jobs[job]
    spans: list[list[Span]] = [[] for _ in record.gpus]
    for it in record.iterations:
        still_s = math.fsum(end - begin for begin, end in it.stalls)
        spans[it.rank].append((it.compute_s, it.all_reduce_s, max(0.0, it.all_reduce_s - still_s)))
    total_s = record.end - run.released
    return [activity(of_rank, full_rate_s, total_s, window_s) for of_rank in spans]


def by_definition(
    fragmented: Sequence[Activity], regrouped: Sequence[Activity], published: tuple[float, float] | None
) -> dict[str, dict[str, Any]]:
    """Of each definition the utilisation (0..1) fragmented and regrouped, ``gain``, the second over the
    first, and ``consistent``: whether that is within what is published (None where nothing is)."""
    found: dict[str, dict[str, Any]] = {}
    for name, definition in DEFINITIONS.items():
        before, after = mean_share(definition, fragmented), mean_share(definition, regrouped)
        gain = after / before
        found[name] = {
            "fragmented": before,
            "regrouped": after,
            "gain": gain,
            "consistent": None if published is None else published[0] <= gain <= published[1],
        }
    return found


def waiting_range(computing: Mapping[str, Any], published: tuple[float, float] | None) -> list[float] | None:
    """From and to which share (0..1) of the time without computing must count for a gain as published.

    ``computing``: the entry of the definition ``compute``. None where nothing is published or no share
    serves.
    """
    if published is None:
        return None
    before, after = computing["fragmented"], computing["regrouped"]
    most = after / before
    # The more of the waiting counts, the smaller is the gain: from ``most`` down to 1.
    if not (published[0] <= most and published[1] >= 1):
        return None
    least_share = 0.0 if published[1] >= most else waiting_counted(before, after, published[1])
    most_share = 1.0 if published[0] <= 1 else waiting_counted(before, after, published[0])
    return [least_share, most_share]


def _claims(spec: ScenarioSpec, case: str) -> bool:
    published = spec.cases[case].published
    return published is not None and published.utilisation is not None


def agreement(spec: ScenarioSpec, cases: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which definitions agree with what is published of utilisation; None where nothing is.

    ``cases``: those whose utilisation is published. ``consistent``: the definitions that agree with all of
    them, ``of_case`` with each.
    """
    asked = [
        name
        for name, case in spec.cases.items()
        if name in cases and case.published and case.published.utilisation
    ]
    if not asked:
        return None
    of_case = {
        case: [name for name, entry in cases[case]["utilisations"].items() if entry["consistent"]]
        for case in asked
    }
    return {
        "cases": asked,
        "of_case": of_case,
        "consistent": [name for name in DEFINITIONS if all(name in names for names in of_case.values())],
    }
