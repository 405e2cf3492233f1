"""A scenario run beside a busy loop that takes one processor for a third of its time. Needs root.

The loop is pinned to processor 0 and busy for ``--busy`` of every ``--period`` seconds; with a period as long
as the run, it is one long disturbance. Prints the figures, the verdict, and what was repeated. The quiet
figures are those of the same command with ``--busy 0``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", type=Path, default=ROOT / "scenarios/disaggregation.yaml")
    parser.add_argument("--busy", type=float, default=1 / 3, help="share of the time, 0..1")
    parser.add_argument("--period", type=float, default=3.0, help="seconds")
    chosen, options = parser.parse_known_args()
    command = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "run",
        str(chosen.scenario),
        "--json",
        *options,
    ]
    loop = subprocess.Popen(
        [sys.executable, "-c", _LOOP, str(chosen.busy), str(chosen.period)], start_new_session=True
    )
    began = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    finally:
        loop.kill()
        loop.wait(5)
    if done.returncode:
        raise SystemExit(done.returncode)
    result = json.loads(done.stdout)
    fidelity = result["fidelity"]
    print(
        json.dumps(
            {
                "busy": chosen.busy,
                "period_s": chosen.period,
                "took_s": round(time.monotonic() - began, 1),
                "reduction_percent": {
                    name: round(case["reduction_percent"], 1) for name, case in result["cases"].items()
                },
                "verdict": fidelity["verdict"],
                "reasons": fidelity["reasons"],
                "repeated": fidelity.get("repeated", []),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
