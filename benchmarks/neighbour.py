"""A scenario run beside a busy loop that takes one processor for a third of its time. Needs root.

The loop is pinned to processor 0 and busy for ``--busy`` of every ``--period`` seconds; with a period as long
as the run, it is one long disturbance. Gives the figures, the verdict, and what was repeated. The quiet
figures are those of the same command with ``--busy 0``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, need_root, ringlight, running

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


def neighbour(
    scenario: Path = ROOT / "scenarios/disaggregation.yaml",
    busy: float = 1 / 3,
    period: float = 3.0,
    option: list[str] = [],
) -> dict[str, Any]:
    """``busy``: share of each ``period`` of so many seconds; ``option``: of ``ringlight run``."""
    need_root()
    began = time.monotonic()
    with running([sys.executable, "-c", _LOOP, str(busy), str(period)]):
        result = json.loads(ringlight("run", str(scenario), "--json", *option))
    fidelity = result["fidelity"]
    figures = [row for row in result["rows"] if row["metric"] in ("jct", "jct_ratio")]
    return {
        "busy": busy,
        "period_s": period,
        "took_s": round(time.monotonic() - began, 1),
        "figures": figures,
        "verdict": fidelity["verdict"],
        "reasons": fidelity["reasons"],
        "repeated": fidelity.get("repeated", []),
    }


PARTS = (neighbour,)
