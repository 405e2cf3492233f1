"""Light that is divided again and again where the interval decides: how long jobs take by it, and which pairs
of GPUs waited in the dark at two intervals side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringlight.experiments.language.spec import quantity
from ringlight.experiments.record.events import LightGiven
from ringlight.experiments.record.runs import Run
from ringlight.experiments.report.charts import along, key, legend, sheet
from ringlight.experiments.report.drawing import LIGHT, PALETTE
from ringlight.experiments.report.view import Draw, View, short
from ringlight.experiments.report.words import said

ORDER = 31
TITLE = "Light in turns"
NEEDS = ("divisions_late",)
_CARRIED, _WAITED = LIGHT, PALETTE[0]


@dataclass(frozen=True)
class _At:
    """A run at a value of the swept path."""

    value: object
    run: Run
    jct_s: float
    light: LightGiven

    @property
    def order(self) -> float:
        found = quantity(self.value)
        return 0.0 if found is None else found[0]


def wanted(view: View) -> bool:
    return bool(_swept(view))


def _swept(view: View) -> tuple[str, list[_At]] | None:
    """The first arm that is swept over one path of numbers, by its values."""
    for arm in view.arms:
        points = view.points(arm)
        paths = {path for point in points for path in point}
        if len(points) < 2 or len(paths) != 1:
            continue
        (path,) = paths
        found = sorted(_of(view, arm, path), key=lambda at: at.order)
        if len(found) == len(points) and all(quantity(at.value) for at in found):
            return path, found
    return None


def _of(view: View, arm: str, path: str) -> Iterator[_At]:
    for run in (run for run in view.runs if run.plan.arm == arm and run.plan.repeat == 1):
        for light in run.of(LightGiven):
            jct_s = view.at(arm, f"job {light.job}", run.plan.point).number("jct")
            if jct_s is not None:
                yield _At(run.plan.point[path], run, jct_s, light)


def _apart(found: Sequence[_At]) -> tuple[_At, _At]:
    """Two neighbours that differ most."""

    def ratio(pair: tuple[_At, _At]) -> float:
        times = sorted(at.jct_s for at in pair)
        return times[1] / times[0]

    return max(itertools.pairwise(found), key=ratio)


def render(view: View, draw: Draw) -> str:
    swept = _swept(view)
    assert swept is not None
    path, found = swept
    return (
        "<p>A pair of GPUs with nothing to send when light is divided gets none, so what it begins to send "
        "afterwards waits for the next division. The maps are of the two neighbouring intervals whose times "
        f"differ most.{view.says('turns')}</p>{draw('turns', _CAPTION, _figure, path, found)}"
    )


_CAPTION = (
    "Above, time of the job by the interval. Below, for two intervals, a line for each pair of GPUs, from "
    "one division of light to the next: it had light for bytes that it was divided for; or it had none, "
    "and bytes waited for the next."
)


def _figure(path: str, found: Sequence[_At]) -> Figure:
    chosen = _apart(found)
    figure, rows = sheet(5.6, rows=3, left=0.95, top=0.45, gap=(0, 0.62), heights=[1.2, 1, 1])
    axes = [axis for (axis,) in rows]
    values = [at.value for at in found]
    xs = along(axes[0], values, [said(value) for value in values], short(path, [path]))
    axes[0].plot(xs, [at.jct_s for at in found], marker="o", markersize=2.5, color=PALETTE[1])
    for at in chosen:
        axes[0].plot([xs[found.index(at)]], [at.jct_s], marker="o", markersize=6, color=_WAITED)
    axes[0].set_ylabel("job, seconds")
    last = max(at.jct_s for at in chosen)
    for axis, at in zip(axes[1:], chosen, strict=True):
        _map(axis, at, last)
    axes[-1].set_xlabel("seconds as emulated")
    handles = [key(_CARRIED, "light for bytes under way", 6), key(_WAITED, "bytes waited without", 6)]
    legend(figure, "a pair of GPUs", handles)
    return figure


def _map(axis: Axes, at: _At, last: float) -> None:
    divisions = at.light.divisions
    begins = [division["t"] - at.run.released for division in divisions]
    ends = [*begins[1:], at.jct_s]
    left = np.array([division["left_bytes"] for division in divisions])
    lit = np.array([division["lightpaths"] for division in divisions]) > 0
    # The first is made for all that the job sends.
    left[0] = lit[0]
    waits = np.zeros_like(lit)
    waits[:-1] = (left[1:] > 0) & ~lit[:-1]
    for cells, colour in ((lit & (left > 0), _CARRIED), (waits, _WAITED)):
        for division, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            pairs = np.flatnonzero(cells[division])
            axis.bar(
                np.full(len(pairs), begin), np.full(len(pairs), 1.0), end - begin, pairs,
                align="edge", color=colour, linewidth=0,
            )  # fmt: skip
    axis.set(xlim=(0, 1.03 * last), ylim=(0, len(at.light.pairs)))
    axis.set_ylabel("pairs")
    axis.grid(visible=False)
    axis.set_title(f"{said(at.value)}: {at.jct_s:.3g} s")
