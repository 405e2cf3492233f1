"""Figures of a study, drawn from its result and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullLocator

from experiments.report.drawing import INK, LIGHT, PALETTE, QUIET, STYLE, Plot, save
from experiments.study.spec import Study
from experiments.study.systems import CHARGES, SYSTEMS, WRHT
from experiments.study.verdict import at_base, strongest_ring
from fabric.topology import Reconfigure
from fabric.units import format_size, format_time

_RED, _BLUE, _GREEN, _AMBER, _PURPLE, _TEAL = PALETTE
#: Colour by family of systems; line by what it does with the wavelengths.
_LOOK: Mapping[str, tuple[str, Any]] = {
    "wrht": (_RED, "-"), "wrht-exchange": (_RED, (0, (1.2, 1.2))), "wrht-striped": (_RED, (0, (5, 2))),
    "ring": (_BLUE, (0, (1.2, 1.2))), "ring-striped": (_BLUE, (0, (5, 2, 1.2, 2))),
    "bidirectional-ring": (_BLUE, "-"), "bidirectional-ring-striped": (_BLUE, (0, (5, 2))),
    "hierarchical-ring": (_GREEN, (0, (1.2, 1.2))),
    "hierarchical-ring-striped": (_GREEN, (0, (5, 2, 1.2, 2))),
    "bidirectional-hierarchical-ring": (_GREEN, "-"),
    "bidirectional-hierarchical-ring-striped": (_GREEN, (0, (5, 2))),
    "binary-tree": (_AMBER, "-"), "binary-tree-striped": (_AMBER, (0, (5, 2))),
    "electrical-ring": (_PURPLE, "-"), "electrical-recursive-doubling": (_TEAL, "-"),
}  # fmt: skip
CHARGED = {"each-step": "set-up in each step", "changed-only": "set-up only where light changes"}
_seconds = FuncFormatter(lambda x, _: format_time(x))
_bytes = FuncFormatter(lambda x, _: format_size(x))


def draw_all(study: Study, result: Mapping[str, Any], folder: Path) -> list[Plot]:
    """Draw every figure into ``folder`` (made if absent)."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figures = _figures(study, result)
        return [save(figure, folder, name, caption) for figure, name, caption in figures if figure]


def _figures(study: Study, result: Mapping[str, Any]) -> list[tuple[Figure | None, str, str]]:
    """Every figure with its name and caption; None where there is nothing to draw."""
    base = study.sweeps.base
    return [
        (
            _messages(study, result),
            "messages",
            f"Time of an all-reduce over the size of the gradient, simulated: {at_base(study)}. Dashed: "
            "every transfer striped over the wavelengths that its step leaves free; dotted: WRHT with "
            "exchange at the top, rings on one of the two fibres. A circle marks where WRHT and the "
            "bidirectional ring on one wavelength are as fast.",
        ),
        (
            _fastest(study, result),
            "fastest",
            "The fastest system for each size of gradient and each set-up time, simulated, at "
            f"{base.nodes:,} nodes and {base.wavelengths} wavelengths. Above, among systems that give a "
            "transfer one wavelength; below, among all of the ring. Lines mark the models' gradients.",
        ),
        (
            _crossovers(study, result),
            "crossovers",
            "Largest gradient for which WRHT is faster than the bidirectional ring on one wavelength, with "
            "the set-up in each step. Dots are simulated, lines analytic: a·B(2(N−1)−θ)/(θ−(N−1)/N). Grey "
            "lines mark the models' gradients.",
        ),
        (
            _along(study, result, "wavelengths"),
            "wavelengths",
            f"Time over the number of wavelengths, simulated, {base.nodes:,} nodes, set-up in each step.",
        ),
        (
            _along(study, result, "set_up"),
            "set-up",
            f"Time over the set-up, simulated, {base.nodes:,} nodes, {base.wavelengths} wavelengths, set-up "
            "in each step. At the left end it costs nothing.",
        ),
        (
            _nodes(study, result),
            "nodes",
            f"Time over the number of nodes, simulated, {base.gradient}, {base.wavelengths} wavelengths, "
            f"{format_time(base.set_up)} of set-up.",
        ),
        (
            _reach(study, result),
            "reach",
            f"WRHT at {base.nodes:,} nodes when light passes only so many segments, relays by a heuristic of "
            f"ours: steps (left) and time (right), simulated, {base.wavelengths} wavelengths, set-up in "
            "each step.",
        ),
        (
            _published(result),
            "published",
            "Published percentages (lines) and every one of ours that the study has anyway (dots, "
            "simulated): each gradient, both ways to charge the set-up, with and without the exchange; "
            "triangles: from the number of steps alone.",
        ),
    ]


def _legend(figure: Figure, systems: Sequence[str]) -> None:
    handles = [
        Line2D([], [], color=_LOOK[name][0], linestyle=_LOOK[name][1], linewidth=1.7,
               label=SYSTEMS[name].title)
        for name in systems
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7.5)


def _line(axis: Axes, name: str, x: Sequence[float], y: Sequence[float | None], **more: Any) -> None:
    shown = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if shown:
        colour, style = _LOOK[name]
        axis.plot(
            *zip(*shown, strict=True), color=colour, linestyle=style,
            linewidth=2.2 if name == "wrht" else 1.4, zorder=4 if name in WRHT else 3, **more,
        )  # fmt: skip


def _log(axis: Any, formatter: FuncFormatter) -> None:
    axis.set_major_formatter(formatter)
    axis.set_minor_locator(NullLocator())


def _mark_models(study: Study, axis: Axes, *, upright: bool, named: bool = True) -> None:
    for name, size in study.sweeps.gradients.items():
        (axis.axvline if upright else axis.axhline)(size, color=QUIET, linewidth=0.7, linestyle=":", zorder=1)
        if named and upright:
            axis.annotate(
                name, (size, 1), xycoords=("data", "axes fraction"), xytext=(-2, -2),
                textcoords="offset points", rotation=90, ha="right", va="top", fontsize=6.5, color=QUIET,
            )  # fmt: skip
        elif named:
            axis.annotate(
                name, (1, size), xycoords=("axes fraction", "data"), xytext=(-1, 1.5),
                textcoords="offset points", ha="right", va="bottom", fontsize=6.5, color=QUIET,
            )  # fmt: skip


def _by_charge(study: Study, height: float, label: str) -> tuple[Figure, dict[Reconfigure, Axes]]:
    """A panel for each way to charge the set-up: seconds over ``label``, both axes logarithmic."""
    figure = Figure(figsize=(9.2, height), layout="constrained")
    axes: dict[Reconfigure, Axes] = dict(zip(CHARGES, figure.subplots(1, 2, sharey=True), strict=True))
    for charge, axis in axes.items():
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(CHARGED[charge])
        axis.set_xlabel(label)
        _log(axis.yaxis, _seconds)
    axes["each-step"].set_ylabel("time of an all-reduce")
    _legend(figure, study.sweeps.systems)
    return figure, axes


def _messages(study: Study, result: Mapping[str, Any]) -> Figure:
    figure, axes = _by_charge(study, 5.4, "gradient")
    ring = strongest_ring(study)
    for charge, axis in axes.items():
        for row in result["messages"]:
            if row["charge"] == charge and row["set_up_s"] == study.sweeps.base.set_up:
                _line(axis, row["system"], row["bytes"], row["total_s"])
        _mark_models(study, axis, upright=True)
        for pair in result["crossovers"]["systems"]:
            if pair["other"] == ring and pair["charge"] == charge and pair["simulated_bytes"]:
                size = pair["simulated_bytes"]
                form = SYSTEMS[ring].closed(study.base)
                axis.plot(
                    [size],
                    [form.time_s(size, study.base.rate_bps, study.sweeps.base.set_up, charge)],
                    marker="o", markersize=7, markerfacecolor="none", markeredgecolor=INK, zorder=6,
                )  # fmt: skip
        _log(axis.xaxis, _bytes)
    return figure


def _fastest(study: Study, result: Mapping[str, Any]) -> Figure:
    rows = result["fastest"]
    figure = Figure(figsize=(9.2, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    seen: dict[str, None] = {}
    names = {"one wavelength": "one wavelength each", "any": "striping allowed"}
    for line, (kind, title) in zip(axes, names.items(), strict=True):
        for axis, charge in zip(line, CHARGES, strict=True):
            mine = [row for row in rows if row["systems"] == kind and row["charge"] == charge]
            mine.sort(key=lambda row: row["set_up_s"])
            for y, row in enumerate(mine):
                edges = _edges(row["bytes"])
                for name, run in itertools.groupby(enumerate(row["fastest"]), key=lambda kn: kn[1]):
                    places = [k for k, _ in run]
                    if name is None:
                        continue
                    seen[name] = None
                    low, high = edges[places[0]], edges[places[-1] + 1]
                    axis.barh(
                        y, high - low, left=low, height=0.92, color=_LOOK[name][0],
                        alpha=_strength(name), linewidth=0,
                    )  # fmt: skip
            axis.set_xscale("log")
            axis.set_xlim(mine[0]["bytes"][0], mine[0]["bytes"][-1])
            axis.set_yticks(range(len(mine)), [format_time(row["set_up_s"]) for row in mine], fontsize=8)
            axis.set_title(f"{title}, {CHARGED[charge]}", fontsize=9)
            axis.grid(visible=False)
            _log(axis.xaxis, _bytes)
            for size in study.sweeps.gradients.values():
                axis.axvline(size, color=INK, linewidth=0.8, linestyle=":", zorder=5)
    for axis in axes[1]:
        axis.set_xlabel("gradient")
    for line in axes:
        line[0].set_ylabel("set-up")
    order = [name for name in study.sweeps.systems if name in seen]
    handles = [
        Patch(color=_LOOK[name][0], alpha=_strength(name), label=SYSTEMS[name].title) for name in order
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7.5)
    return figure


def _strength(name: str) -> float:
    return 0.38 if SYSTEMS[name].striped else (0.68 if name == "wrht-exchange" else 1.0)


def _edges(sizes: Sequence[float]) -> list[float]:
    """Between neighbouring sizes, halfway on a logarithmic axis."""
    middle = [(a * b) ** 0.5 for a, b in itertools.pairwise(sizes)]
    return [sizes[0] ** 2 / middle[0], *middle, sizes[-1] ** 2 / middle[-1]]


def _crossovers(study: Study, result: Mapping[str, Any]) -> Figure:
    kinds = [
        ("nodes", "nodes", "nodes"),
        ("wavelengths", "wavelengths", "wavelengths"),
        ("set_up", "set_up_s", "set-up"),
    ]

    ring = strongest_ring(study)
    figure = Figure(figsize=(9.2, 3.5), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (kind, field, label) in zip(axes, kinds, strict=True):
        for system in WRHT:
            rows = [
                row
                for row in result["crossovers"][kind]
                if (row["system"], row["other"], row["charge"]) == (system, ring, "each-step")
                and row["simulated_bytes"]
            ]
            if not rows:
                continue
            colour = _RED if system == "wrht" else LIGHT
            x = [row[field] for row in rows]
            axis.plot(x, [row["analytic_bytes"] for row in rows], color=colour, linewidth=1.2)
            axis.plot(
                x, [row["simulated_bytes"] for row in rows], color=colour, linestyle="", marker="o",
                markersize=5,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        _mark_models(study, axis, upright=False, named=axis is axes[-1])
        axis.set_xlabel(label)
        ticks = sorted({row[field] for row in result["crossovers"][kind] if row[field] > 0})
        named = [format_time(t) if field == "set_up_s" else f"{t:g}" for t in ticks]
        axis.set_xticks(ticks, named, fontsize=7, rotation=45 if kind == "nodes" else 0)
        axis.xaxis.set_minor_locator(NullLocator())
        _log(axis.yaxis, _bytes)
    axes[0].set_ylabel("WRHT is faster up to")
    handles = [
        Line2D([], [], color=_RED if s == "wrht" else LIGHT, marker="o", label=SYSTEMS[s].title)
        for s in WRHT
        if s in study.sweeps.systems
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7.5)
    return figure


def _along(study: Study, result: Mapping[str, Any], kind: str) -> Figure:
    """One panel for each gradient."""
    field, label = ("wavelengths", "wavelengths") if kind == "wavelengths" else ("set_up_s", "set-up")
    gradients = study.sweeps.gradients
    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    axes = figure.subplots(1, len(gradients), sharey=True, squeeze=False)[0]
    for axis, (model, size) in zip(axes, gradients.items(), strict=True):
        rows = [r for r in result[kind] if r["charge"] == "each-step" and r["gradient"] == model]
        x = list(range(len(rows)))
        for system in study.sweeps.systems:
            if SYSTEMS[system].medium == "electrical" and kind == "set_up":
                continue
            _line(axis, system, x, [row["total_s"].get(system) for row in rows],
                  marker="o", markersize=2.5)  # fmt: skip
        named = [format_time(row[field]) if field == "set_up_s" else f"{row[field]:g}" for row in rows]
        axis.set_xticks(x, named, fontsize=8)
        axis.set_yscale("log")
        axis.set_title(f"{model}, {format_size(size)}")
        axis.set_xlabel(label)
        _log(axis.yaxis, _seconds)
    axes[0].set_ylabel("time of an all-reduce")
    shown = study.optical if kind == "set_up" else study.sweeps.systems
    _legend(figure, shown)
    return figure


def _nodes(study: Study, result: Mapping[str, Any]) -> Figure:
    figure, axes = _by_charge(study, 4.4, "nodes")
    for charge, axis in axes.items():
        rows = [
            r
            for r in result["nodes"]
            if r["charge"] == charge and r["gradient"] == study.sweeps.base.gradient
        ]
        nodes = [r["nodes"] for r in rows]
        for system in study.sweeps.systems:
            _line(axis, system, nodes, [r["total_s"].get(system) for r in rows])
        axis.set_xticks(nodes, [f"{n}" for n in nodes], fontsize=7, rotation=45)
        axis.xaxis.set_minor_locator(NullLocator())
    return figure


def _reach(study: Study, result: Mapping[str, Any]) -> Figure | None:
    rows = result["reach"]
    if len(rows) < 2:
        return None

    figure = Figure(figsize=(9.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = list(range(len(rows)))
    names = ["no limit" if row["reach"] is None else f"{row['reach']}" for row in rows]
    for system in (name for name in WRHT if name in rows[0]):
        colour, style = _LOOK[system]
        left.plot(x, [row[system]["steps"] for row in rows], color=colour, linestyle=style, marker="o",
                  markersize=4, label=SYSTEMS[system].title)  # fmt: skip
    colours = itertools.cycle((_RED, _AMBER, _PURPLE, _TEAL, _GREEN))
    for model, colour in zip(study.sweeps.gradients, colours, strict=False):
        right.plot(x, [row["wrht"]["total_s"][model] for row in rows], color=colour, marker="o",
                   markersize=4, label=model)  # fmt: skip
    rival = strongest_ring(study)
    ring = result["models"]["each-step"][study.sweeps.base.gradient].get(rival)
    if ring:
        right.axhline(ring["total_s"], color=_BLUE, linewidth=1.2,
                      label=f"{SYSTEMS[rival].title}, {study.sweeps.base.gradient}")  # fmt: skip
    for axis in (left, right):
        axis.set_yscale("log")
        axis.set_xticks(x, names, fontsize=8)
        axis.set_xlabel("reach, segments")
        axis.legend(fontsize=7.5)
    left.set_ylabel("steps")
    left.yaxis.set_major_formatter("{x:g}")
    right.set_ylabel("time of an all-reduce")
    _log(right.yaxis, _seconds)
    return figure


def _published(result: Mapping[str, Any]) -> Figure | None:
    published = result["published"]
    if published is None:
        return None

    figures = published["figures"]
    figure = Figure(figsize=(9.2, 0.7 + 0.55 * len(figures)), layout="constrained")
    axis = figure.subplots()
    for y, entry in enumerate(figures):
        for ours in entry["ours"]:
            steps = "each" in ours
            axis.plot(
                [max(-100.0, ours["percent"])], [y], linestyle="", marker="^" if steps else "o",
                markersize=6 if steps else 4.5, color=_BLUE if steps else _TEAL,
                alpha=0.9 if steps else 0.55, zorder=3,
            )  # fmt: skip
        axis.plot([entry["percent"]] * 2, [y - 0.32, y + 0.32], color=_RED, linewidth=2.6, zorder=4)
    axis.axvline(0, color=INK, linewidth=0.8)
    named = [f"{entry['percent']:.2f} %, {SYSTEMS[entry['taken_for']].title}" for entry in figures]
    axis.set_yticks(range(len(figures)), named)
    axis.invert_yaxis()
    axis.set_xlim(-104, 102)
    axis.set_xlabel("WRHT takes so many per cent less time (below 0: more; at −100: twice as long or worse)")
    axis.grid(axis="x", visible=True)
    axis.grid(axis="y", visible=False)
    return figure
