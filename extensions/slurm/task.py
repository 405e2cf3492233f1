"""``python -m ringlight.extensions.slurm.task FOLDER``: a task of a job in Slurm, one rank of a training.

FOLDER holds ``job.json``: the ``settings`` of the job's workers, and the IP address of each node's GPU. The task
executes the worker that containers run, in a folder of its own there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringlight.containers.worker.__main__ import main as work

#: Environment variable with the job's nodes, separated by spaces, in the order of its ranks.
NODES = "RINGLIGHT_NODES"
SCRIPT = f"""\
#!/bin/sh
{NODES}="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\\n' ' ')"
export {NODES}
exec srun --kill-on-bad-exit=1 "$RINGLIGHT_PYTHON" -m ringlight.extensions.slurm.task "$RINGLIGHT_JOB"
"""


def spec_of(job: Mapping[str, Any], nodes: list[str], rank: int) -> dict[str, Any]:
    """Return the worker's orders of a rank. Raises KeyError for a node without an address."""
    peers = [job["addresses"][node] for node in nodes]
    return {
        **job["settings"],
        "rank": rank,
        "world_size": len(nodes),
        "peers": peers,
    }


def main() -> int:
    """Do the work of one rank. Return the exit code."""
    folder, rank = Path(sys.argv[1]), int(os.environ["SLURM_PROCID"])
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    own = folder / os.environ.get("SLURM_RESTART_COUNT", "0") / str(rank)
    own.mkdir(parents=True)
    spec = spec_of(job, os.environ[NODES].split(), rank)
    (own / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    # Nobody else waits for the job: its ranks begin as soon as they are connected.
    (own / "go").write_text(json.dumps({"at": time.monotonic()}), encoding="utf-8")
    return work(own)


if __name__ == "__main__":
    sys.exit(main())
