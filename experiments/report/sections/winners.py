"""Map of the winners among arms that ran the same workloads, and the parts of their fabrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib import colormaps
from matplotlib.figure import Figure

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.metrics.built import PARTS
from ringlight.experiments.report.charts import shaded, sheet
from ringlight.experiments.report.page import NOTHING, Columns, table_of, tag, text
from ringlight.experiments.report.view import Draw, Figures, View
from ringlight.experiments.report.words import called, said, upper_first

ORDER = 7
TITLE = "Who wins where"
#: So many arms and workloads make a map. From so many times the best on, a cell is as dark as it gets.
_ARMS, _WORKLOADS, _DARKEST = 3, 2, 32


@dataclass(frozen=True)
class _Map:
    """``times`` [arms][workloads]: the first compared metric that is a time, None where a run gave none."""

    arms: Sequence[str]
    workloads: Sequence[str]
    metric: str
    times: Sequence[Sequence[Figures]]

    def ratio(self, row: int, column: int) -> float | None:
        """Time of an arm over the least time for the same workload."""
        found = [line[column].number(self.metric) for line in self.times]
        least = min((time for time in found if time is not None), default=None)
        time = found[row]
        return None if time is None or not least else time / least


def _is_time(name: str) -> bool:
    return name in metrics() and metrics()[name].unit == "s"


def _map_of(view: View) -> _Map | None:
    """Map of winners: sweeps over one job's workload alone, and the arms that ran any of them."""
    sweeps = [
        s for s in view.experiment.spec.sweep if len(s.over) == 1 and next(iter(s.over)).endswith(".workload")
    ]
    metric = (
        next(filter(_is_time, view.experiment.spec.compare[0].metrics), None)
        if view.experiment.spec.compare
        else None
    )
    if not sweeps or metric is None:
        return None
    path = next(iter(sweeps[0].over))
    swept = [sweep for sweep in sweeps if path in sweep.over]
    workloads = list(dict.fromkeys(str(name) for sweep in swept for name in sweep.over[path]))
    arms = [arm for arm in view.arms if any(sweep.arms is None or arm in sweep.arms for sweep in swept)]
    if len(arms) < _ARMS or len(workloads) < _WORKLOADS:
        return None
    subject = f"job {path.split('.')[1]}"
    times = [[view.at(arm, subject, {path: name}) for name in workloads] for arm in arms]
    return _sorted(_Map(arms, workloads, metric, times))


def _sorted(found: _Map) -> _Map:
    """The best on the whole first: by the geometric mean over what all arms ran, as others do not compare."""
    rows, columns = range(len(found.arms)), range(len(found.workloads))
    of_all = [k for k in columns if all(found.ratio(row, k) is not None for row in rows)]

    def key(row: int) -> tuple[float, int]:
        ratios = [found.ratio(row, column) for column in of_all or columns]
        there = [math.log(ratio) for ratio in ratios if ratio is not None]
        return sum(there) / max(len(there), 1), ratios.count(None)

    order = sorted(range(len(found.arms)), key=key)
    return _Map(
        [found.arms[row] for row in order], found.workloads, found.metric, [found.times[row] for row in order]
    )


def wanted(view: View) -> bool:
    return _map_of(view) is not None


def render(view: View, draw: Draw) -> str:
    found = _map_of(view)
    assert found is not None
    what = upper_first(called(found.metric))
    caption = (
        f"{what} over the least of any fabric at the same workload, {view.label}; in order of the geometric "
        "mean over the workloads that all ran. A dash: not run, or failed."
    )
    return (
        view.paragraph("winners")
        + draw("winners", caption, _figure, view, found)
        + f"<h3>{text(what)}, and what each fabric is built of, per GPU</h3>"
        + _table(view, found)
        + f'<p class="quiet">Counts are of parts, not of prices: {text(_NOTES)}</p>'
    )


_NOTES = (
    "a transceiver is the end of a fibre at a GPU or a packet switch, whatever its rate and however many its "
    "wavelengths; every electrical link counts as a fibre with two."
)


def _figure(view: View, found: _Map) -> Figure:
    rows, columns = len(found.arms), len(found.workloads)
    figure, ((axis,),) = sheet(0.9 + 0.3 * rows, left=2.3, right=0.3, top=0.1, bottom=0.6)
    shades = colormaps["YlOrRd"]
    cells, words = [], []
    for row in reversed(range(rows)):
        ratios = [found.ratio(row, column) for column in range(columns)]
        depths = [None if r is None else min(math.log(r) / math.log(_DARKEST), 1.0) for r in ratios]
        cells.append([(0.93, 0.93, 0.93) if d is None else shades(0.85 * d)[:3] for d in depths])
        words.append([NOTHING if r is None else "best" if r < 1.0005 else _times(r) for r in ratios])
    titles = [view.title(arm) for arm in reversed(found.arms)]
    shaded(axis, [said(name) for name in found.workloads], titles, cells, words)
    axis.set_xlabel(f"workload; in each cell: {called(found.metric)} over the least of any fabric")
    return figure


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}"


def _table(view: View, found: _Map) -> str:
    def counted(row: int, part: str) -> str:
        at = next((at for at in found.times[row] if at.number(found.metric) is not None), found.times[row][0])
        name = f"fabric {view.plans[at.arm].setting.name}"
        count = view.at(at.arm, name, at.point).number(f"{part}_per_gpu")
        return "" if count is None else f"{count:.3g}"

    def taken(row: int, column: int) -> str:
        ratio = found.ratio(row, column)
        return (
            NOTHING if ratio is None else f"{found.times[row][column].figure(found.metric)} ({_times(ratio)})"
        )

    columns: Columns[int] = [
        ("fabric", lambda row: text(view.title(found.arms[row]))),
        *((said(name), partial(taken, column=k)) for k, name in enumerate(found.workloads)),
        *((part.replace("_", " "), partial(counted, part=part)) for part in PARTS),
    ]
    return table_of(range(len(found.arms)), columns, 1) + tag(view.label)
