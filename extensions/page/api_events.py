"""Records of a run as events of the REST API's stream, which is how the page reads a lab."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record import events as record
from ringlight.experiments.record import lab_records, light_records
from ringlight.experiments.record.events import Record

Event = dict[str, Any]


def events_of(plan: RunPlan, records: Iterable[Record]) -> Iterator[Event]:
    for entry in records:
        yield from ({"t": entry.t, **event} for event in told_of(plan, entry))


def told_of(plan: RunPlan, entry: Record) -> Iterator[Event]:
    """Yield a record as events of the stream; none for records that the page does not show."""
    match entry:
        case record.JobArrived(job=job):
            yield {
                "event": "job",
                "job": job,
                "name": job,
                "state": "PENDING",
                "error": None,
            }
        case record.GpusGranted(job=job):
            yield {
                "event": "job",
                "job": job,
                "name": job,
                "state": "STARTING",
                "error": None,
            }
        case record.JobState():
            gpus = {"gpus": list(entry.gpus)} if entry.gpus else {}
            yield {
                "event": "job",
                "job": entry.job,
                "name": entry.job,
                "state": entry.state,
                "error": entry.reason,
                **gpus,
            }
        case record.WorkerLost():
            yield {
                "event": "lost",
                "job": entry.job,
                "rank": entry.rank,
                "gpu": entry.gpu,
                "text": entry.reason,
            }
        case record.JobRecovered():
            yield {
                "event": "recovered",
                "job": entry.job,
                "iteration": entry.iteration,
                "gpus": list(entry.gpus),
            }
        case record.ActionBegun():
            yield {
                "event": "action",
                "state": "begun",
                "name": entry.name,
                "do": entry.do,
                "target": entry.target,
            }
        case record.ActionEnded():
            yield from _ended(plan, entry)
        case lab_records.SwitchDrifted():
            yield {
                "event": "drift",
                "switch": entry.switch,
                "text": entry.sentence,
                "planned": entry.planned,
            }
        case lab_records.SwitchMended():
            yield {
                "event": "drift_over",
                "switch": entry.switch,
                "text": f"{entry.what} after {entry.after_s:.3f} s",
            }
        case lab_records.ProcessEnded():
            yield {
                "event": "process",
                "state": "down",
                "name": entry.name,
                "text": f"{entry.process} {entry.how}",
            }
        case lab_records.ProcessBack():
            words = lab_records.process_called(entry.kind, entry.name)
            yield {
                "event": "process",
                "state": "up",
                "name": entry.name,
                "text": words,
                "away_s": entry.away_s,
            }
        case lab_records.ProcessFrozen():
            words = f"{entry.process} stands still: {entry.how}"
            yield {
                "event": "process",
                "state": "down",
                "name": entry.name,
                "text": words,
            }
        case lab_records.ProcessThawed():
            words = lab_records.process_called(entry.kind, entry.name)
            yield {
                "event": "process",
                "state": "up",
                "name": entry.name,
                "text": words,
                "away_s": entry.after_s,
            }
        case record.EventLate():
            yield {"event": "late", "text": entry.sentence}
        case light_records.Flow(t_lit=float() as t_lit) if entry.t_close is not None:
            fields = {
                "gpu": entry.gpu,
                "peer": entry.peer,
                "wavelength": entry.wavelength,
                "t_end": entry.t_close,
            }
            yield {"event": "flow", "t": t_lit, **fields}
        case _:
            return


def _ended(plan: RunPlan, entry: record.ActionEnded) -> Iterator[Event]:
    event = next((event for event in plan.events if event.name == entry.name), None)
    result = entry.result
    if changes := _changes(
        result.get("results") or result.get("optical_switches") or {}
    ):
        yield {
            "event": "circuits",
            "who": f"event {entry.name} of the scenario",
            "changes": changes,
            "timeline": result.get("timeline", []),
            "problems": result.get("problems", []),
            "outcome": "done" if entry.error is None else "failed",
        }
    back = entry.do == "restore" or (event is not None and event.back_after_s > 0.0)
    done = {
        "name": entry.name,
        "do": entry.do,
        "target": entry.target,
        "back": back,
        "error": entry.error,
    }
    plan_told = {
        key: result["plan"][key]
        for key in ("moves", "fibres_moved")
        if key in result.get("plan", {})
    }
    yield {"event": "action", "state": "ended", **done, **plan_told}


def _changes(switches: Mapping[str, Any]) -> dict[str, dict[str, list[Event]]]:
    """Return cross-connects by switch, of a regroup's results or of an answer to a change of circuits."""
    changes: dict[str, dict[str, list[Event]]] = {}
    for name, results_by_kind in switches.items():
        results = (
            results_by_kind
            if isinstance(results_by_kind, list)
            else results_by_kind.get("results", [])
        )
        change: dict[str, list[Event]] = {"remove": [], "add": []}
        for result in results:
            # What was kept is told, too.
            if result["action"] in change:
                times = result.get("t_dark"), result.get("t_lit")
                change[result["action"]].append(
                    cross_connect(result["ingress"], result.get("egress"), *times)
                )
        if any(change.values()):
            changes[name] = change
    return changes


def cross_connect(
    ingress: int,
    egress: int | None,
    t_dark: float | None = None,
    t_lit: float | None = None,
) -> Event:
    return {
        "ingress": ingress,
        "egress": egress,
        "wavelength": None,
        "t_dark": t_dark,
        "t_lit": t_lit,
    }


def moved(event: Event, begin: float) -> Event:
    """Return an event with its times on the take's clock, seconds."""
    moved = {**event, "t": round(event["t"] - begin, 6)}
    if "timeline" in event:
        moved["timeline"] = [
            {**step, "t": round(step["t"] - begin, 6)} for step in event["timeline"]
        ]
    if "changes" in event:
        moved["changes"] = {
            name: {
                key: [_moved_xc(xc, begin) for xc in group]
                for key, group in change.items()
            }
            for name, change in event["changes"].items()
        }
    return moved


def _moved_xc(xc: Event, begin: float) -> Event:
    times = {key: xc.get(key) for key in ("t_dark", "t_lit")}
    return {
        **xc,
        **{key: None if t is None else round(t - begin, 6) for key, t in times.items()},
    }
