"""The end of the page: what was not run, what runs rest on and do not show, and where they are from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ringlight.experiments.language.spec import ParameterSpec
from ringlight.experiments.record.events import JobsComputed
from ringlight.experiments.report.page import (
    assumptions,
    folded,
    listing,
    row,
    table,
    table_of,
    tag,
    text,
)
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, View
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.units import format_rate, format_size, format_time

#: A parameter's name, and what the file says of it.
Named = tuple[str, ParameterSpec]
#: Of the environment, what sections of their own show.
_ELSEWHERE = ("assumptions", "left_out", "not_run", "arms")


@section(91, "What the simulation rests on", folded=True)
def simulation(view: View, draw: Draw) -> str:
    """Return HTML that shows the assumptions of a simulation; empty for other runs."""
    listed = view.environment.get("assumptions") if view.simulated else None
    if not listed:
        return ""
    return (
        "<p>The fabric, the schedules of the all-reduces and the "
        "controller's planner are those of the emulation. None of these assumptions was fitted to an "
        "emulated run.</p>"
        f"{assumptions(listed)}"
    )


@section(92, "Not run, or not compared")
def left_out(view: View, draw: Draw) -> str:
    """Return HTML that shows arms that the backend cannot run, runs that could not be made, and
    comparisons without a figure."""
    backend = "simulation" if view.simulated else "emulation"
    refused = [
        (view.title(entry["arm"]), f"the {backend} refuses {entry['why']}")
        for entry in view.not_run
    ]
    failed = [(entry["run"], entry["why"]) for entry in view.failed]
    entries = [f"<b>{text(what)}</b>: {text(why)}" for what, why in (*refused, *failed)]
    return listing(
        [
            *entries,
            *(f"<b>Not compared</b>: {text(line)}" for line in view.not_compared),
        ]
    )


@section(93, "What cannot be claimed")
def limits(view: View, draw: Draw) -> str:
    """Return HTML that shows the limits of the run: of the backend, of the fabrics, and of the paper that
    the file follows."""
    paper = view.experiment.spec.paper
    about = {} if paper is None else paper.limits
    if (computed := _computed(view)) is not None:
        return listing(_of_computed(view, computed))
    points = [
        *(_of_simulation(view) if view.simulated else _of_emulation(view)),
        *_of_light(view),
        *_of_scale(view),
        *(f"<b>{text(claim)}.</b> {text(why)}" for claim, why in about.items()),
    ]
    return listing(points)


def _computed(view: View) -> JobsComputed | None:
    """Return what a source computed of its jobs; None where they were emulated, or simulated one by one."""
    records = (record for run in view.runs for record in run.records)
    return next(
        (record for record in records if isinstance(record, JobsComputed)), None
    )


def _of_computed(view: View, computed: JobsComputed) -> Iterator[str]:
    real = all(plan.setting.scale.time == 1 for plan in view.plans.values())
    seconds = "Times are real ones." if real else "Seconds are those of the emulation."
    yield f"<b>Nothing here was measured: every figure was computed in virtual time. {seconds}</b>"
    yield from computed.limits


def _of_simulation(view: View) -> Iterator[str]:
    yield "<b>Nothing here was measured: every figure of the runs was computed in virtual time.</b>"
    for left in view.environment.get("left_out") or ():
        yield f"Left out: {text(left)}"
    yield "GPU time is of a fixed length; real GPUs vary."


def _of_emulation(view: View) -> Iterator[str]:
    if view.environment.get("runtime") == "namespace":
        yield (
            "<b>The workers ran in network namespaces, not in containers: there was no isolation of memory "
            "or files, and nothing here shows what containers would have done.</b>"
        )
    yield "GPU time is waiting of a fixed length; real GPUs vary."
    yield (
        "The network trained is a small numpy model on 8 × 8 digits, its gradient padded to the scaled "
        "size. Equal parameters show that the fabrics sum alike, not what the named model would "
        "reach. Traffic is TCP."
    )


def _of_light(view: View) -> Iterator[str]:
    fabrics = [setting.fabric for setting in view.settings]
    on_demand = [
        plane
        for fabric in fabrics
        for plane in lit_planes(fabric)
        if plane.light == "asked"
    ]
    onics = [onic for plane in on_demand for onic in plane.fabric.onics.values()]
    if onics and not view.simulated:
        yield (
            f"<b>{format_time(max(onic.tuning_s for onic in onics))} tuning.</b> A laser is retuned by one "
            "write to a table in the kernel; "
            "what is seen here is the handshake of two processes. Nothing here measures optics."
        )
        yield (
            "<b>Handshakes.</b> They are not scaled with the rates: the agents' own time stands for "
            f"1/{view.scale.time:g} of itself, so a real control network may be faster or slower."
        )
        yield (
            "Acknowledgements of light take the control network, as the light of a port goes one way; on a "
            "packet switch they share the port."
        )
    most = max((onic.ports for onic in onics), default=0)
    if most > 1 and any(fabric.packet_switches for fabric in fabrics):
        yield (
            f"A node has one port at the packet switch and {most} on the {on_demand[0].kind}, each at the "
            "same rate. One step uses one port; where a rank can begin the next step early, it sends on both "
            "at once, which the packet switch cannot give it. That hides a part of the set-ups."
        )
    if any(
        plane.light == "stepped" for fabric in fabrics for plane in lit_planes(fabric)
    ):
        switches = (
            " Switches are programs; the controller sets them over their management protocol, which takes "
            "milliseconds and is not scaled."
        )
        yield (
            f"<b>Optics.</b> Loss, crosstalk and reach play no part.{'' if view.simulated else switches}"
        )
        yield (
            "Ranks on a ring of wavelengths move in step: none begins a step before all have ended the last, "
            "because the light is set for all at once. On a packet switch a rank goes on when it can."
        )
        yield (
            "A node has one port of the rate of one wavelength at a packet switch, and on a ring two ports "
            "with all wavelengths each. Striping an all-reduce over all of them is not done here."
        )


def _of_scale(view: View) -> Iterator[str]:
    scale, fabrics = view.scale, [setting.fabric for setting in view.settings]
    top = max(
        (
            link.rate_bps
            for fabric in fabrics
            for link in (*fabric.links, *fabric.cables)
        ),
        default=0.0,
    )
    if top and scale.rate != 1:
        yield (
            f"<b>{format_rate(top)}.</b> What runs here is {format_rate(top / scale.rate)}: rates are "
            f"divided by {scale.rate:g}."
        )
    if (chosen := view.experiment.scale) is not None and chosen.limit:
        yield (
            f"<b>The scale was chosen for a machine:</b> limited by {text(chosen.limit)}, by the costs of "
            f"{text(chosen.costs)}."
        )
        for why in chosen.larger:
            yield f"<b>Made again at a larger D,</b> as the machine was too slow before: {text(why)}."
    if scale.rate == 1:
        yield "Seconds and rates are those of the real fabric."
    else:
        yield (
            "Seconds and rates are those of the emulation, the real ones that they stand for in small print. "
            "Ratios carry over."
        )


@section(95, "Parameters and where they come from", folded=True)
def parameters(view: View, draw: Draw) -> str:
    """Return HTML that shows the parameters with their sources, the scales, and the file as run."""
    shown = table_of(
        view.experiment.spec.parameters.items(),
        [
            ("name", lambda named: f"<code>{text(named[0])}</code>"),
            ("value", lambda named: _written(named[1].value)),
            ("source", _source),
            ("why", lambda named: text(named[1].why)),
        ],
        9,
    )
    written = folded(
        "The experiment as run", f"<pre>{text(view.experiment.text)}</pre>"
    )
    return f"{_scale(view)}{shown}{written}"


def _scale(view: View) -> str:
    jobs = [job for plan in view.experiment.plans for job in plan.jobs]
    loops = {job.training and replace(job.training, seed=0) for job in jobs}
    iteration = ""
    if len(loops) == 1 and (loop := loops.pop()) is not None:
        iteration = f" So one iteration computes for {format_time(loop.compute_s)} and all-reduces "
        iteration += f"{format_size(loop.gradient_bytes)}."
    return (
        f"<p>As emulated with D = {view.scale.time:g} and S = {view.scale.payload:g}: rates are divided by "
        f"D·S, times multiplied by D, gradients divided by S.{iteration}</p>"
    )


def _source(named: Named) -> str:
    _, entry = named
    fitted = (
        tag(f"fitted to {', '.join(map(text, entry.fitted_to))}")
        if entry.fitted_to
        else ""
    )
    return f"{tag(entry.source)} {fitted}"


def _written(value: object) -> str:
    """Return a value as HTML; a list has a line for each item."""
    if not isinstance(value, list | tuple):
        return text(value)
    return "<br>".join(
        text(" ".join(map(str, v)) if isinstance(v, list | tuple) else v) for v in value
    )


@section(100)
def footer(view: View, draw: Draw) -> str:
    """Return HTML that shows the environment of the run: machine, versions, and the code that made it."""
    facts, paper = view.environment, view.experiment.spec.paper
    after = "" if paper is None else f"After {text(paper.citation)}. "
    listed = table(
        ["what", "value"], [row(map(text, fact), 9) for fact in _listed(facts)], 9
    )
    return (
        f"<footer><p>{_made(facts)}</p>{folded('Environment', listed)}"
        f"<p>{after}Made by Ringlight from the files of this run folder; <code>result.json</code> and "
        "<code>rows.csv</code> have every figure, labelled measured, simulated, analytic or published. "
        f"{_again(view) if _computed(view) is None else ''}</p></footer>"
    )


def _again(view: View) -> str:
    """Return how to look at single iterations, flows and changes of light."""
    trace = (
        "<code>trace.json</code> has the iterations, flows and changes of light of all runs, for "
        "ui.perfetto.dev."
    )
    return " ".join([trace, *view.pages])


def _made(facts: Mapping[str, Any]) -> str:
    """Return code, machine and time of the run in one line."""
    words = []
    if commit := facts.get("commit"):
        words.append(f"commit <code>{text(commit)}</code>")
    if code := facts.get("code"):
        words.append(f"code version <code>{text(code)}</code>")
    if processor := facts.get("processor"):
        words.append(f"on {text(facts.get('processors', ''))} × {text(processor)}")
    if started := facts.get("started"):
        words.append(text(started))
    return ", ".join(words)


def _listed(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _listed(value, f"{prefix}{key}.")
        elif prefix or key not in _ELSEWHERE:
            yield f"{prefix}{key}", value
