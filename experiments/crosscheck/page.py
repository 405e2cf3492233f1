"""The page of a cross-check: how far the simulation is from the emulation, drawn and said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.crosscheck.compare import JUDGED, signed
from experiments.language.expand import Experiment
from experiments.report.drawing import LIGHT, PALETTE, QUIET, STYLE, Plot, save
from experiments.report.page import (
    NO_RESULT,
    assumptions,
    hero,
    milliseconds,
    page,
    picture,
    row,
    table,
    tag,
    text,
)

_EMULATED, _SIMULATED = PALETTE[0], PALETTE[1]
#: Iteration series drawn at most.
_SERIES = 12


def title_of(entry: Mapping[str, Any]) -> str:
    """What a run is called on the page."""
    point = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in entry["point"].items())
    return f"{entry['arm']}, {point}" if point else str(entry["arm"])


def draw(found: Mapping[str, Any], folder: Path) -> list[Plot]:
    """The figures, saved into ``folder`` (made if absent)."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        return [
            save(
                _differences(found),
                folder,
                "differences",
                "How much longer (right) or shorter (left) an iteration is simulated than emulated. The band "
                "is the limit. Filled: iteration; ring: all-reduce alone.",
            ),
            save(
                _series(found),
                folder,
                "iterations",
                "Every iteration's duration, on its slowest rank: emulated (measured) and simulated."
                + (f" The first {_SERIES} jobs." if len(found["entries"]) > _SERIES else ""),
            ),
        ]


def _label(entry: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    several = len({other["job"] for other in found["entries"]}) > 1
    return title_of(entry) + (f": {entry['job']}" if several else "")


def _differences(found: Mapping[str, Any]) -> Figure:
    entries, limit = found["entries"], found["limit_percent"]
    figure = Figure(figsize=(9.2, 0.9 + 0.3 * len(entries)), layout="constrained")
    axis = figure.subplots()
    axis.axvspan(-limit, limit, color=LIGHT, alpha=0.16, linewidth=0)
    axis.axvline(0, color=QUIET, linewidth=1)
    places = list(range(len(entries)))
    whole = [entry["iteration_s"]["difference_percent"] for entry in entries]
    alone = [entry["allreduce_s"]["difference_percent"] for entry in entries]
    axis.hlines(places, 0, whole, color=_SIMULATED, linewidth=1.4)
    axis.plot(whole, places, linestyle="", marker="o", color=_SIMULATED, markersize=6)
    axis.plot(alone, places, linestyle="", marker="o", markeredgecolor=_SIMULATED, markerfacecolor="none")
    axis.set_yticks(places, [_label(entry, found) for entry in entries])
    axis.set_ylim(len(entries) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", visible=True)
    reach = 1.15 * max(limit, *(abs(value) for value in (*whole, *alone)))
    axis.set_xlim(-reach, reach)
    axis.set_xlabel("simulated against emulated, %")
    return figure


def _series(found: Mapping[str, Any]) -> Figure:
    entries = found["entries"][:_SERIES]
    columns = min(3, len(entries))
    rows = math.ceil(len(entries) / columns)
    figure = Figure(figsize=(9.2, 0.5 + 1.75 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(entries) :]:
        axis.axis("off")
    for axis, entry in zip(axes.flat, entries, strict=False):
        drawn = (("emulated", _EMULATED, "-"), ("simulated", _SIMULATED, (0, (4, 2))))
        for side, colour, style in drawn:
            values = entry["series"][side]
            numbers = range(1, len(values) + 1)
            axis.plot(numbers, values, color=colour, linestyle=style, linewidth=1.4, label=side)
        axis.set_title(_label(entry, found), fontsize=8.5)
        axis.set_ylim(0, 1.15 * max(max(values) for values in entry["series"].values()))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0][0].set_ylabel("iteration, s")
    axes[-1][0].set_xlabel("iteration")
    axes[0][0].legend(loc="lower right", fontsize=7.5)
    return figure


def render(experiment: Experiment, found: Mapping[str, Any], plots: Sequence[Plot]) -> str:
    """The page of an object of ``crosscheck.json``."""
    figures = {plot.name: plot for plot in plots}
    parts = [
        _header(experiment, found),
        _hero(found),
        f"<h2>How far apart</h2>{picture(figures.get('differences'))}{_table(found)}",
        _why(found),
        f"<h2>Iteration by iteration</h2>{picture(figures.get('iterations'))}",
        _sides(found),
        _limits(found),
    ]
    return page(f"Ringlight cross-check: {experiment.spec.name}", parts)


def _header(experiment: Experiment, found: Mapping[str, Any]) -> str:
    whole, alone = (abs(found["worst"][figure]["difference_percent"]) for figure in JUDGED)
    apart = f"{whole:.1f} % in an iteration and {alone:.1f} % in its all-reduce"
    if found["emulated"]["fidelity"] == "bad":
        headline = NO_RESULT
    elif found["within_limit"]:
        headline = f"Simulation and emulation agree within {apart}"
    else:
        headline = f"Simulation and emulation are apart by up to {apart}"
    emulated = found["emulated"]
    scale = experiment.plans[0].setting.scale
    verdict = emulated["fidelity"]
    items = "".join(
        f"<li>{name} <b{style}>{text(value)}</b></li>"
        for name, value, style in (
            ("workers", emulated["runtime"], ""),
            ("the emulation calls itself", verdict, f' class="{verdict}"'),
            ("limit", f"{found['limit_percent']:g} %", ""),
            ("time × ", f"{scale.time:g}", ""),
            ("payload ÷ ", f"{scale.payload:g}", ""),
        )
    )
    partial = "" if emulated["complete"] else '<p class="bad"><b>The emulated run is not complete.</b></p>'
    return (
        '<header><p class="kicker">Ringlight cross-check</p>'
        f"<h1>{text(headline)}</h1><p class='lead'>{text(experiment.spec.description)} Run on the testbed "
        f'and computed in virtual time.</p>{partial}<ul class="chips">{items}</ul></header>'
    )


def _hero(found: Mapping[str, Any]) -> str:
    entries = found["entries"]
    inside = sum(entry["within_limit"] for entry in entries)
    at = {
        figure: next(e for e in entries if (e["run"], e["job"]) == (worst["run"], worst["job"]))
        for figure, worst in found["worst"].items()
    }
    off = [entry["off"] for entry in entries]
    cards = [
        *(
            (
                f"Largest difference of {what}",
                f"{signed(found['worst'][figure]['difference_percent'])} <small>%</small>",
                text(_label(at[figure], found)),
            )
            for figure, what in zip(JUDGED, ("an iteration", "an all-reduce"), strict=True)
        ),
        (
            f"Within {found['limit_percent']:g} %",
            f"{inside} <small>of {len(entries)}</small>",
            "jobs in runs, iteration and all-reduce both",
        ),
        (
            "Which is off",
            f"{off.count('simulation')} <small>× simulation</small>",
            f"{off.count('emulation')} × emulation, {off.count('neither')} × neither",
        ),
    ]
    return hero(cards)


def _apart(figure: Mapping[str, float], found: Mapping[str, Any]) -> str:
    said = f"{signed(figure['difference_percent'])} %"
    inside = abs(figure["difference_percent"]) <= found["limit_percent"]
    return said if inside else f'<b class="bad">{said}</b>'


def _table(found: Mapping[str, Any]) -> str:
    rows = []
    for entry in found["entries"]:
        iteration, exchange = entry["iteration_s"], entry["allreduce_s"]
        apart, alone = (_apart(figure, found) for figure in (iteration, exchange))
        rows.append(
            row(
                [
                    text(_label(entry, found)),
                    milliseconds(1000 * iteration["emulated"]),
                    milliseconds(1000 * iteration["simulated"]),
                    apart,
                    milliseconds(1000 * exchange["emulated"]),
                    milliseconds(1000 * exchange["simulated"]),
                    alone,
                ],
                1,
            )
        )
    head = [
        "",
        f"iteration {tag('measured')}",
        tag("simulated"),
        "difference",
        f"all-reduce {tag('measured')}",
        tag("simulated"),
        "difference",
    ]
    return (
        f"{table(head, rows, 1)}"
        '<p class="quiet">Means over ranks and iterations. A difference is that of the simulated figure, in '
        "per cent of the emulated one; the limit is on either. Both sides wait for the same computing, which "
        "makes an iteration's difference smaller than that of what is simulated, its all-reduce.</p>"
    )


def _why(found: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td style='min-width:11rem'>{text(_label(entry, found))}</td><td>{entry['off']}</td>"
        f"<td class='n'>{signed(1000 * entry['causes']['gap_s'])} ms</td>"
        f"<td class='wide'>{text('; '.join(entry['why']))}</td></tr>"
        for entry in found["entries"]
    ]
    return (
        "<h2>Which is off, and why</h2>"
        "<p>By how much an emulated iteration is longer, and where that comes from as far as the runs tell. "
        "The emulation's are late timers, links below their setting, and the time of kernel, software "
        "switches, workers and agents, which share one machine's processors and stand for hardware. The "
        "simulation's is what it leaves out of the scenario: TCP, the controller, steps that overlap.</p>"
        f"{table(['', 'off', 'emulated is longer by', 'of which'], rows, 9)}"
    )


def _sides(found: Mapping[str, Any]) -> str:
    emulated, simulated = found["emulated"], found["simulated"]
    links = emulated["links"]
    measured = (
        f"Its links gave {100 * links['least']:.1f} to {100 * links['most']:.1f} % of their settings, median "
        f"{100 * links['median']:.1f} %; the simulation takes {100 * simulated['payload_share']:.1f} %."
        if links
        else "Its links were not measured."
    )
    judged = "".join(f"<li>{text(reason['text'])}</li>" for reason in emulated["reasons"])
    return (
        "<h2>The two sides</h2>"
        f"<p>Emulated: <code>{text(emulated['run'])}</code>, which calls itself "
        f'<b class="{emulated["fidelity"]}">{emulated["fidelity"]}</b>. {measured}</p>'
        f"{f'<ul>{judged}</ul>' if judged else ''}"
        f"<p>Simulated: <code>{text(simulated['run'])}</code>, with these assumptions, none of them fitted "
        f"to an emulated run:</p>{assumptions(simulated)}"
    )


def _limits(found: Mapping[str, Any]) -> str:
    left_out = "".join(f"<li>{text(point)}</li>" for point in found["simulated"].get("left_out", ()))
    missing = found["not_compared"]
    alone = (
        f"<p class='quiet'>Not compared, as only one side has them: {text(', '.join(missing))}.</p>"
        if missing
        else ""
    )
    return f"<h2>What the simulation leaves out</h2><ul>{left_out}</ul>{alone}"
