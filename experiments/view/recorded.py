"""Turns a run folder into what the page draws: the documents and events of the REST API, as of a live lab.

A *take* is one run: the fabric as ``GET /v1/fabric`` tells it, the light and the jobs at its begin, and what
happened then as events of ``GET /v1/events``. The page reads a live lab into the same form, and one function
draws both. Times are seconds after the release of the first jobs.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from ringlight.controller.jobs.laps import Laps
from ringlight.controller.packets.attachment import FabricDocument, fabric_document
from ringlight.experiments.language.plan import JobPlan, RunPlan
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record import events as record
from ringlight.experiments.record.events import Record, read_records
from ringlight.experiments.record.folder import environment_of, experiment_of
from ringlight.experiments.record.runs import AGAIN
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, circuit_cross_connects

#: Values of a port's rate in one take: more are averaged.
MOST_SAMPLES = 2000
#: Bits per second of the unit in which a take tells rates.
RATE_UNIT_BPS = 1000.0
_FABRIC: TypeAdapter[FabricDocument] = TypeAdapter(FabricDocument)

Event = dict[str, Any]
#: Times, and what was received and sent, bits per second.
_Series = tuple[list[float], list[float], list[float]]


class Recorded:
    """A run folder that is read once, or the runs of some ``arms`` of it. Raises ScenarioError, one line
    naming the file."""

    def __init__(self, folder: Path, arms: Collection[str] = ()) -> None:
        self.folder = folder
        self.environment = environment_of(folder)
        self._experiment = experiment_of(folder)
        plans = {plan.name: plan for plan in self._experiment.plans_of(arms)}
        self._plans: dict[str, RunPlan] = {}
        self._records: dict[str, list[Record]] = {}
        for one in read_records(folder / "events.jsonl"):
            if isinstance(one, record.RunStarted) and one.run.removesuffix(AGAIN) in plans:
                self._plans[one.run] = plans[one.run.removesuffix(AGAIN)]
            if one.run:
                self._records.setdefault(one.run, []).append(one)
        if not self._plans:
            raise ScenarioError(f"{folder}: no run has begun there, so there is nothing to see")

    def index(self) -> dict[str, Any]:
        """The folder's title, how its figures are known, and the runs that can be taken."""
        return {
            "title": self._experiment.spec.name,
            "description": self._experiment.spec.description or "",
            "folder": self.folder.name,
            "label": self.environment.get("label", "measured"),
            "baseline": next((one.baseline for one in self._experiment.spec.compare), None),
            "takes": [
                {
                    "name": name,
                    "arm": plan.arm,
                    "title": plan.title,
                    "place": plan.place,
                    "eventful": any(not event.when.start for event in plan.events),
                }
                for name, plan in self._plans.items()
            ],
        }

    def take(self, name: str) -> dict[str, Any]:
        """One run as the page draws it. Raises KeyError for a run that the folder does not have."""
        plan, records = self._plans[name], self._records[name]
        started = next(one for one in records if isinstance(one, record.RunStarted))
        begin = next((one.at for one in records if isinstance(one, record.Released)), started.t)
        scale, fabric = plan.setting.scale.rate, plan.setting.fabric
        first = min(begin, started.t)
        told = sorted(_events(plan, records), key=lambda event: event["t"])
        for number, event in enumerate(told, start=1):
            event["id"] = number
        laps = {job.name: _laps(job, started, records) for job in plan.jobs}
        ends = [event["t"] for event in told] + [lap["end"] for of_job in laps.values() for lap in of_job]
        return {
            "name": name,
            "arm": plan.arm,
            "title": plan.title,
            "label": self.environment.get("label", "measured"),
            "clock_s": begin,
            "span": [first - begin, max(ends, default=begin) - begin],
            "fabric": _FABRIC.dump_python(fabric_document(fabric, scale), mode="json", by_alias=True),
            "light": _light(fabric, started.circuits or plan.circuits),
            "jobs": [_job(job, started) for job in plan.jobs],
            "events": [_moved(event, begin) for event in told],
            "laps": {job: _columns(of_job, begin) for job, of_job in laps.items()},
            "rates": _resampled(self._rates.get(name, {}), begin),
        }

    @cached_property
    def _rates(self) -> dict[str, dict[str, _Series]]:
        """Rates by run and port."""
        found: dict[str, dict[str, _Series]] = {}
        file = self.folder / "throughput.csv"
        if not file.exists():
            return found
        try:
            with file.open(newline="", encoding="utf-8") as text:
                rows = csv.reader(text)
                next(rows, None)
                for row in rows:
                    # A crash cuts the last line short.
                    if len(row) < 8 or not row[7]:
                        continue
                    run, t, switch, port, _, _, rx, tx = row
                    ports = found.setdefault(run, {})
                    series = ports.get(where := f"{switch}:{port}")
                    if series is None:
                        series = ports[where] = ([], [], [])
                    series[0].append(float(t))
                    series[1].append(float(rx))
                    series[2].append(float(tx))
        except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
            raise ScenarioError(f"{file}: it is not as ringlight writes it: {error}") from None
        return found


def _job(plan: JobPlan, started: record.RunStarted) -> dict[str, Any]:
    training = plan.training
    return {
        "id": plan.name,
        "name": plan.name,
        "title": plan.title,
        "state": "PENDING",
        "gpus": list(started.jobs.get(plan.name, plan.ranks)),
        "gradient_bytes": None if training is None else training.gradient_bytes,
        "iterations": plan.iterations,
    }


def _light(fabric: Fabric, circuits: Iterable[Sequence[str]]) -> dict[str, list[dict[str, Any]]]:
    try:
        found = circuit_cross_connects(fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits])
    except ValueError:
        # Light of another kind than circuits.
        return {}
    return {name: [_xc(one.ingress, one.egress) for one in sorted(group)] for name, group in found.items()}


def _xc(ingress: int, egress: int | None, t_dark: float | None = None, t_lit: float | None = None) -> Event:
    return {"ingress": ingress, "egress": egress, "wavelength": None, "t_dark": t_dark, "t_lit": t_lit}


def _laps(job: JobPlan, started: record.RunStarted, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Whole iterations of a job, in order."""
    laps = Laps(job.name, len(started.jobs.get(job.name, ())) or job.gpus)
    of_job = (vars(one) for one in records if isinstance(one, record.Iteration) and one.job == job.name)
    return [asdict(lap) for lap in laps.of(of_job)]


def _columns(laps: Sequence[Mapping[str, Any]], begin: float) -> dict[str, list[float]]:
    def of(key: str, off: float = 0.0) -> list[float]:
        return [round(lap[key] - off, 6) for lap in laps]

    spans = {"begin": of("begin", begin), "end": of("end", begin)}
    return {
        "i": [lap["i"] for lap in laps],
        **spans,
        "compute_s": of("compute_s"),
        "allreduce_s": of("allreduce_s"),
    }


def _resampled(ports: Mapping[str, _Series], begin: float) -> dict[str, Any]:
    """Every port's rates as means over the same steps, in :data:`RATE_UNIT_BPS`.

    A sample holds from the one before it up to its time, as a counter that was read then.
    """
    times = [t for series in ports.values() for t in (series[0][0], series[0][-1])]
    if not times:
        return {"t0": 0.0, "step_s": 1.0, "ports": {}}
    first, last = min(times), max(times)
    longest = max(len(series[0]) for series in ports.values())
    steps = max(1, min(longest, MOST_SAMPLES))
    step_s = max((last - first) / steps, 1e-6)
    return {
        "t0": first - begin,
        "step_s": step_s,
        "unit_bps": RATE_UNIT_BPS,
        "ports": {
            port: {"rx": _means(at, rx, first, step_s, steps), "tx": _means(at, tx, first, step_s, steps)}
            for port, (at, rx, tx) in ports.items()
        },
    }


def _means(
    at: Sequence[float], values: Sequence[float], first: float, step_s: float, steps: int
) -> list[int]:
    step = np.minimum(((np.asarray(at) - first) / step_s).astype(int), steps)
    counts = np.bincount(step, minlength=steps + 1)
    sums = np.bincount(step, weights=np.asarray(values), minlength=steps + 1)
    # A step without a sample of its own: as it was.
    known = np.maximum.accumulate(np.where(counts > 0, np.arange(steps + 1), 0))
    means = np.divide(sums, counts, out=np.zeros(steps + 1), where=counts > 0) / RATE_UNIT_BPS
    return [round(value) for value in means[known].tolist()]


def _moved(event: Event, begin: float) -> Event:
    """An event with its times on the take's clock."""
    moved = {**event, "t": round(event["t"] - begin, 6)}
    if "timeline" in event:
        moved["timeline"] = [{**one, "t": round(one["t"] - begin, 6)} for one in event["timeline"]]
    if "changes" in event:
        moved["changes"] = {
            name: {key: [_moved_xc(xc, begin) for xc in group] for key, group in change.items()}
            for name, change in event["changes"].items()
        }
    return moved


def _moved_xc(xc: Event, begin: float) -> Event:
    times = {key: xc.get(key) for key in ("t_dark", "t_lit")}
    return {**xc, **{key: None if t is None else round(t - begin, 6) for key, t in times.items()}}


# Records as events of the stream.


def _events(plan: RunPlan, records: Iterable[Record]) -> Iterator[Event]:
    for one in records:
        yield from ({"t": one.t, **event} for event in told_of(plan, one))


def told_of(plan: RunPlan, one: Record) -> Iterator[Event]:
    """A record as events of the stream; none for what the page does not show."""
    match one:
        case record.JobArrived(job=job):
            yield {"event": "job", "job": job, "name": job, "state": "PENDING", "error": None}
        case record.GpusGranted(job=job):
            yield {"event": "job", "job": job, "name": job, "state": "STARTING", "error": None}
        case record.JobState():
            gpus = {"gpus": list(one.gpus)} if one.gpus else {}
            yield {
                "event": "job",
                "job": one.job,
                "name": one.job,
                "state": one.state,
                "error": one.reason,
                **gpus,
            }
        case record.WorkerLost():
            yield {"event": "lost", "job": one.job, "rank": one.rank, "gpu": one.gpu, "text": one.reason}
        case record.JobRecovered():
            yield {"event": "recovered", "job": one.job, "iteration": one.iteration, "gpus": list(one.gpus)}
        case record.ActionBegun():
            yield {"event": "action", "state": "begun", "name": one.name, "do": one.do, "target": one.target}
        case record.ActionEnded():
            yield from _ended(plan, one)
        case record.SwitchDrifted():
            yield {"event": "drift", "switch": one.switch, "text": one.said, "planned": one.planned}
        case record.SwitchMended():
            yield {
                "event": "drift_over",
                "switch": one.switch,
                "text": f"{one.what} after {one.after_s:.3f} s",
            }
        case record.ProcessEnded():
            yield {"event": "process", "state": "down", "name": one.name, "text": f"{one.process} {one.how}"}
        case record.ProcessBack():
            said = record.process_called(one.kind, one.name)
            yield {"event": "process", "state": "up", "name": one.name, "text": said, "away_s": one.away_s}
        case record.EventLate():
            yield {"event": "late", "text": one.said}
        case record.Flow(t_lit=float() as t_lit) if one.t_close is not None:
            told = {"gpu": one.gpu, "peer": one.peer, "wavelength": one.wavelength, "t_end": one.t_close}
            yield {"event": "flow", "t": t_lit, **told}
        case _:
            return


def _ended(plan: RunPlan, one: record.ActionEnded) -> Iterator[Event]:
    event = next((event for event in plan.events if event.name == one.name), None)
    result = one.result
    if changes := _changes(result.get("results") or result.get("optical_switches") or {}):
        yield {
            "event": "circuits",
            "who": f"event {one.name} of the scenario",
            "changes": changes,
            "timeline": result.get("timeline", []),
            "problems": result.get("problems", []),
            "outcome": "done" if one.error is None else "failed",
        }
    back = one.do == "restore" or (event is not None and event.back_after_s > 0.0)
    done = {"name": one.name, "do": one.do, "target": one.target, "back": back, "error": one.error}
    plan_told = {
        key: result["plan"][key] for key in ("moves", "fibres_moved") if key in result.get("plan", {})
    }
    yield {"event": "action", "state": "ended", **done, **plan_told}


def _changes(switches: Mapping[str, Any]) -> dict[str, dict[str, list[Event]]]:
    """Cross-connects by switch, of a regroup's results or of an answer to a change of circuits."""
    found: dict[str, dict[str, list[Event]]] = {}
    for name, told in switches.items():
        results = told if isinstance(told, list) else told.get("results", [])
        change: dict[str, list[Event]] = {"remove": [], "add": []}
        for one in results:
            # What was kept is told, too.
            if one["action"] in change:
                times = one.get("t_dark"), one.get("t_lit")
                change[one["action"]].append(_xc(one["ingress"], one.get("egress"), *times))
        if any(change.values()):
            found[name] = change
    return found
