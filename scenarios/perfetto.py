"""A comparison's runs as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process for each GPU of each fabric; in it one thread for what the rank does and one for each port of
an O-NIC that asks for flows. One process for the light of a ring. Times are microseconds since the first
release, as emulated (real time times D).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.record.writing import write_whole
from scenarios.comparison import Comparison, ring_of
from scenarios.records import Run

#: Threads of a process: the rank, then the ports from this number on.
_RANK, _FIRST_PORT = 0, 1


def trace_events(comparison: Comparison, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The ``traceEvents`` of all runs: complete events ("X") and names ("M")."""
    if not runs:
        return []
    zero = min(run.released for run in runs)
    process = {
        (fabric, gpu): number
        for number, (fabric, gpu) in enumerate(
            ((name, gpu) for name, setting in comparison.settings.items() for gpu in setting.fabric.gpus),
            start=1,
        )
    }
    rings = [name for name, setting in comparison.settings.items() if ring_of(setting.fabric)]
    light = {name: number for number, name in enumerate(rings, start=len(process) + 1)}
    events = [*_names(comparison, process)]
    events += [_name("process_name", pid, 0, f"{fabric}: light") for fabric, pid in light.items()]
    for run in runs:
        for gpus, it in ((job.gpus, it) for job in run.jobs.values() for it in job.iterations):
            pid = process[run.case, gpus[it.rank]]
            args = {"run": run.name, "iteration": it.index}
            events.append(_slice("compute", "rank", pid, _RANK, zero, it.start, it.compute_end, args))
            events.append(_slice("all-reduce", "rank", pid, _RANK, zero, it.compute_end, it.end, args))
        for flow in run.noted("flow"):
            pid, thread = process[run.case, flow["gpu"]], _FIRST_PORT + flow["port"]
            to = f"{flow['gpu']} to {flow['peer']}"
            args = {
                "run": run.name,
                "wavelength": flow["wavelength"],
                "waited": flow["waited"],
                "flow": flow["flow"],
            }
            for name, start, end in (
                (f"set-up, {to}", flow["t_request"], flow["t_lit"]),
                (f"λ{flow['wavelength']}, {to}", flow["t_lit"], flow["t_close"]),
            ):
                events.append(_slice(name, "flow", pid, thread, zero, start, end, args))
        for change in (change for note in run.noted("ring") for change in note["set_ups"]):
            name = f"set-up, step {change['step'] % comparison.steps(run.case).steps + 1}"
            begin, args = change["t"], {"run": run.name, **change}
            events.append(
                _slice(name, "light", light[run.case], 0, zero, begin, begin + change["total_s"], args)
            )
    return events


def _names(comparison: Comparison, process: dict[tuple[str, str], int]) -> Iterator[dict[str, Any]]:
    for (fabric, gpu), pid in process.items():
        yield _name("process_name", pid, 0, f"{fabric}: {gpu}")
        yield _name("thread_name", pid, _RANK, "rank")
        onic = comparison.settings[fabric].fabric.onics.get(gpu)
        for port in range(onic.ports if onic and onic.transmitters == "tunable" else 0):
            yield _name("thread_name", pid, _FIRST_PORT + port, f"O-NIC port {port}")


def _name(kind: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": thread, "args": {"name": name}}


def _slice(
    name: str,
    category: str,
    pid: int,
    thread: int,
    zero: float,
    start: float,
    end: float,
    args: dict[str, Any],
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": round(1e6 * (start - zero), 3),
        "dur": round(1e6 * max(0.0, end - start), 3),
        "pid": pid,
        "tid": thread,
        "args": args,
    }


def write_trace(path: Path, comparison: Comparison, runs: Sequence[Run]) -> None:
    """Write the trace of all runs to ``path``."""
    document = {"traceEvents": trace_events(comparison, runs), "displayTimeUnit": "ms"}
    write_whole(path, json.dumps(document, separators=(",", ":")) + "\n")
