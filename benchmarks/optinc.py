"""How exact OptINC's designed weights are, and in what time that is seen. Prints JSON.

    python benchmarks/optinc.py designed [--sample 4096] [--seed 1]

``designed``: the paper's four cases with weights by formula, *designed, not trained*. Every input there is
through the compressed network (the same function with its used units only), beside the exact mean: inputs,
wrong ones, the largest distance of an output from its goal in levels, seconds. A random sample goes through
the whole network of the paper's sizes, too, and ``apart`` is the largest difference of both networks'
outputs there. ``s`` is time as it passes, ``cpu_s`` the processor's, which others spoil less.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from sys import path as import_path
from typing import Any

import_path.insert(0, str(Path(__file__).resolve().parent.parent))
# layers are small: threads would wait for each other more than they compute
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from fabric.optinc.averaging import combination, goals_of, to_answers
from fabric.optinc.designed import designed as weights_of
from fabric.optinc.network import compressed, forward, light, read, table_of, wrong_of
from fabric.optinc.structure import CASES


def designed(sample: int, seed: int) -> dict[str, Any]:
    rows = []
    all_began, all_cpu = time.perf_counter(), time.process_time()
    for case, structure in CASES.items():
        coding = structure.coding
        begin = time.perf_counter()
        whole = weights_of(structure)
        small = compressed(whole)
        found = wrong_of(table_of(small, coding))
        table_s = time.perf_counter() - begin
        index = np.random.default_rng(seed).integers(0, coding.combinations, sample)
        lights = light(combination(index, coding), coding)
        outputs = forward(whole, lights)
        exact = goals_of(index, coding)
        rows.append(
            {
                "case": case,
                "weights": "designed, not trained",
                "inputs": found.inputs,
                "wrong": found.wrong,
                "worst": found.worst,
                "used_units": small.sizes,
                "largest_weight": max(float(np.abs(weight).max()) for weight in whole.weights),
                "table_s": table_s,
                "sample": sample,
                "sample_wrong": int((to_answers(read(outputs, coding), coding) != exact).sum()),
                "apart": float(np.abs(outputs - forward(small, lights)).max()),
                "s": time.perf_counter() - begin,
            }
        )
    return {"s": time.perf_counter() - all_began, "cpu_s": time.process_time() - all_cpu, "cases": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known: dict[str, Callable[[int, int], Any]] = {"designed": designed}
    parser.add_argument("parts", nargs="*", default=list(known), help=f"of {', '.join(known)}")
    parser.add_argument("--sample", type=int, default=4096, help="inputs through the whole network")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    print(json.dumps({name: known[name](chosen.sample, chosen.seed) for name in chosen.parts}, indent=2))


if __name__ == "__main__":
    main()
