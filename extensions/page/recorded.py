"""Turns a run folder into what the page draws: the documents and events of the REST API, as of a live lab.

A *take* is one run: the fabric as ``GET /v1/fabric`` tells it, the light and the jobs at its begin, and what
happened then as events of ``GET /v1/events``. The page reads a live lab into the same form, and one function
draws both. Times are seconds after the release of the first jobs.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.folder import environment_of, experiment_of
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.runs import AGAIN
from ringlight.extensions.page.api_events import cross_connect, events_of, moved
from ringlight.extensions.page.lightpaths import lightpaths
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, circuit_cross_connects

#: Values of a port's rate in one take: more are averaged.
MOST_SAMPLES = 2000
#: Bits per second of the unit in which a take tells rates.
RATE_UNIT_BPS = 1000.0
_FABRIC: TypeAdapter[FabricDocument] = TypeAdapter(FabricDocument)

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
        for entry in read_records(folder / "events.jsonl"):
            if (
                isinstance(entry, record.RunStarted)
                and entry.run.removesuffix(AGAIN) in plans
            ):
                self._plans[entry.run] = plans[entry.run.removesuffix(AGAIN)]
            if entry.run:
                self._records.setdefault(entry.run, []).append(entry)
        if not self._plans:
            raise ScenarioError(
                f"{folder}: no run has begun there, so there is nothing to see"
            )

    def index(self) -> dict[str, Any]:
        """Return the folder's title, how its figures are known, and the runs that can be taken."""
        return {
            "title": self._experiment.spec.name,
            "description": self._experiment.spec.description or "",
            "folder": self.folder.name,
            "label": self.environment.get("label", "measured"),
            "baseline": next(
                (compare.baseline for compare in self._experiment.spec.compare), None
            ),
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
        """Return one run as the page draws it. Raises KeyError for a run that the folder does not have."""
        plan, records = self._plans[name], self._records[name]
        started = next(
            entry for entry in records if isinstance(entry, record.RunStarted)
        )
        begin = next(
            (entry.at for entry in records if isinstance(entry, record.Released)),
            started.t,
        )
        scale, fabric = plan.setting.scale.rate, plan.setting.fabric
        first = min(begin, started.t)
        events_told = sorted(events_of(plan, records), key=lambda event: event["t"])
        for number, event in enumerate(events_told, start=1):
            event["id"] = number
        of_job: dict[str, list[record.Iteration]] = {job.name: [] for job in plan.jobs}
        for entry in records:
            if isinstance(entry, record.Iteration):
                of_job[entry.job].append(entry)
        laps = {job.name: _laps(job, started, of_job[job.name]) for job in plan.jobs}
        events = [moved(event, begin) for event in events_told]
        computed = next(
            (entry for entry in records if isinstance(entry, record.JobsComputed)), None
        )
        # Rounded, as the page has them: an event that is past the end is never reached.
        times = [0.0, first - begin, *(event["t"] for event in events)]
        times += [lap["end"] - begin for of_job in laps.values() for lap in of_job]
        return {
            "name": name,
            "arm": plan.arm,
            "title": plan.title,
            "label": self.environment.get("label", "measured"),
            "clock_s": begin,
            "span": [min(times), max(times)],
            # The extensions of these keys may not be installed.
            "fabric": {"grids": [], "rings": [], "averagers": []}
            | _FABRIC.dump_python(
                fabric_document(fabric, scale), mode="json", by_alias=True
            ),
            "light": _light(fabric, started.circuits or plan.circuits),
            "jobs": [_job(job, started) for job in plan.jobs],
            "events": events,
            "laps": {job: _columns(of_job, begin) for job, of_job in laps.items()},
            "lightpaths": lightpaths(plan, records, begin),
            **(computed.held(plan, begin) if computed is not None else {}),
            "rates": _resampled(self._rates.get(name, {}), begin),
        }

    @cached_property
    def _rates(self) -> dict[str, dict[str, _Series]]:
        """Return the rates by run and port."""
        rates: dict[str, dict[str, _Series]] = {}
        file = self.folder / "throughput.csv"
        if not file.exists():
            return rates
        try:
            with file.open(newline="", encoding="utf-8") as text:
                rows = csv.reader(text)
                next(rows, None)
                for row in rows:
                    # A crash cuts the last line short.
                    if len(row) < 8 or not row[7]:
                        continue
                    run, t, switch, port, _, _, rx, tx = row
                    ports = rates.setdefault(run, {})
                    series = ports.get(where := f"{switch}:{port}")
                    if series is None:
                        series = ports[where] = ([], [], [])
                    if series[0] and series[0][-1] == float(t):
                        # Of a simulation by an earlier version: of each GPU at the port, one of which moved.
                        series[1][-1] += float(rx)
                        series[2][-1] += float(tx)
                        continue
                    series[0].append(float(t))
                    series[1].append(float(rx))
                    series[2].append(float(tx))
        except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
            raise ScenarioError(
                f"{file}: it is not as ringlight writes it: {error}"
            ) from None
        return rates


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


def _light(
    fabric: Fabric, circuits: Iterable[Sequence[str]]
) -> dict[str, list[dict[str, Any]]]:
    try:
        cross_connects = circuit_cross_connects(
            fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits]
        )
    except ValueError:
        # Light of another kind than circuits.
        return {}
    return {
        name: [
            cross_connect(connect.ingress, connect.egress) for connect in sorted(group)
        ]
        for name, group in cross_connects.items()
    }


def _laps(
    job: JobPlan, started: record.RunStarted, iterations: Iterable[record.Iteration]
) -> list[dict[str, Any]]:
    """Return the whole iterations of a job, in order, from those of its ranks."""
    laps = Laps(job.name, len(started.jobs.get(job.name, ())) or job.gpus)
    return [asdict(lap) for lap in laps.of(map(vars, iterations))]


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
            port: {
                "rx": _means(sample_times, rx, first, step_s, steps),
                "tx": _means(sample_times, tx, first, step_s, steps),
            }
            for port, (sample_times, rx, tx) in ports.items()
        },
    }


def _means(
    times: Sequence[float],
    values: Sequence[float],
    first: float,
    step_s: float,
    steps: int,
) -> list[int]:
    step = np.minimum(((np.asarray(times) - first) / step_s).astype(int), steps)
    counts = np.bincount(step, minlength=steps + 1)
    sums = np.bincount(step, weights=np.asarray(values), minlength=steps + 1)
    # A step without a sample of its own: as it was.
    known = np.maximum.accumulate(np.where(counts > 0, np.arange(steps + 1), 0))
    means = (
        np.divide(sums, counts, out=np.zeros(steps + 1), where=counts > 0)
        / RATE_UNIT_BPS
    )
    return [round(value) for value in means[known].tolist()]
