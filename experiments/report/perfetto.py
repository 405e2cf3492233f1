"""Runs as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process for each GPU of each run; in it one thread for what the rank does and one for each port of an
O-NIC that asks for flows. One process for the light of a ring, one for the events of the timeline. Times
are microseconds since the first release of each run, as emulated (real time times D).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.record.events import Flow, RingSetUps
from experiments.record.runs import Run
from experiments.record.writing import write_whole
from fabric.schedules import steps_named

#: More events than these make a file that no viewer opens; later runs are left out whole.
_MOST = 400_000


class _Slice(NamedTuple):
    """Something that took from ``begin`` to ``end`` (the lab's clock). ``process``: its name without the
    run's; ``thread``: its number and name, which may be empty."""

    process: str
    thread: tuple[int, str]
    category: str
    name: str
    begin: float
    end: float
    args: Mapping[str, Any]


def trace_events(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The ``traceEvents`` of runs: complete events ("X") and names ("M")."""
    names: dict[tuple[int, int, str], dict[str, Any]] = {}
    processes: dict[str, int] = {}
    events: list[dict[str, Any]] = []

    def named(kind: str, pid: int, tid: int, name: str) -> None:
        name_of = {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
        names.setdefault((pid, tid, kind), name_of)

    for run in runs:
        found = [*_of_jobs(run), *_of_flows(run), *_of_rings(run), *_of_actions(run)]
        if len(events) + len(found) > _MOST:
            break
        for one in found:
            process, (tid, thread) = f"{run.name}: {one.process}", one.thread
            pid = processes.setdefault(process, len(processes) + 1)
            named("process_name", pid, 0, process)
            if thread:
                named("thread_name", pid, tid, thread)
            begin, took = 1e6 * (one.begin - run.released), 1e6 * max(0.0, one.end - one.begin)
            what = {"name": one.name, "cat": one.category, "ph": "X", "args": {"run": run.name, **one.args}}
            events.append({**what, "ts": round(begin, 3), "dur": round(took, 3), "pid": pid, "tid": tid})
    return [*names.values(), *events]


def _of_jobs(run: Run) -> Iterator[_Slice]:
    for job in run.jobs.values():
        gpus = dict(enumerate(job.gpus))
        turns = {back.iteration: back.gpus for back in job.recoveries}
        index = -1
        for it in job.iterations:
            if it.i > index:
                index = it.i
                gpus = dict(enumerate(turns[it.i])) if it.i in turns else gpus
            gpu, args = gpus.get(it.rank, f"rank {it.rank}"), {"job": job.name, "iteration": it.i}
            rank = (0, "rank")
            yield _Slice(gpu, rank, "rank", "compute", it.compute_start, it.compute_end, args)
            yield _Slice(gpu, rank, "rank", "all-reduce", it.compute_end, it.allreduce_end, args)


def _of_flows(run: Run) -> Iterator[_Slice]:
    for flow in run.of(Flow):
        if flow.t_request is None or flow.t_lit is None or flow.t_close is None:
            continue
        port, to = (1 + flow.port, f"O-NIC port {flow.port}"), f"{flow.gpu} to {flow.peer}"
        args = {"wavelength": flow.wavelength, "waited": flow.waited, "flow": flow.flow}
        yield _Slice(flow.gpu, port, "flow", f"set-up, {to}", flow.t_request, flow.t_lit, args)
        yield _Slice(flow.gpu, port, "flow", f"λ{flow.wavelength}, {to}", flow.t_lit, flow.t_close, args)


def _of_rings(run: Run) -> Iterator[_Slice]:
    jobs = [job for job in run.jobs.values() if job.gpus]
    for note in run.of(RingSetUps):
        steps = steps_named(jobs[0].plan.loop.collective, len(jobs[0].gpus)).steps
        for change in note.set_ups:
            name, begin = f"set-up, step {change['step'] % steps + 1}", change["t"]
            yield _Slice("light", (0, ""), "light", name, begin, begin + change["total_s"], change)


def _of_actions(run: Run) -> Iterator[_Slice]:
    for number, action in enumerate(run.actions):
        end = action.begun if action.ended is None else action.ended
        args = {"event": action.plan.name, "error": action.error}
        yield _Slice("events", (number, ""), "event", action.said, action.begun, end, args)


def write_trace(path: Path, runs: Sequence[Run]) -> None:
    """Write the trace of all runs to ``path``. Raises WriteError."""
    document = {"traceEvents": trace_events(runs), "displayTimeUnit": "ms"}
    write_whole(path, json.dumps(document, separators=(",", ":")) + "\n")
