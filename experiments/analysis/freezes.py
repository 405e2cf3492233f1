"""List the processes that stood still while runs were measured, from the records of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.record.events import Iteration, Record
from ringlight.experiments.record.lab_records import (
    ProcessFrozen,
    ProcessThawed,
    SwitchDrifted,
    process_called,
)
from ringlight.experiments.record.runs import Run

#: A rank's longest time without a byte, beside an iteration of its job: seconds, and iterations.
STALL_S, STALL_ITERATIONS = 1.0, 2.0


@dataclass(frozen=True)
class Standstill:
    """A process that stood still: ``times``, and ``for_s`` seconds in all; ``how`` in words."""

    kind: str
    name: str
    how: str
    times: int
    for_s: float

    def data(self) -> dict[str, Any]:
        """Return the data of a reason."""
        return {"process": process_called(self.kind, self.name), **vars(self)}


def standstills(records: Sequence[Record]) -> list[Standstill]:
    """Return each process that stood still in records of one run.

    A process that does not resume in the records stood still to their end.
    """
    last_s = max((record.t for record in records), default=0.0)
    since: dict[tuple[str, str], ProcessFrozen] = {}
    spans: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for record in records:
        if isinstance(record, ProcessFrozen):
            since[record.kind, record.name] = record
        elif isinstance(record, ProcessThawed):
            begun = since.pop((record.kind, record.name), None)
            how = "how is not on record" if begun is None else begun.how
            spans.setdefault((record.kind, record.name), []).append(
                (how, record.after_s)
            )
    for key, begun in since.items():
        spans.setdefault(key, []).append((begun.how, max(0.0, last_s - begun.t)))
    return [
        Standstill(
            *key,
            ", ".join(dict.fromkeys(how for how, _ in of)),
            len(of),
            sum(s for _, s in of),
        )
        for key, of in spans.items()
    ]


def outside(
    records: Iterable[Record], runs: Iterable[Run], aside: Iterable[str]
) -> list[Record]:
    """Return the records of freezes and of the network that belong to no whole run.

    These are records of link tests, and of runs that were broken off. ``aside``: names of runs that do not
    count.
    """
    elsewhere = {run.name for run in runs} | set(aside)
    kinds = (ProcessFrozen, ProcessThawed, SwitchDrifted)
    return [
        record
        for record in records
        if isinstance(record, kinds) and record.run not in elsewhere
    ]


def stalled(iterations: Iterable[Iteration], expected_s: float) -> Iterator[Iteration]:
    """Yield the iteration with the longest stall of each rank that had no byte for longer than its iterations
    explain. ``expected_s``: seconds of an iteration by the model."""
    worst: dict[int, Iteration] = {}
    for iteration in iterations:
        if (
            iteration.rank not in worst
            or iteration.max_stall_s > worst[iteration.rank].max_stall_s
        ):
            worst[iteration.rank] = iteration
    most_s = STALL_S + STALL_ITERATIONS * expected_s
    yield from (
        iteration
        for _, iteration in sorted(worst.items())
        if iteration.max_stall_s > most_s
    )
