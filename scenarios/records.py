"""What a run leaves in ``events.jsonl``, read back as runs, jobs and iterations. No judgement here.

Every line is one JSON object with ``t`` (CLOCK_MONOTONIC seconds of the emulating host, the same clock in
every container) and ``event``. The runner writes its own events; the workers' events are copied with
``run``, ``job`` and ``rank`` added. ``docs/result-schema.md`` lists them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from experiments.language.text import ScenarioError, read_text

Event = dict[str, Any]
#: In place of a runtime in environment.json: nothing ran, the run was computed in virtual time.
SIMULATED = "simulated"
Kind = Literal["case", "variant", "live", "fabric", "trouble", "sweep"]
#: Events of a run that :class:`Run` has fields for.
_FIELDS = frozenset(("run_started", "released", "circuits", "regrouped", "cpu", "reference", "run_ended"))


@dataclass(frozen=True)
class Iteration:
    """One iteration of one rank. All times are CLOCK_MONOTONIC seconds.

    ``lateness_s``: how late the timer of the emulated compute woke. ``stall_s``: longest time inside the
    all-reduce in which no byte moved at this rank. ``stalls``: when such times began and ended, as far as
    they were no short ones. ``flows``: how many an O-NIC was asked for. ``loss`` is NaN in a simulated run.
    """

    rank: int
    index: int
    start: float
    compute_end: float
    end: float
    lateness_s: float
    stall_s: float
    loss: float
    stalls: tuple[tuple[float, float], ...] = ()
    flows: int = 0

    @property
    def compute_s(self) -> float:
        return self.compute_end - self.start

    @property
    def all_reduce_s(self) -> float:
        return self.end - self.compute_end


@dataclass(frozen=True)
class JobRun:
    """One job in one run. ``gpus`` in rank order; ``ready`` and ``done`` are worker events by rank."""

    name: str
    gpus: tuple[str, ...]
    iterations: tuple[Iteration, ...]
    ready: Mapping[int, Event]
    done: Mapping[int, Event]
    reference_sha256: str | None = None

    @property
    def end(self) -> float:
        """When the last rank ended its last iteration (CLOCK_MONOTONIC seconds)."""
        return max(it.end for it in self.iterations)


@dataclass(frozen=True)
class Load:
    """Shares (0..1) of all processors up to ``t``: busy, of that stolen by the hypervisor, and taken by
    processes that are no part of the lab; None where that was not recorded."""

    t: float
    busy: float
    stolen: float | None
    others: float | None


@dataclass(frozen=True)
class Run:
    """One run: its jobs together, from their common release to the end of the last.

    Of a regrouping scenario, ``case`` is the case and ``placement`` fragmented, regrouped or live; of a
    comparison, ``case`` is the fabric and ``variant`` the trouble or point of the sweep. ``circuits_before``
    and ``circuits`` are pairs of port names before and after the regroup (the same where there was none).
    ``cpu`` holds the processors' load while it ran, ``notes`` the run's other events that are no
    worker's, ``point`` what a run of a sweep varied. ``simulated``: no worker ran, so none has said a word.
    """

    name: str
    kind: Kind
    case: str
    variant: str | None
    placement: str
    repeat: int
    released: float
    ended: float
    jobs: Mapping[str, JobRun]
    circuits_before: tuple[tuple[str, str], ...]
    circuits: tuple[tuple[str, str], ...]
    regroup: Event | None = None
    cpu: tuple[Load, ...] = field(default=())
    notes: tuple[Event, ...] = field(default=())
    point: Mapping[str, float] = field(default_factory=dict)
    simulated: bool = False

    def noted(self, event: str) -> list[Event]:
        """The notes of one kind, in order."""
        return [note for note in self.notes if note["event"] == event]


class _Object(dict[str, Any]):
    """A JSON object of a file, at any depth, that says where it stands when a key is asked for in vain."""

    __slots__ = ("_where",)

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._where = where

    def __missing__(self, key: str) -> NoReturn:
        raise ScenarioError(
            f"{self._where} lacks the key {key}; another version of ringlight may have made it"
        )


def read_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file. Raises ScenarioError naming the file, later also for a key it lacks."""
    try:
        found: dict[str, Any] = json.loads(read_text(path), object_hook=partial(_Object, f"{path}: it"))
    except json.JSONDecodeError:
        raise ScenarioError(f"{path}: it is not JSON") from None
    return found


def read_lines(path: Path) -> list[Event]:
    """The objects of a file of JSON lines; a last line that a crash cut short is left out.

    Raises ScenarioError naming the file, and the line when any other line is broken; later also for a
    key that an object lacks.
    """
    lines = read_text(path).splitlines()
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(json.loads(line, object_hook=partial(_Object, f"{path}: line {number}")))
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise ScenarioError(f"{path}: line {number} is not JSON") from None
    return events


def read_runs(events: Iterable[Event]) -> list[Run]:
    """The finished runs that count, in order. A run without ``run_ended`` is left out, and so is one that
    was set aside in favour of its repetition, or the other way round.

    Raises ScenarioError, one line, for a finished run of which something is missing.
    """
    grouped: dict[str, list[Event]] = {}
    left_out = set()
    for event in events:
        if event["event"] == "repeated":
            left_out.add(event.get("set_aside"))
        if "run" in event:
            grouped.setdefault(event["run"], []).append(event)
    return [
        _run(group)
        for group in grouped.values()
        if group[0]["event"] == "run_started"
        and group[0]["run"] not in left_out
        and any(e["event"] == "run_ended" for e in group)
    ]


def _run(events: Sequence[Event]) -> Run:
    started = events[0]
    named: dict[str, Event] = {e["event"]: e for e in events if "rank" not in e}
    for needed in ("released", *(["regrouped"] if started["kind"] == "live" else [])):
        if needed not in named:
            raise ScenarioError(f"events.jsonl: run {started['run']} has ended and has no event {needed}")
    before = tuple((a, b) for a, b in started.get("circuits", ()))
    after = named.get("circuits")
    return Run(
        name=started["run"],
        kind=started["kind"],
        case=started["case"],
        variant=started.get("variant"),
        placement=started.get("placement", ""),
        repeat=started["repeat"],
        released=named["released"]["at"],
        ended=named["run_ended"]["t"],
        jobs={job: _job(job, gpus, events) for job, gpus in started["jobs"].items()},
        circuits_before=before,
        circuits=tuple((a, b) for a, b in after["circuits"]) if after else before,
        regroup=named.get("regrouped"),
        cpu=tuple(_loads(events, named["released"]["at"], named["run_ended"]["t"])),
        point=started.get("point") or {},
        simulated=started.get("simulated", False),
        notes=tuple(e for e in events if "rank" not in e and e["event"] not in _FIELDS),
    )


def _loads(events: Iterable[Event], begin: float, end: float) -> Iterator[Load]:
    for e in events:
        if e["event"] == "cpu" and begin <= e["t"] <= end:
            yield Load(e["t"], e["busy"], e.get("stolen"), e.get("others"))


def _job(name: str, gpus: Sequence[str], events: Sequence[Event]) -> JobRun:
    mine = [e for e in events if e.get("job") == name]
    iterations = sorted(
        (
            Iteration(
                e["rank"],
                e["i"],
                e["compute_start"],
                e["compute_end"],
                e["allreduce_end"],
                e["lateness_s"],
                e["max_stall_s"],
                math.nan if e["loss"] is None else e["loss"],
                tuple((begin, end) for begin, end in e.get("stalls", ())),
                e.get("flows", 0),
            )
            for e in mine
            if e["event"] == "iteration"
        ),
        key=lambda it: (it.index, it.rank),
    )
    if silent := set(range(len(gpus))) - {it.rank for it in iterations}:
        run = events[0]["run"]
        raise ScenarioError(
            f"events.jsonl: run {run} has ended and has no iteration of rank {min(silent)} of job {name}"
        )
    reference = next((e["sha256"] for e in mine if e["event"] == "reference"), None)
    return JobRun(
        name,
        tuple(gpus),
        tuple(iterations),
        ready={e["rank"]: e for e in mine if e["event"] == "ready"},
        done={e["rank"]: e for e in mine if e["event"] == "done"},
        reference_sha256=reference,
    )
