"""Random changes over emulated optical switches of all management protocols, with faults injected.

Neither root nor a testbed: switches (modelled, each a thread with its protocol on a socket), drivers, circuit
manager with its database, and reconciler run in this process. Before one operation in 1/R a fault of a random
kind is injected into one of the switches, which lasts for up to ten operations; after every 500 operations
nothing is injected any more, and every switch must come to carry what the manager's intent says: what it
reports, and what its light paths have. The bar: it always does, nothing crashes, and threads, open
descriptors and memory are what they were.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import show, spread, tell
from tests.optical_soak import Report, soak

SETTLE_EVERY = 500
#: What the resident memory may be more at the end than after a quarter of the operations, MiB. It creeps up
#: by 0.2 MiB in 500 operations. Python's objects grow and shrink with the controller's restarts: 0.5 MiB from
#: 1,000 operations to 3,000, of which half are replies under way and most else events (the bus keeps the last
#: 2,000). The rest is SQLite's cache, which follows the audit up to that one's greatest length, and what the
#: C allocator holds free.
GROWTH_MIB = 16.0


def optical_soak(
    operations: int = 10_000, seed: int = 1, rate: float = 0.05
) -> dict[str, Any]:
    """``rate``: faults per operation."""
    logging.basicConfig(level=logging.CRITICAL)

    def said(number: int) -> None:
        tell(f"{number} of {operations} operations")

    with tempfile.TemporaryDirectory() as directory:
        report = soak(
            Path(directory),
            operations,
            seed,
            rate,
            settle_every=SETTLE_EVERY,
            tell=said,
        )
    write(report)
    settled = {"settled": spread(report.settled_s)} if report.settled_s else {}
    return {**vars(report), **settled, "missed": misses(report)}


PARTS = (optical_soak,)


def growth_mib(report: Report) -> float:
    """Growth in MiB from a quarter of the run, when all has been used once, to its end."""
    return report.memory_mib[-1] - report.memory_mib[len(report.memory_mib) // 4]


def misses(report: Report) -> list[str]:
    found = [*report.wrong, *report.crashes]
    for what, (before, after) in (
        ("threads", report.threads),
        ("descriptors", report.descriptors),
    ):
        if after > before:
            found.append(f"{what}: {after} at the end, {before} at the start")
    if growth_mib(report) > GROWTH_MIB:
        found.append(
            f"memory: {growth_mib(report):.1f} MiB more than after a quarter of the operations"
        )
    return found


def write(report: Report) -> None:
    """Print the tables of the page."""
    tell(f"{report.operations} operations in {report.seconds:.0f} s\n")
    show(["operation: outcome", "times"], report.outcomes.most_common())
    show(["refused with", "times"], report.refusals.most_common())
    faults = [
        (kind, times, report.acted[kind])
        for kind, times in report.injected.most_common()
    ]
    total = ("all", report.injected.total(), report.acted.total())
    show(["fault", "injected", "acted"], [*faults, total])
    tell(f"memory: {growth_mib(report):+.1f} MiB after a quarter")
