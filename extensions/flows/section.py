"""Completion times of the flows of a file: by size, and measured beside simulated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

from ringlight.experiments.record.runs import Run
from ringlight.experiments.report.charts import LOOKS, chart, legend, plain_ticks
from ringlight.experiments.report.columns import ARM, arm_title, cell, figures
from ringlight.experiments.report.page import Columns, quiet, table_of, tag, text
from ringlight.experiments.report.sections import section
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.extensions.flows.metrics import (
    CLASSES,
    class_of,
    run_times_s,
)
from ringlight.extensions.flows.plan import FlowsPlan, flows_of
from ringlight.fabric.units import format_size, format_time

#: Most flows that are drawn of each arm.
MOST_DOTS = 2000
#: Shapes of dots by arm, of which equal ones are still seen on top of each other.
_SHAPES = "ox^sDv"
#: Heads of the columns by percentile.
_HEADS = {"median": "median", "p90": "90 %", "p99": "99 %"}


@section("training", "Flows", needs=("flow_time_median",))
def flows(view: View, draw: Draw) -> str:
    """Return HTML with completion times by size under each arm, and their distribution."""
    runs = {
        arm: run
        for arm, run in view.first.items()
        if isinstance(run.plan.source, FlowsPlan)
    }
    if not runs:
        return ""
    rows = [
        (view.figures_at(arm, "run"), least, count)
        for arm, run in runs.items()
        for least, count in _counts(run).items()
    ]
    columns: Columns[tuple[Figures, int, int]] = [
        ("size", lambda row: _size(row[1])),
        ("flows", lambda row: f"{row[2]:,}"),
        *((head, partial(_cell, short)) for short, head in _HEADS.items()),
    ]
    group = (lambda row: arm_title(row[0])) if len(runs) > 1 else None
    titles = {arm: view.title(arm) for arm in runs}
    caption = f"Completion times of flows by size, {view.label}; a mark is a flow."
    note = f"From a flow's start until it is complete, {tag(view.label)}."
    return (
        table_of(rows, columns, 1, group=group)
        + quiet(note)
        + draw("flows", caption, _dots, runs, titles)
    )


@section("flows", "Flows beside their simulation", needs=("flow_time_ratio",))
def flows_beside(view: View, draw: Draw) -> str:
    """Return HTML with the measured completion times over the simulated ones."""
    shown = figures(
        view.each("run"),
        [
            ARM,
            ("flows", "flows_completed"),
            ("over workers", "flow_time_ratio"),
            ("least", "flow_time_ratio_least"),
            ("most", "flow_time_ratio_most"),
            ("over packets", "flow_time_packet_ratio"),
            ("least", "flow_time_packet_ratio_least"),
            ("most", "flow_time_packet_ratio_most"),
        ],
    )
    return shown + quiet(
        "Measured completion times over simulated ones: median, least and most of the flows. Workers: "
        "connections share links fairly, and flows of a pair wait for each other. Packets: as "
        "<code>simulate</code> has them, with windows of the emulation's frames. Neither has losses."
    )


def _counts(run: Run) -> dict[int, int]:
    sizes = sorted(class_of(flow.size_bytes) for flow in flows_of(run.plan).flows)
    return {least: sizes.count(least) for least in dict.fromkeys(sizes)}


def _size(least: int) -> str:
    return text(f"{format_size(least)} to {format_size(10 * least)}")


def _cell(short: str, row: tuple[Figures, int, int]) -> str:
    return cell(f"flow_time_{short}.{CLASSES[row[1]]}")(row[0])


def _dots(runs: Mapping[str, Run], titles: Mapping[str, str]) -> Figure:
    figure, axis = chart(3.0, left=0.85, bottom=0.5)
    for (arm, run), (_, colour), shape in zip(
        runs.items(), cycle(LOOKS), cycle(_SHAPES), strict=False
    ):
        times_s = run_times_s(run)
        if times_s is None:
            continue
        kilobytes = (
            np.array([flow.size_bytes for flow in flows_of(run.plan).flows]) / 1e3
        )
        every = -(-len(times_s) // MOST_DOTS)
        axis.plot(
            kilobytes[::every],
            times_s[::every],
            color=colour,
            fillstyle="none",
            linestyle="",
            marker=shape,
            label=titles[arm],
        )
    axis.set(xscale="log", yscale="log", xlabel="size", ylabel="completion time")
    for side in (axis.xaxis, axis.yaxis):
        plain_ticks(side, *side.get_data_interval())
    axis.xaxis.set_major_formatter(
        lambda kilobyte, _: format_size(round(1e3 * kilobyte))
    )
    axis.yaxis.set_major_formatter(lambda time_s, _: format_time(time_s))
    axis.grid(axis="x", visible=True)
    if len(runs) > 1:
        legend(figure, "arm", columns=4)
    return figure
