"""Runs as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process for each GPU of each run; in it one thread for what the rank does and one for each port of an
O-NIC that asks for flows. One process for the light of a ring, one for the events of the timeline. Times
are microseconds since the first release of each run, as emulated (real time times D).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.record.events import Flow, RingSetUps
from experiments.record.runs import Run
from experiments.record.writing import write_whole
from fabric.schedules import steps_named

#: Threads of a process: the rank, then the ports from this number on.
_RANK, _FIRST_PORT = 0, 1
#: More events than these make a file that no viewer opens; later runs are left out whole.
_MOST = 400_000


def trace_events(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The ``traceEvents`` of runs: complete events ("X") and names ("M")."""
    processes = _Processes()
    events: list[dict[str, Any]] = []
    for run in runs:
        found = [*_of_jobs(run, processes), *_of_flows(run, processes), *_of_rings(run, processes)]
        found += _of_actions(run, processes)
        if len(events) + len(found) > _MOST:
            break
        events += found
    return [*processes.names, *events]


class _Processes:
    """Numbers of processes by what they are called; names come first in a trace."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._threads: set[tuple[int, int]] = set()
        self.names: list[dict[str, Any]] = []

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers) + 1
            self.names.append(_name("process_name", self._numbers[name], 0, name))
        return self._numbers[name]

    def thread(self, pid: int, thread: int, name: str) -> int:
        if (pid, thread) not in self._threads:
            self._threads.add((pid, thread))
            self.names.append(_name("thread_name", pid, thread, name))
        return thread


def _of_jobs(run: Run, processes: _Processes) -> Iterator[dict[str, Any]]:
    for job in run.jobs.values():
        gpus = dict(enumerate(job.gpus))
        turns = {back.iteration: back.gpus for back in job.recoveries}
        index = -1
        for it in job.iterations:
            if it.i > index:
                index = it.i
                gpus = dict(enumerate(turns[it.i])) if it.i in turns else gpus
            pid = processes.number(f"{run.name}: {gpus.get(it.rank, f'rank {it.rank}')}")
            thread = processes.thread(pid, _RANK, "rank")
            args = {"run": run.name, "job": job.name, "iteration": it.i}
            yield _slice("compute", "rank", pid, thread, run, it.compute_start, it.compute_end, args)
            yield _slice("all-reduce", "rank", pid, thread, run, it.compute_end, it.allreduce_end, args)


def _of_flows(run: Run, processes: _Processes) -> Iterator[dict[str, Any]]:
    for flow in run.of(Flow):
        if flow.t_request is None or flow.t_lit is None or flow.t_close is None:
            continue
        pid = processes.number(f"{run.name}: {flow.gpu}")
        thread = processes.thread(pid, _FIRST_PORT + flow.port, f"O-NIC port {flow.port}")
        to = f"{flow.gpu} to {flow.peer}"
        args = {"run": run.name, "wavelength": flow.wavelength, "waited": flow.waited, "flow": flow.flow}
        yield _slice(f"set-up, {to}", "flow", pid, thread, run, flow.t_request, flow.t_lit, args)
        name = f"λ{flow.wavelength}, {to}"
        yield _slice(name, "flow", pid, thread, run, flow.t_lit, flow.t_close, args)


def _of_rings(run: Run, processes: _Processes) -> Iterator[dict[str, Any]]:
    jobs = [job for job in run.jobs.values() if job.gpus]
    for note in run.of(RingSetUps):
        pid = processes.number(f"{run.name}: light")
        steps = steps_named(jobs[0].plan.collective, len(jobs[0].gpus)).steps
        for change in note.set_ups:
            name, begin = f"set-up, step {change['step'] % steps + 1}", change["t"]
            args = {"run": run.name, **change}
            yield _slice(name, "light", pid, 0, run, begin, begin + change["total_s"], args)


def _of_actions(run: Run, processes: _Processes) -> Iterator[dict[str, Any]]:
    for number, action in enumerate(run.actions):
        pid = processes.number(f"{run.name}: events")
        name = f"{action.plan.do} {action.plan.target or ''}".strip()
        end = action.begun if action.ended is None else action.ended
        args = {"run": run.name, "event": action.plan.name, "error": action.error}
        yield _slice(name, "event", pid, number, run, action.begun, end, args)


def _name(kind: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": thread, "args": {"name": name}}


def _slice(
    name: str,
    category: str,
    pid: int,
    thread: int,
    run: Run,
    start: float,
    end: float,
    args: dict[str, Any],
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": round(1e6 * (start - run.released), 3),
        "dur": round(1e6 * max(0.0, end - start), 3),
        "pid": pid,
        "tid": thread,
        "args": args,
    }


def write_trace(path: Path, runs: Sequence[Run]) -> None:
    """Write the trace of all runs to ``path``. Raises WriteError."""
    document = {"traceEvents": trace_events(runs), "displayTimeUnit": "ms"}
    write_whole(path, json.dumps(document, separators=(",", ":")) + "\n")
