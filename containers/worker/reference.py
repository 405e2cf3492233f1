"""The same training in one process: what every rank must end with, bit for bit.

``python3 -m containers.worker.reference spec.json`` prints the outcome as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from containers.worker.model import Replica, fingerprint
from containers.worker.spec import WorkerSpec, read_spec
from fabric.collectives import all_reduce, apply_schedule


def train_in_one_process(spec: WorkerSpec) -> dict[str, object]:
    """Train as the job of ``spec`` does, its all-reduce computed by ``apply_schedule``.

    Returns ``parameters_sha256``, ``loss_first``, ``loss_last`` (nats, whole training set) and
    ``accuracy`` (held-out images, 0..1). ``spec.rank`` does not matter.
    """
    schedule = all_reduce(spec.collective, spec.world_size)
    replicas = [
        Replica(rank, spec.world_size, spec.gradient_bytes, spec.batch, spec.seed, spec.learning_rate)
        for rank in range(spec.world_size)
    ]
    loss_first = replicas[0].loss()
    for iteration in range(spec.iterations):
        for replica in replicas:
            replica.compute(iteration)
        sums = apply_schedule(schedule, [replica.buffer for replica in replicas])
        for replica, summed in zip(replicas, sums, strict=True):
            replica.buffer[:] = summed
            replica.update(iteration)
    prints = {fingerprint(replica.parameters) for replica in replicas}
    if len(prints) != 1:
        raise ArithmeticError(f"collective {spec.collective!r} leaves the ranks with different parameters")
    return {
        "parameters_sha256": prints.pop(),
        "loss_first": loss_first,
        "loss_last": replicas[0].loss(),
        "accuracy": replicas[0].accuracy(),
    }


def main() -> None:
    sys.stdout.write(json.dumps(train_in_one_process(read_spec(Path(sys.argv[1])))) + "\n")


if __name__ == "__main__":
    main()
