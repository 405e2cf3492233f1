"""Records of a run as events of the REST API's stream, which is how the page reads a lab."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record import events as record
from ringlight.experiments.record.events import Record

Event = dict[str, Any]


def events_of(plan: RunPlan, records: Iterable[Record]) -> Iterator[Event]:
    for one in records:
        yield from ({"t": one.t, **event} for event in told_of(plan, one))


def told_of(plan: RunPlan, one: Record) -> Iterator[Event]:
    """Yield a record as events of the stream; none for records that the page does not show."""
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
        case record.ProcessFrozen():
            said = f"{one.process} stands still: {one.how}"
            yield {"event": "process", "state": "down", "name": one.name, "text": said}
        case record.ProcessThawed():
            said = record.process_called(one.kind, one.name)
            yield {"event": "process", "state": "up", "name": one.name, "text": said, "away_s": one.after_s}
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
                change[one["action"]].append(cross_connect(one["ingress"], one.get("egress"), *times))
        if any(change.values()):
            found[name] = change
    return found


def cross_connect(
    ingress: int, egress: int | None, t_dark: float | None = None, t_lit: float | None = None
) -> Event:
    return {"ingress": ingress, "egress": egress, "wavelength": None, "t_dark": t_dark, "t_lit": t_lit}


def moved(event: Event, begin: float) -> Event:
    """Return an event with its times on the take's clock, seconds."""
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
