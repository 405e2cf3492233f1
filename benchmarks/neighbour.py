"""A scenario run beside a busy loop that takes one processor for a third of its time. Needs root.

The loop is pinned to processor 0 and busy for ``--busy`` of every ``--period`` seconds; with a period as long
as the run, it is one long disturbance. Gives the verdict, what was repeated, and each comparison beside a
simulation of the same file, in points of per cent. All-reduces count of jobs that have their links for
themselves. The quiet figures are those of the same command with ``--busy 0``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, need_root, of_jobs, ringlight, running, show

_LOOP = """
import os, sys, time
busy, period = float(sys.argv[1]), float(sys.argv[2])
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
while True:
    began = time.monotonic()
    while time.monotonic() < began + busy * period:
        pass
    time.sleep((1 - busy) * period)
"""
#: Bounds: of a comparison beside the simulated one, in points; of an all-reduce over the ideal one, without
#: the loop and beside it.
POINTS, OVER_IDEAL, OVER_IDEAL_BESIDE = 3.0, 1.03, 1.10


def neighbour(
    scenario: Path = ROOT / "scenarios/disaggregation.yaml",
    busy: float = 1 / 3,
    period: float = 3.0,
    arm: list[str] = [],
    option: list[str] = [],
) -> dict[str, Any]:
    """``busy``: share of each ``period`` of so many seconds; ``arm``: only these; ``option``: of ``ringlight
    run``."""
    need_root()
    chosen = [word for name in arm for word in ("--arm", name)]
    simulated = json.loads(ringlight("simulate", str(scenario), "--json", *chosen))
    began = time.monotonic()
    with running([sys.executable, "-c", _LOOP, str(busy), str(period)]):
        result = json.loads(ringlight("run", str(scenario), "--json", *chosen, *option))
    took_s = time.monotonic() - began
    fidelity = result["fidelity"]
    foretold = of_jobs(simulated, "jct_ratio")
    ratios = {
        whose: {
            "measured": ratio,
            "simulated": foretold[whose],
            "points": 100 * abs(ratio - foretold[whose]),
        }
        for whose, ratio in of_jobs(result, "jct_ratio").items()
    }
    over = dict(_alone(result))
    show(
        ("job", "completion over the baseline's", "simulated"),
        [
            (whose, f"{one['measured']:.3f}", f"{one['simulated']:.3f}")
            for whose, one in ratios.items()
        ],
    )
    return {
        "busy": busy,
        "period_s": period,
        "took_s": round(took_s, 1),
        "jct_ratio": ratios,
        "allreduce_over_ideal": over,
        "verdict": fidelity["verdict"],
        "reasons": [reason["text"] for reason in fidelity["reasons"]],
        "repeated": fidelity.get("repeated", []),
        "missed": list(
            _missed(
                ratios,
                over,
                fidelity["verdict"],
                OVER_IDEAL_BESIDE if busy else OVER_IDEAL,
            )
        ),
    }


def _alone(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """All-reduces over the ideal ones, of jobs for which the model says the same as that."""
    ideal, model = (
        of_jobs(result, f"allreduce_{name}") for name in ("ideal", "predicted")
    )
    for whose, over in of_jobs(result, "allreduce_over_ideal").items():
        if whose in model and model[whose] <= ideal[whose] * (1 + 1e-9):
            yield whose, round(over, 4)


def _missed(
    ratios: Mapping[str, Mapping[str, float]],
    over: Mapping[str, float],
    verdict: str,
    most_over: float,
) -> Iterator[str]:
    for whose, ratio in ratios.items():
        if ratio["points"] > POINTS:
            yield f"{whose}: {ratio['points']:.1f} points from the simulated one, not {POINTS:g}"
    for whose, times in over.items():
        if times > most_over:
            yield f"{whose}: an all-reduce took {times} times the ideal, not {most_over}"
    if verdict == "bad":
        yield "the run calls itself bad"


PARTS = (neighbour,)
