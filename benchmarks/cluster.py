"""A replay of the whole Philly trace on 4,096 GPUs by each policy: seconds, and the most memory.

111,549 jobs on 64 switches of 64 GPUs, a core that costs a quarter of a full one, jobs that send evenly for
a share of each iteration. Each replay is alone in a process, in which a short one has been before, as numba
compiles in the first. ``--no-compiled`` leaves numba out.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import ROOT, apart, show, tell

#: Bars: seconds with and without numba, megabytes.
WITH_S, WITHOUT_S, MOST_MB = 5.0, 90.0, 400.0
#: What differs from ``pack``, first come, no light and a duty cycle.
POLICIES: list[dict[str, str]] = [
    {},
    *({"sharing": sharing} for sharing in ("always", "interleaved")),
    *(
        {"placement": name}
        for name in (
            "random",
            "first-fit",
            "best-fit",
            "spread",
            "hilbert",
            "rings-aligned",
        )
    ),
    {"placement": "random", "sharing": "always"},
    *({"queueing": name} for name in ("backfill", "shortest-first")),
    *(
        {"light": name}
        for name in ("at-arrival", "when-it-pays", "at-intervals", "ideal")
    ),
]


def philly(share: float = 0.3, compiled: bool = True) -> dict[str, Any]:
    rows, missed = [], []
    limit_s = WITH_S if compiled else WITHOUT_S
    for policy in POLICIES:
        name = ", ".join(policy.values()) or "pack, first come, duty"
        found = {"policy": name, **apart(_replayed, policy, share, compiled)}
        memory_mb = found["memory_mib"] * 1.048576
        rows.append(found)
        tell(f"{name}: {found['replay_s']:.2f} s, {memory_mb:.0f} MB")
        if found["replay_s"] > limit_s or memory_mb > MOST_MB:
            missed.append(f"{name}: {found['replay_s']:.1f} s, {memory_mb:.0f} MB")
    show(
        ["policy", "s", "MB"],
        [
            (
                row["policy"],
                f"{row['replay_s']:.2f}",
                f"{row['memory_mib'] * 1.048576:.0f}",
            )
            for row in rows
        ],
    )
    return {"share": share, "compiled": compiled, "rows": rows, "missed": missed}


PARTS = (philly,)


def _replayed(policy: dict[str, str], share: float, compiled: bool) -> dict[str, Any]:
    if not compiled:
        # As where it is not installed.
        sys.modules["numba"] = cast(Any, None)
    from ringlight.extensions.cluster.clusters import Policies
    from ringlight.extensions.cluster.formats.job_traces import read_job_trace
    from ringlight.extensions.cluster.job_traces import Fit, Sending, fitted, shares_of
    from ringlight.extensions.cluster.simulation.replay import replay
    from ringlight.extensions.cluster.tiers import cluster_of
    from ringlight.fabric.trees import leaf_spine

    cluster = cluster_of(leaf_spine(64, 64, 1e11, oversubscription=4).fabric())
    policies = Policies(**cast(Any, {"placement": "pack", "sharing": "duty", **policy}))
    recorded = read_job_trace(Path(ROOT, "scenarios/traces/philly.csv.gz"))

    def replayed(fit: Fit) -> tuple[int, float]:
        trace = fitted(recorded, 4096, fit, 0)
        shares, rings = shares_of(trace, (Sending(None, share),))
        began = time.perf_counter()
        replay(cluster, trace, shares, rings, policies, 0)
        return len(trace.arrival_s), time.perf_counter() - began

    replayed(Fit(first=3000))
    jobs, seconds = replayed(Fit())
    return {"jobs": jobs, "replay_s": seconds}
