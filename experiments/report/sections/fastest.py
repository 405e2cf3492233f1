"""Map of the fastest arm over two swept paths, side by side for a third."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from ringlight.experiments.language.spec import SweepSpec, quantity
from ringlight.experiments.report.charts import legend, shaded, sheet
from ringlight.experiments.report.drawing import PALETTE
from ringlight.experiments.report.view import Draw, View, short
from ringlight.experiments.report.words import called, said
from ringlight.fabric.schedules import parse_collective

ORDER = 9
TITLE = "Who is the fastest"
#: So many values of two paths, and so many arms, make a map.
_VALUES, _ARMS = 4, 3
_MORE = ("#7f8793", "#b5651d", "#5b7f2b", "#3b3f8f", "#d178b5", "#4aa3a3", "#9a3324", "#b8a13a")


def _first(view: View) -> tuple[SweepSpec, Sequence[str]] | None:
    """The first sweep of which a map can be drawn, and its paths: first the two longest of numbers."""
    for spec in view.experiment.spec.sweep:
        long = [p for p, values in spec.over.items() if len(values) >= _VALUES and all(map(quantity, values))]
        arms = spec.arms or view.arms
        if 2 <= len(long) <= len(spec.over) <= 3 and len(arms) >= _ARMS and view.experiment.spec.compare:
            first = sorted(long, key=lambda path: -len(spec.over[path]))[:2]
            return spec, [*first, *(path for path in spec.over if path not in first)]
    return None


def wanted(view: View) -> bool:
    return _first(view) is not None


def render(view: View, draw: Draw) -> str:
    found = _first(view)
    assert found is not None
    metric = view.experiment.spec.compare[0].metrics[0]
    caption = (
        f"The arm with the least {called(metric)}, {view.label}; above only those that give a transfer one "
        "wavelength, where others spread it over several."
    )
    return view.paragraph("fastest") + draw("fastest", caption, _figure, view, *found, metric)


def _classes(view: View, arms: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Arms that are compared with each other: all, and where some stripe their transfers, the others."""
    plain = [arm for arm in arms if not parse_collective(view.plans[arm].jobs[0].loop.collective).striped]
    return (
        {"one wavelength for a transfer": plain, "any number of them": arms}
        if 0 < len(plain) < len(arms)
        else {"": arms}
    )


def _amount(value: object) -> str:
    """All values of an axis in one form, 100 kB beside 10 kB, however the file writes them."""
    found = quantity(value)
    if found is None:
        return said(value)
    number, unit = found
    return EngFormatter({"bytes": "B", "1": ""}.get(unit, unit)).format_data(number)


def _figure(view: View, spec: SweepSpec, paths: Sequence[str], metric: str) -> Figure:
    across, up, *third = paths
    panels = list(itertools.product(*(spec.over[path] for path in third)))
    arms = [arm for arm in view.arms if spec.arms is None or arm in spec.arms]
    subject = next(at.subject for at in view.each("job", arms))
    colours = dict(zip(arms, (*PALETTE, *_MORE), strict=False))
    classes = _classes(view, arms)
    columns, rows = (
        sorted(spec.over[path], key=lambda value: quantity(value) or (0.0, "")) for path in (across, up)
    )
    every = max(1, len(columns) // 6)
    named = [_amount(x) if k % every == 0 else "" for k, x in enumerate(columns)]
    figure, axes = sheet(
        0.9 + 1.75 * len(classes),
        rows=len(classes),
        columns=len(panels),
        left=0.8,
        top=0.3,
        gap=(0.85, 0.45),
    )
    drawn: set[str] = set()
    for line, (name, among) in zip(axes, classes.items(), strict=True):
        for axis, panel in zip(line, panels, strict=True):
            cells = []
            for y in rows:
                row = []
                for x in columns:
                    values = {across: x, up: y, **dict(zip(third, panel, strict=True))}
                    point = {path: values[path] for path in spec.over}
                    found = {arm: view.at(arm, subject, point).number(metric) for arm in among}
                    times = {arm: value for arm, value in found.items() if value is not None}
                    # At a tie the first of the file, so that the map does not flicker.
                    best = min(times, key=lambda arm: round(times[arm], 15)) if times else None
                    drawn |= {best} if best else set()
                    row.append(to_rgb(colours[best]) if best else (1.0, 1.0, 1.0))
                cells.append(row)
            shaded(axis, named, [said(y) for y in rows], cells, words=[])
            axis.set_title(", ".join(filter(None, [name, *map(said, panel)])), fontsize=8)
        for axis in line:
            axis.set_ylabel(short(up, spec.over))
    for axis in axes[-1]:
        axis.set_xlabel(short(across, spec.over))
    patches = [Patch(color=colours[arm], label=view.title(arm)) for arm in arms if arm in drawn]
    legend(figure, "fastest arm", patches, columns=4)
    return figure
