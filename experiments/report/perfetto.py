"""Runs as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process for each GPU of each run; in it one thread for what the rank does, one for each stream of a
workload and one for each port of an O-NIC that asks for flows. One process for the light of a ring, one for
the events of the timeline. Times are microseconds since the first release of each run, as emulated (real time
times D).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ringlight.experiments.record.events import Iteration, Operations
from ringlight.experiments.record.light_records import Flow, StepSetUps
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.experiments.record.writing import WriteError
from ringlight.fabric.algorithms import steps_named
from ringlight.workloads.formats.timeline import Span, write
from ringlight.workloads.summary import kind_named

#: More spans than these make a file that no viewer opens; operations of a run that would, and later runs, are
#: left out whole.
_MOST = 600_000


def write_trace(path: Path, runs: Sequence[Run]) -> None:
    """Write the trace of all runs to ``path``. Raises WriteError."""
    try:
        write(path, _of_runs(runs))
    except ValueError as error:
        raise WriteError(str(error)) from None


def _of_runs(runs: Sequence[Run]) -> Iterator[Span]:
    count = 0
    for run in runs:
        events = [*_of_jobs(run), *_of_flows(run), *_of_steps(run), *_of_actions(run)]
        count += len(events)
        if count > _MOST:
            return
        for span in events:
            yield _named(run, span)
        count += (
            operations := sum(len(record.times_s) for record in run.of(Operations))
        )
        if count > _MOST:
            count -= operations
            continue
        for span in _of_operations(run):
            yield _named(run, span)


def _named(run: Run, span: Span) -> Span:
    """Return a span with the run's name in its process, and times counted from the first release."""
    begin_s = span.begin_s - run.released
    end_s, args = (
        max(begin_s, span.end_s - run.released),
        {"run": run.name, **span.args},
    )
    return span._replace(
        process=f"{run.name}: {span.process}", begin_s=begin_s, end_s=end_s, args=args
    )


def _of_jobs(run: Run) -> Iterator[Span]:
    for job in run.jobs.values():
        gpus = dict(enumerate(job.gpus))
        turns = {back.iteration: back.gpus for back in job.recoveries}
        index = -1
        for it in job.iterations:
            if it.i > index:
                index = it.i
                gpus = dict(enumerate(turns[it.i])) if it.i in turns else gpus
            yield from _of_iteration(job, gpus.get(it.rank, f"rank {it.rank}"), it)


def _of_iteration(job: JobRun, gpu: str, it: Iteration) -> Iterator[Span]:
    args = {"job": job.name, "iteration": it.i}
    if job.plan.workload is not None:
        yield Span(
            gpu, "rank", "iteration", it.compute_start, it.allreduce_end, "rank", args
        )
        return
    yield Span(gpu, "rank", "compute", it.compute_start, it.compute_end, "rank", args)
    yield Span(
        gpu, "rank", "all-reduce", it.compute_end, it.allreduce_end, "rank", args
    )


def _of_operations(run: Run) -> Iterator[Span]:
    """Yield operations of workloads, on the stream of each."""

    @cache
    def operations_of(
        job: str, program: int
    ) -> list[tuple[str, str, str, Mapping[str, Any]]]:
        """Return stream, name, kind and arguments (bytes, if any) of each operation."""
        workload = run.jobs[job].plan.workload
        assert workload is not None
        of = workload.programs[program]
        columns = (of.stream, of.name, of.kind, of.collective, of.bytes)
        return [
            (
                workload.streams[stream],
                workload.names[name],
                kind_named(workload, kind, which),
                {"bytes": size} if size else {},
            )
            for stream, name, kind, which, size in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    for record in run.of(Operations):
        job = run.jobs[record.job]
        if job.plan.workload is None:
            continue
        gpu = (
            job.gpus[record.rank]
            if record.rank < len(job.gpus)
            else f"rank {record.rank}"
        )
        of_rank = operations_of(
            record.job, int(job.plan.workload.program_of[record.rank])
        )
        for (stream, name, kind, size), (begin, end) in zip(
            of_rank, record.times_s, strict=True
        ):
            args = {"job": record.job, "iteration": record.i, **size}
            yield Span(
                gpu,
                f"stream {stream}",
                name,
                record.begin + begin,
                record.begin + end,
                kind,
                args,
            )


def _of_flows(run: Run) -> Iterator[Span]:
    for flow in sorted(run.of(Flow), key=lambda flow: flow.port):
        if flow.t_request is None or flow.t_lit is None or flow.t_close is None:
            continue
        port, to = f"O-NIC port {flow.port}", f"{flow.gpu} to {flow.peer}"
        args = {"wavelength": flow.wavelength, "waited": flow.waited, "flow": flow.flow}
        yield Span(
            flow.gpu, port, f"set-up, {to}", flow.t_request, flow.t_lit, "flow", args
        )
        yield Span(
            flow.gpu,
            port,
            f"λ{flow.wavelength}, {to}",
            flow.t_lit,
            flow.t_close,
            "flow",
            args,
        )


def _of_steps(run: Run) -> Iterator[Span]:
    jobs = [job for job in run.jobs.values() if job.gpus]
    for note in run.derived(StepSetUps):
        steps = steps_named(jobs[0].plan.loop.collective, len(jobs[0].gpus)).steps
        for change in note.set_ups:
            name, begin = f"set-up, step {change['step'] % steps + 1}", change["t"]
            yield Span(
                "light", "ring", name, begin, begin + change["total_s"], "light", change
            )


def _of_actions(run: Run) -> Iterator[Span]:
    for action in run.actions:
        end = action.begun if action.ended is None else action.ended
        args = {"event": action.plan.name, "error": action.error}
        # Each on a thread of its own: events may overlap, and spans of a thread must not.
        yield Span(
            "events",
            action.plan.name,
            action.sentence,
            action.begun,
            end,
            "event",
            args,
        )
