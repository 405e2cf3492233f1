"""Random changes over emulated optical switches of six management protocols, with faults injected.

    python benchmarks/optical_soak.py [--operations N] [--seed N] [--rate R] [--json FILE] [--trace]

Neither root nor a testbed: switches (modelled, each a thread with its protocol on a socket), drivers, circuit
manager with its database, and reconciler run in this process. Before one operation in 1/R a fault of a random
kind is injected into one of the switches, which lasts for up to ten operations; after every 500 operations
nothing is injected any more, and every switch must come to carry what the manager's intent says: what it
reports, and what its light paths have. The bar: it always does, nothing crashes, and threads, open
descriptors and memory are what they were. Ends with 1 where it is missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import tracemalloc
from pathlib import Path
from sys import path as import_path

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.optical_soak import Report, soak

SETTLE_EVERY = 500
#: What the resident memory may be more at the end than after a quarter of the operations, MiB. It creeps up
#: by 0.2 MiB in 500 operations. Python's objects grow and shrink with the controller's restarts: 0.5 MiB from
#: 1,000 operations to 3,000, of which half are replies under way and most else events (the bus keeps the last
#: 2,000). The rest is SQLite's cache, which follows the audit up to that one's greatest length, and what the
#: C allocator holds free.
GROWTH_MIB = 16.0
#: How many lines of the code ``--trace`` shows, and the calls that led to each.
LINES, CALLS = 20, 6


def _growth_mib(report: Report) -> float:
    """Growth in MiB from a quarter of the run, when all has been used once, to its end."""
    return report.memory_mib[-1] - report.memory_mib[len(report.memory_mib) // 4]


def _misses(report: Report, *, traced: bool = False) -> list[str]:
    """``traced``: the trace itself takes memory, which is not judged then."""
    found = [*report.wrong, *report.crashes]
    for what, (before, after) in (("threads", report.threads), ("descriptors", report.descriptors)):
        if after > before:
            found.append(f"{what}: {after} at the end, {before} at the start")
    if not traced and _growth_mib(report) > GROWTH_MIB:
        found.append(f"memory: {_growth_mib(report):.1f} MiB more than after a quarter of the operations")
    return found


def _write(report: Report) -> None:
    print(f"{report.operations} operations in {report.seconds:.0f} s on {os.cpu_count()} processors\n")
    print("| operation: outcome | times |\n|---|---|")
    for outcome, times in report.outcomes.most_common():
        print(f"| {outcome} | {times} |")
    print("\n| refused with | times |\n|---|---|")
    for name, times in report.refusals.most_common():
        print(f"| {name} | {times} |")
    print("\n| fault | injected | acted |\n|---|---|---|")
    for kind, times in report.injected.most_common():
        print(f"| {kind} | {times} | {report.acted[kind]} |")
    print(f"| all | {report.injected.total()} | {report.acted.total()} |\n")
    if report.settled_s:
        print(
            f"settled {len(report.settled_s)} times: median {statistics.median(report.settled_s):.2f} s,"
            f" at most {max(report.settled_s):.2f} s"
        )
    print(f"threads {report.threads[0]} to {report.threads[1]}", end="; ")
    print(f"descriptors {report.descriptors[0]} to {report.descriptors[1]}", end="; ")
    memory = " ".join(f"{mib:.0f}" for mib in report.memory_mib)
    print(f"memory {memory} MiB (after a quarter {_growth_mib(report):+.1f})")


class Trace:
    """Which lines of the code hold more memory at the end than after a quarter of the operations."""

    def __init__(self, operations: int) -> None:
        self._operations = operations
        self._snapshots: list[tracemalloc.Snapshot] = []
        tracemalloc.start(CALLS)

    def look(self, number: int) -> None:
        """Take a snapshot of memory if one is due after ``number`` operations."""
        due = self._operations // 4 if not self._snapshots else self._operations - SETTLE_EVERY + 1
        if number >= due:
            ours = [tracemalloc.Filter(False, tracemalloc.__file__)]
            self._snapshots.append(tracemalloc.take_snapshot().filter_traces(ours))

    def write(self) -> None:
        if len(self._snapshots) < 2:
            return
        first, last = self._snapshots[0], self._snapshots[-1]
        changes = last.compare_to(first, "traceback")
        print(f"\nPython's objects {sum(one.size_diff for one in changes) / 1024:+.0f} KiB (after a quarter)")
        for one in [one for one in changes if one.size_diff > 0][:LINES]:
            print(f"{one.size_diff / 1024:+.1f} KiB, {one.count_diff:+d} blocks")
            print("\n".join(one.traceback.format()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.05, help="faults per operation")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--trace", action="store_true", help="tell which lines hold more memory; slow")
    chosen = parser.parse_args()
    trace = Trace(chosen.operations) if chosen.trace else None
    logging.basicConfig(level=logging.CRITICAL)

    def tell(number: int) -> None:
        print(f"{number} of {chosen.operations} operations", file=sys.stderr)
        if trace is not None:
            trace.look(number)

    with tempfile.TemporaryDirectory() as directory:
        report = soak(
            Path(directory), chosen.operations, chosen.seed, chosen.rate, settle_every=SETTLE_EVERY, tell=tell
        )
    _write(report)
    if trace is not None:
        trace.write()
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(vars(report), indent=1) + "\n")
    misses = _misses(report, traced=chosen.trace)
    for miss in misses:
        print(f"MISSED: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
