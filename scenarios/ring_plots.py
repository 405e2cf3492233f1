"""Figures about rings of wavelengths: all-reduces side by side, and which light each step has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Arc, FancyArrowPatch

from experiments.report.drawing import FACE, INK, LIGHT, PALETTE, QUIET, RULE, Plot, save, wavelength_colours
from experiments.report.page import how_known
from fabric.wdm import CLOCKWISE, RingPlan, RingStep
from scenarios.comparison import Comparison

#: Most steps of which the light is drawn.
MOST_STEPS = 8


def draw(comparison: Comparison, result: Mapping[str, Any], folder: Path) -> list[Plot]:
    """Everything about rings; nothing for a comparison without."""
    found = result["fabrics"]
    if not any(fabric["ring"] for fabric in found.values()):
        return []
    how = how_known(result)
    drawn = [
        save(
            _all_reduces(found, how),
            folder,
            "allreduce",
            f"Median all-reduce of each fabric. Bars: {how}. Marks: the model, analytic: transfers of the "
            "steps one after the other (line), with the median set-up of the light between them (dot).",
        )
    ]
    caption = (
        "The light of the collective's steps, as planned: an arc from each sender to its receiver, clockwise "
        "outside the ring and counter-clockwise inside, its colour the wavelength. Neighbouring steps with "
        "the same light are drawn once."
    )
    for name in found:
        plan = comparison.ring_plan(name)
        if plan is not None:
            drawn.append(
                save(
                    _light(plan),
                    folder,
                    f"ring-{name}",
                    caption,
                )
            )
            caption = "Likewise."
    return drawn


def _all_reduces(fabrics: Mapping[str, Any], how: str) -> Figure:
    figure = Figure(figsize=(9.2, 0.9 + 0.42 * len(fabrics)), layout="constrained")
    axis = figure.subplots()
    for y, fabric in enumerate(fabrics.values()):
        colour = PALETTE[1] if fabric["ring"] else QUIET
        axis.barh(y, fabric["allreduce_s"], height=0.55, color=colour, linewidth=0, alpha=0.85)
        axis.annotate(
            f"{fabric['allreduce_s']:.2f} s, {fabric['steps']} steps",
            (fabric["allreduce_s"], y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        ideal_s = fabric["ideal_allreduce_s"]
        axis.plot([ideal_s, ideal_s], [y - 0.38, y + 0.38], color=INK, linewidth=1.4)
        ring = fabric["ring"]
        if ring and ring["set_up_ms"]:
            with_s = ideal_s + ring["set_ups_per_allreduce"] * ring["set_up_ms"]["p50"] / 1000
            axis.plot([with_s], [y], marker="o", markersize=5, color=LIGHT, zorder=5)
    axis.set_yticks(range(len(fabrics)), [f"{name}: {f['collective']}" for name, f in fabrics.items()])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.grid(axis="x", visible=True)
    axis.set_xlim(0, 1.22 * max(fabric["allreduce_s"] for fabric in fabrics.values()))
    axis.set_xlabel(f"all-reduce, seconds of the emulation ({how})")
    return figure


def lights(plan: RingPlan) -> list[tuple[int, int, RingStep]]:
    """Runs of neighbouring steps with the same pairs: first and last step, counted from 1, and the light."""
    found: list[tuple[int, int, RingStep]] = []
    for number, step in enumerate(plan.steps, start=1):
        if found and found[-1][2].pairs == step.pairs:
            found[-1] = (found[-1][0], number, found[-1][2])
        else:
            found.append((number, number, step))
    return found


def _light(plan: RingPlan) -> Figure:
    chosen = lights(plan)
    left_out = len(chosen) - MOST_STEPS
    chosen = chosen[:MOST_STEPS]
    columns = 4
    rows = math.ceil(len(chosen) / columns)
    figure = Figure(figsize=(9.2, 2.45 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    wavelengths = 1 + max(
        (emit.wavelength for peers in plan.transmit.values() for emit in peers.values()), default=0
    )
    colours = wavelength_colours(wavelengths)
    for number, axis in enumerate(axes.flat):
        axis.axis("off")
        if number < len(chosen):
            first, last, step = chosen[number]
            _one(axis, plan, step, colours)
            axis.set_title(f"step {first}" if first == last else f"steps {first} to {last}", fontsize=9)
    handles = [Line2D([], [], color=c, linewidth=2, label=f"λ{k}") for k, c in enumerate(colours)]
    if left_out > 0:
        handles.append(Line2D([], [], linestyle="", label=f"and {left_out} more"))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8)
    return figure


def _place(place: float, nodes: int, radius: float = 1.0) -> tuple[float, float]:
    """Node 0 at the top, then clockwise; ``place`` may lie between two nodes."""
    angle = math.pi / 2 - 2 * math.pi * place / nodes
    return radius * math.cos(angle), radius * math.sin(angle)


def _one(axis: Axes, plan: RingPlan, step: RingStep, colours: Sequence[str]) -> None:
    n = len(plan.nodes)
    axis.add_patch(Arc((0, 0), 2, 2, color=RULE, linewidth=1.0, zorder=1))
    index = {node: number for number, node in enumerate(plan.nodes)}
    for source, destination in sorted(step.pairs):
        emit = plan.transmit[source][destination]
        clockwise = emit.port == CLOCKWISE
        # Each wavelength has a circle of its own, outside the ring or inside.
        gap = 0.16 + 0.13 * emit.wavelength
        _path(axis, index[source], index[destination], n, clockwise, 1 + gap if clockwise else 1 - gap,
              colours[emit.wavelength])  # fmt: skip
    small = 6 if n > 12 else 7
    for number in range(n):
        x, y = _place(number, n)
        axis.plot([x], [y], marker="o", markersize=11 if n <= 12 else 8, color=FACE, markeredgecolor=INK,
                  markeredgewidth=0.8, zorder=4)  # fmt: skip
        axis.text(x, y, str(number), ha="center", va="center", fontsize=small - 1, zorder=5)
    most = 1.25 + 0.13 * len(colours)
    axis.set_xlim(-most, most)
    axis.set_ylim(-most, most)
    axis.set_aspect("equal")


def _path(
    axis: Axes, source: int, destination: int, n: int, clockwise: bool, radius: float, colour: str
) -> None:
    """Along the ring from one node to another, with a head."""
    way = (destination - source) % n if clockwise else -((source - destination) % n)
    # Short of the nodes themselves, so that lightpaths that follow each other can be told apart.
    trim = 0.16 * (1 if way > 0 else -1)
    places = [source + trim + (way - 2 * trim) * k / 40 for k in range(41)]
    points = [_place(place, n, radius) for place in places]
    axis.plot([x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.5, zorder=3)
    axis.add_patch(
        FancyArrowPatch(
            points[-4], points[-1], arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=0, zorder=3
        )
    )
