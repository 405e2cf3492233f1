"""The same training in one process: what every rank must end with, bit for bit.

``python3 -m ringlight.containers.worker.reference spec.json`` prints the outcome as JSON. With ``4:0 3:17``
behind it the job has 4 ranks from the first iteration on, and 3 from iteration 17 on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from ringlight.containers.worker.model import Array, Replica, fingerprint
from ringlight.containers.worker.reducers import Answers, Summed, summed_of
from ringlight.containers.worker.spec import WorkerSpec, read_spec
from ringlight.fabric.collectives import all_reduce, apply_schedule

#: How many ranks a job has, and from which iteration on.
Segment = tuple[int, int]
#: What every rank holds after an all-reduce, from the ranks' gradients, both in order of rank.
Exchange = Callable[[Sequence[Array]], Sequence[Array]]


def train_in_one_process(
    spec: WorkerSpec,
    segments: Sequence[Segment] | None = None,
    exchange: Exchange | None = None,
) -> dict[str, object]:
    """Train as the job of ``spec`` does, its all-reduce computed by ``apply_schedule``, of devices and of
    whole numbers by ``reducers.summed_of``, or by ``exchange`` whatever ``spec.collective`` is. Sums that are
    not exact need ``gradient_bytes`` of 4 ``PARAMETERS``, so without a pad.

    ``segments``: how many ranks it has from which iteration on, the first from 0 on, none sooner than the one
    before; None: ``spec.world_size`` throughout. Returns ``parameters_sha256``, ``loss_first``, ``loss_last``
    (nats, whole training set) and ``accuracy`` (held-out images, 0..1); of devices also ``unlike``, the share
    of their answers that are not the mean of all ranks' numbers. ``spec.rank`` does not matter.
    Raises ValueError for segments that cannot be, ArithmeticError when ranks end with different parameters.
    """
    parts = [(spec.world_size, 0)] if segments is None else list(segments)
    firsts = [first for _, first in parts]
    if (
        not firsts
        or firsts[0] != 0
        or firsts != sorted(firsts)
        or firsts[-1] > spec.iterations
    ):
        raise ValueError(
            f"segments begin at {firsts}: expected 0 first, then up to {spec.iterations} in order"
        )
    answers = Answers()
    whole = Replica(
        0, 1, spec.gradient_bytes, spec.batch, spec.seed, spec.learning_rate
    )
    loss_first = whole.loss()
    for (ranks, first), last in zip(parts, [*firsts[1:], spec.iterations], strict=True):
        whole.parameters = _train(
            spec, ranks, whole.parameters, range(first, last), exchange, answers
        )
    unlike = {"unlike": answers.unlike / answers.all} if answers.all else {}
    return {
        "parameters_sha256": fingerprint(whole.parameters),
        "loss_first": loss_first,
        "loss_last": whole.loss(),
        "accuracy": whole.accuracy(),
        **unlike,
    }


def _train(
    spec: WorkerSpec,
    ranks: int,
    parameters: Array,
    iterations: Iterable[int],
    exchange: Exchange | None,
    answers: Answers,
) -> Array:
    """Return the parameters after these iterations on ``ranks`` ranks."""
    summed = summed_of(spec)
    exchange = exchange or _exchange(spec.collective, ranks, summed_of(spec, answers))
    replicas = [
        Replica(
            rank,
            ranks,
            spec.gradient_bytes,
            spec.batch,
            spec.seed,
            spec.learning_rate,
            summed,
        )
        for rank in range(ranks)
    ]
    for replica in replicas:
        replica.parameters = parameters.copy()
    for iteration in iterations:
        for replica in replicas:
            replica.compute(iteration)
        sums = exchange([replica.buffer for replica in replicas])
        for replica, its in zip(replicas, sums, strict=True):
            replica.buffer[:] = its
            replica.update(iteration)
    if len({fingerprint(replica.parameters) for replica in replicas}) != 1:
        raise ArithmeticError(
            f"collective {spec.collective!r} leaves the ranks with different parameters"
        )
    return replicas[0].parameters


def _exchange(collective: str, ranks: int, summed: Summed | None) -> Exchange:
    if summed is None:
        return partial(apply_schedule, all_reduce(collective, ranks))
    return lambda vectors: [summed(vectors)] * ranks


def main() -> None:
    segments = [
        (int(ranks), int(first))
        for ranks, first in (word.split(":") for word in sys.argv[2:])
    ]
    outcome = train_in_one_process(read_spec(Path(sys.argv[1])), segments or None)
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
