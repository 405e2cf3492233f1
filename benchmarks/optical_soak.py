"""Random changes over emulated optical switches of six management protocols, with faults injected.

    python benchmarks/optical_soak.py [--operations N] [--seed N] [--rate R] [--json FILE]

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
from pathlib import Path
from sys import path as import_path

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.optical_soak import Report, soak

SETTLE_EVERY = 500
#: What the resident memory may be more at the end than after a quarter of the operations, MiB: what the
#: allocator keeps, and the database's cache.
GROWTH_MIB = 16.0


def _growth_mib(report: Report) -> float:
    """From a quarter of the run, when all has been used once, to its end."""
    return report.memory_mib[-1] - report.memory_mib[len(report.memory_mib) // 4]


def _misses(report: Report) -> list[str]:
    found = [*report.wrong, *report.crashes]
    for what, (before, after) in (("threads", report.threads), ("descriptors", report.descriptors)):
        if after > before:
            found.append(f"{what}: {after} at the end, {before} at the start")
    if _growth_mib(report) > GROWTH_MIB:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.05, help="faults per operation")
    parser.add_argument("--json", type=Path, help="file for all figures")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)

    def tell(number: int) -> None:
        print(f"{number} of {chosen.operations} operations", file=sys.stderr)

    with tempfile.TemporaryDirectory() as directory:
        report = soak(
            Path(directory), chosen.operations, chosen.seed, chosen.rate, settle_every=SETTLE_EVERY, tell=tell
        )
    _write(report)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(vars(report), indent=1) + "\n")
    misses = _misses(report)
    for miss in misses:
        print(f"MISSED: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
