"""Slurm's own times on this machine, by which ``scenarios/examples/slurm.yaml`` is simulated. Needs root.

Jobs of that scenario's fabric come one at a time, so that none waits for another and none shares a link, and
train for a moment. They are none of the scenario's jobs. Of each: from its nodes until its ranks are connected
(``launch``), and from its last iteration until its nodes are free (``ending``). In mode lead a claim comes
first; what its launch takes longer, where no light moves, is ``claiming``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.harness import RINGLIGHT, ROOT, milliseconds, need_root, show, tell
from ringlight.experiments.record.events import Iteration, Record, Released
from ringlight.experiments.record.lines import record_of
from ringlight.extensions.slurm.experiment_records import SlurmJob

SCENARIO = ROOT / "scenarios/examples/slurm.yaml"
#: Longest time of a run, seconds.
LIMIT_S = 400.0


def slurm_start(jobs: int = 8) -> dict[str, Any]:
    """``jobs``: in each mode, 6 s apart."""
    need_root()
    found = {mode: _measured(mode, jobs) for mode in ("stand", "lead")}
    launch, ending = found["stand"]
    claiming = statistics.median(found["lead"][0]) - statistics.median(launch)
    rows = {"launch": launch, "ending": ending, "launch, lead": found["lead"][0]}
    show(
        ("what", "median, ms", "longest, ms"),
        [
            (name, round(1e3 * statistics.median(times)), round(1e3 * max(times)))
            for name, times in rows.items()
        ],
    )
    return {
        **{name: milliseconds(times) for name, times in rows.items()},
        "claiming_ms": round(1e3 * claiming, 1),
    }


PARTS = (slurm_start,)


def _measured(mode: str, jobs: int) -> tuple[list[float], list[float]]:
    """Return launch and ending of each job, seconds."""
    tell(f"mode {mode}: {jobs} jobs")
    document = yaml.safe_load(SCENARIO.read_text(encoding="utf-8"))
    scale = document["scale"]["time"]
    document["jobs"]["slurm"] |= {
        "mode": mode,
        "trace": {
            **{
                key: document["jobs"]["slurm"]["trace"][key]
                for key in ("sends", "trains")
            },
            "generate": {
                "jobs": jobs,
                "gap": f"{6 / scale} s",
                "gaps": "constant",
                "duration": f"{1 / scale} s",
                "durations": "constant",
                # Three are on one leaf, in any mode.
                "sizes": {2: 1, 3: 1},
            },
        },
    }
    document.pop("arms"), document.pop("compare")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "slurm_start.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        words = [
            *RINGLIGHT,
            "run",
            str(path),
            "--runs",
            folder,
            "--runtime",
            "namespace",
        ]
        subprocess.run(words, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        (log,) = Path(folder).glob("*/events.jsonl")
        records = list(_records(log))
    done = [record for record in records if isinstance(record, SlurmJob)]
    return (
        [_released(records, job.job) - job.allocated for job in done],
        [job.freed - _last(records, job.job) for job in done],
    )


def _records(log: Path) -> Iterator[Record]:
    for line in log.read_text(encoding="utf-8").splitlines():
        if (record := record_of(json.loads(line))) is not None:
            yield record


def _released(records: Sequence[Record], job: str) -> float:
    return next(r.at for r in records if isinstance(r, Released) and job in r.jobs)


def _last(records: Sequence[Record], job: str) -> float:
    return max(
        r.allreduce_end for r in records if isinstance(r, Iteration) and r.job == job
    )
